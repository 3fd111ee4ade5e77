"""What the Manager needs to know of a pod's manifest, and nothing else of it: no environment, no token, no command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlspawner.core.manifest import Manifest

_OF_SPEC = ("nodeSelector", "nodeName", "tolerations", "overhead", "resources", "resourceClaims")
_OF_CONTAINER = ("name", "resources", "restartPolicy")


def strip_manifest(pod: Manifest) -> dict[str, Any]:
    """The part of a pod that ``charge`` and ``read_placement`` read: the same cost, wherever it is computed."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    kept = {key: spec[key] for key in _OF_SPEC if spec.get(key)}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    if affinity:
        kept["affinity"] = {"nodeAffinity": affinity}
    for part in ("containers", "initContainers"):
        if spec.get(part):
            kept[part] = _containers(spec[part])
    return {"spec": kept}


def _containers(containers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: one[key] for key in _OF_CONTAINER if one.get(key)} for one in containers]
