"""What the Manager sees of a pod. PURE: a manifest in, a value out.

What a pod says about itself is a claim; what it holds is counted from its spec, never from its labels, and never
refused: it is there. A GPU resource of several types is of the type that the pod's node is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dlspawner.core import naming
from dlspawner.core.charge import MOST_GPUS, Charge, charge
from dlspawner.core.decisions import Refuse
from dlspawner.core.essentials import essentials
from dlspawner.core.manifest import Manifest
from dlspawner.core.model import Amount, Cluster
from dlspawner.core.nodes import Holding, Node

_MOST = Amount(2**62, 2**62)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; ``job`` is what it claims to be, ``labelled`` whether it claims to be a job at all."""

    uid: str
    name: str
    labelled: bool
    job: naming.Job | None
    node: str | None
    running: bool
    leaving: bool
    over: bool  # it has ended and holds nothing, although it is still there
    manifest: Manifest  # of its spec what counts


def read_pod(manifest: Manifest) -> Pod:
    """A pod as the Kubernetes API tells it."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    phase = status.get("phase")
    return Pod(
        uid=str(metadata["uid"]),
        name=str(metadata["name"]),
        labelled=naming.JOB_LABEL in labels,
        job=naming.read_job(metadata),
        node=(manifest.get("spec") or {}).get("nodeName") or None,
        running=phase == "Running",
        leaving=bool(metadata.get("deletionTimestamp")),
        over=phase in {"Succeeded", "Failed"} and not any(map(_may_run, _statuses(status))),
        manifest=essentials(manifest),
    )


def _statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]


def _may_run(status: Mapping[str, Any]) -> bool:
    """On a node that does not answer a container of a failed pod may run on."""
    return bool((status.get("state") or {}).get("running"))


def held(pod: Pod, cluster: Cluster, node: Node | None) -> Charge:
    """What a pod holds, whatever the rules for jobs are."""
    unlimited = replace(
        cluster,
        gpu_types=tuple(replace(kind, per_gpu=_MOST, max_per_job=MOST_GPUS) for kind in cluster.gpu_types),
        cpu_only_max=_MOST,
    )
    found = charge([pod.manifest], unlimited)
    if isinstance(found, Refuse) and node is not None:
        spec = {**pod.manifest["spec"], "nodeSelector": dict(node.labels)}
        found = charge([{"spec": spec}], unlimited)
    if isinstance(found, Refuse):
        kinds = {kind.resource: kind for kind in reversed(unlimited.gpu_types)}
        found = charge([pod.manifest], replace(unlimited, gpu_types=tuple(kinds.values())))
    return Charge() if isinstance(found, Refuse) else found


def holding(pod: Pod, cluster: Cluster) -> Holding:
    """What a pod that is no job holds of its node."""
    found = held(pod, cluster, None).pods[0]
    gpus = ((found.resource, found.gpus),) if found.resource else ()
    return Holding(gpus, found.cpu_milli, found.memory_bytes)
