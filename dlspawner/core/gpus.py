"""How a pod asks for GPUs that no resource of its limits counts, and how it asks for units of any GPU type.

What has no resource gets the name of one, so that everything else counts in the same way: ``gpu-fraction/0.25`` and
``gpu-memory/4096`` are KAI's annotations, ``claim/gpu`` is a claim of the ResourceClaimTemplate ``gpu``.

https://github.com/kai-scheduler/KAI-Scheduler/tree/main/docs/gpu-sharing
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dlspawner.core.config import GpuType
from dlspawner.core.units import Manifest

CLAIM, KAI_FRACTION, KAI_MEMORY = "claim", "gpu-fraction", "gpu-memory"
_KAI_COUNT, _KAI_CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
ANNOTATIONS = (KAI_FRACTION, KAI_MEMORY, _KAI_COUNT)  # that ask for GPUs


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
    if key in {KAI_FRACTION, KAI_MEMORY}:
        return GpuRequest(annotations={key: value, _KAI_CONTAINER: container})
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
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    written = {key: str(value) for key, value in annotations.items() if key in ANNOTATIONS}
    count = Fraction(int(written.pop(_KAI_COUNT, "1")))
    if count < 1:
        raise ValueError(f"{_KAI_COUNT} is {count}")
    asked = {f"{key}/{value}": count for key, value in written.items()}
    for claim in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = f"{CLAIM}/{claim.get('resourceClaimTemplateName') or ''}"
        asked[name] = asked.get(name, Fraction(0)) + 1
    return asked


def kai_container(pod: Manifest) -> str | None:
    """Returns the container that gets the part of a GPU which the pod's annotations ask for."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    asks = KAI_FRACTION in annotations or KAI_MEMORY in annotations
    return annotations.get(_KAI_CONTAINER) if asks else None


def without_claims_of(pod: Manifest, kinds: Iterable[GpuType]) -> Manifest:
    """Returns the pod without the claims by which it asks for GPUs of these types."""
    known = {kind.resource for kind in kinds}
    claims = pod["spec"].get("resourceClaims") or ()
    others = [one for one in claims if f"{CLAIM}/{one.get('resourceClaimTemplateName')}" not in known]
    return {**pod, "spec": {**pod["spec"], "resourceClaims": others}}


def without_gpus(annotations: Mapping[str, str]) -> dict[str, str]:
    """Returns the annotations that ask for no GPU."""
    return {key: value for key, value in annotations.items() if key not in {*ANNOTATIONS, _KAI_CONTAINER}}
