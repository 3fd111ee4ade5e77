"""How a pod asks for GPUs that no resource of its limits counts, and how it asks for units of any GPU type.

What has no resource gets the name of one, so that everything else counts in the same way: ``annotation/gpu-fraction``
(in thousandths) and ``annotation/gpu-memory`` (in MiB) are KAI's annotations, ``claim/gpu`` is a claim of the
ResourceClaimTemplate ``gpu``. KAI gives parts of any size, each on ``gpu-fraction-num-devices`` GPUs.

https://github.com/kai-scheduler/KAI-Scheduler/tree/main/docs/gpu-sharing
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dlspawner.core.config import GpuType
from dlspawner.core.units import GPU, Manifest

CLAIM, _ANNOTATION = "claim", "annotation"
_FRACTION, _MEMORY = "gpu-fraction", "gpu-memory"
KAI_FRACTION, KAI_MEMORY = f"{_ANNOTATION}/{_FRACTION}", f"{_ANNOTATION}/{_MEMORY}"
KAI_MEMORY_PARTS = "kai/memory-parts"  # how many of these: each may be of a GPU of its own
_KAI_COUNT, _KAI_CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
_KAI_NAMESPACE, KAI_RESERVED = "kai-resource-reservation", "kai/reserved"  # pods that hold the GPUs that KAI shares
ANNOTATIONS = (_FRACTION, _MEMORY, _KAI_COUNT)  # that ask for GPUs
MEMORY_LABEL = "nvidia.com/gpu.memory"  # of nodes: the MiB of each GPU, by which KAI converts


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The parts of a pod that ask for GPUs: limits of one container, annotations and claims of the pod."""

    limits: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    claims: tuple[Manifest, ...] = ()

    @property
    def claim_names(self) -> list[Manifest]:
        """The claims as the container names them."""
        return [{"name": one["name"]} for one in self.claims]


def request_units(kind: GpuType | None, count: int, container: str) -> GpuRequest:
    """Asks for so many units of a type for a container; for nothing without a type."""
    if kind is None or not count:
        return GpuRequest()
    key, _, value = kind.resource.partition("/")
    if key == _ANNOTATION:
        size = str(kind.amount) if value == _MEMORY else f"{kind.amount / GPU:g}"
        return GpuRequest(annotations=_on_gpus({value: size, _KAI_CONTAINER: container}, count))
    if key == CLAIM:
        return GpuRequest(claims=claims_of(value, count))
    beside = {name: str(amount) for name, amount in kind.beside}
    return GpuRequest({kind.resource: str(count * kind.amount), **beside})


def claims_of(template: str, count: int) -> tuple[Manifest, ...]:
    """Returns so many claims: one each, so that the administrator's template is for one."""
    return tuple({"name": f"gpu-{index}", "resourceClaimTemplateName": template} for index in range(count))


def recounted(claims: Sequence[Manifest], count: int) -> GpuRequest:
    """Asks for so many units of the type that a pod has these claims for."""
    return GpuRequest(claims=claims_of(claims[0]["resourceClaimTemplateName"], count))


def asked_without_resource(pod: Manifest) -> dict[str, Fraction]:
    """Returns the GPUs that a pod's annotations and claims ask for, by resources of GPU types; ValueError: no count.

    A claim of no template is one of the template "".
    """
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    count = int(annotations.get(_KAI_COUNT, "1"))
    if count < 1:
        raise ValueError(f"{_KAI_COUNT} is {count}")
    asked: dict[str, Fraction] = {}
    if _FRACTION in annotations:
        asked[KAI_FRACTION] = Fraction(_thousandths(str(annotations[_FRACTION])) * count)
    if _MEMORY in annotations:
        mib = int(annotations[_MEMORY])
        if mib < 1:
            raise ValueError(f"{_MEMORY} is {mib}")
        asked[KAI_MEMORY], asked[KAI_MEMORY_PARTS] = Fraction(mib * count), Fraction(count)
    if metadata.get("namespace") == _KAI_NAMESPACE:
        asked[KAI_RESERVED] = Fraction(1)
    for claim in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = f"{CLAIM}/{claim.get('resourceClaimTemplateName') or ''}"
        asked[name] = asked.get(name, Fraction(0)) + 1
    return asked


def _thousandths(written: str) -> int:
    """A part of a GPU as KAI reads it, rounded up; ValueError: none."""
    part = float(written)
    if not 0 < part <= 1:
        raise ValueError(f"{_FRACTION} is {written}")
    return math.ceil(round(part * GPU, 6))


def kai_container(pod: Manifest) -> str | None:
    """Returns the container that gets the part of a GPU which the pod's annotations ask for."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    asks = _FRACTION in annotations or _MEMORY in annotations
    return annotations.get(_KAI_CONTAINER) if asks else None


def without_claims_of(pod: Manifest, kinds: Iterable[GpuType]) -> Manifest:
    """Returns the pod without the claims by which it asks for GPUs of these types."""
    known = {kind.resource for kind in kinds}
    claims = pod["spec"].get("resourceClaims") or ()
    others = [one for one in claims if f"{CLAIM}/{one.get('resourceClaimTemplateName')}" not in known]
    return {**pod, "spec": {**pod["spec"], "resourceClaims": others}}


def annotations_for(annotations: Mapping[str, str], count: int) -> dict[str, str]:
    """Returns a pod's annotations with KAI's for so many units; without KAI's for none."""
    others = {key: value for key, value in annotations.items() if key not in {*ANNOTATIONS, _KAI_CONTAINER}}
    if not count or not (_FRACTION in annotations or _MEMORY in annotations):
        return others
    return _on_gpus(dict(annotations), count)


def _on_gpus(annotations: dict[str, str], count: int) -> dict[str, str]:
    """KAI's annotations for a part of each of so many GPUs."""
    annotations.pop(_KAI_COUNT, None)
    return annotations | ({_KAI_COUNT: str(count)} if count > 1 else {})
