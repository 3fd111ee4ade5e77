"""Pods that share a home directory: how they are found, and when they must share a node as well. Pure.

A volume that is *ReadWriteOnce* is attached to one node at a time. A second pod on another node would wait for it in
vain, with an event that no user understands, so such pods are told to be where the others are. A pod satisfies its own
term, so the first one goes anywhere; a pod that has ended counts no longer.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dlspawner.core import naming
from dlspawner.core.manifest import Manifest

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MANY_NODES = "ReadWriteMany"


def needs_home_node(pod: Mapping[str, Any] | None) -> bool:
    """Whether every job with the pod's home directory has to be on its node, so that none starts without that node."""
    affinity = (((pod or {}).get("spec") or {}).get("affinity") or {}).get("podAffinity") or {}
    selectors = ((term.get("labelSelector") or {}).get("matchLabels") or {} for term in affinity.get(_REQUIRED) or ())
    return any(naming.HOME_LABEL in labels for labels in selectors)


def with_home_affinity(pod: Manifest, claim: str, access_modes: Collection[str]) -> Manifest:
    """The pod with a label that names the claim it lives on and, if that is on one node at a time, affinity to it."""
    spec, metadata = pod["spec"], pod["metadata"]
    claims = [(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in spec.get("volumes") or ()]
    if claim not in claims:
        return pod
    label = {naming.HOME_LABEL: naming.slug(claim)}
    labelled = {**pod, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **label}}}
    if MANY_NODES in access_modes:
        return labelled
    affinity = spec.get("affinity") or {}
    together = affinity.get("podAffinity") or {}
    term = {"labelSelector": {"matchLabels": label}, "topologyKey": "kubernetes.io/hostname"}
    together = {**together, _REQUIRED: [*(together.get(_REQUIRED) or ()), term]}
    return {**labelled, "spec": {**spec, "affinity": {**affinity, "podAffinity": together}}}
