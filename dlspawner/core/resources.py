"""The resources of a job: read from its *final* pod manifests, with the changes of all hooks.

* A pod asks for the most that it needs at any moment, as Kubernetes counts: its containers together with all sidecars
  (init containers that restart always), or one init container with the sidecars before it; and its overhead.
* GPUs are of one type in all of a job's pods, in units of that type. The type follows from the resource and from the
  nodes that the pod demands. What may be one of several types is refused, never guessed: a guess too cheap would be a
  way around a quota.
* What looks like a GPU, or is of a known GPU vendor, and is of no type is refused, and so are claims of
  devices by another template than those of GPU types.

`strip_manifest` keeps the fields that the Manager needs: no environment, no token, no command.

https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dlspawner.core import gpus, units
from dlspawner.core.config import ClusterConfig, CpuMemory, GpuType
from dlspawner.core.decisions import Reason, Refuse
from dlspawner.core.nodes import ForeignUsage, NodePlacement, read_placement
from dlspawner.core.text import show
from dlspawner.core.units import GPU, Manifest, counted

MOST_GPUS = 1_000_000

# Extended resources that give a share of an accelerator, by the words in their names.
_ACCELERATOR = re.compile(r"gpu|mig-|tpu|npu|xpu|gaudi|neuron|fpga|cuda|mlu|dcu|gcu|ascend|accelerator")

# What vendors of GPUs sell beside them, by the words in the names.
_NETWORK = re.compile(r"rdma|roce|sriov|infiniband|hostdev|nic|vf")

_Amounts = dict[str, Fraction]
Extended = tuple[tuple[str, int], ...]  # amounts of extended resources, in thousandths as GPUs, by name


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The request of one pod to its node; ``resource`` is ``""`` and ``gpus`` (milli) 0 without GPUs.

    ``ports``: so many of the host's. ``extended``: its extended resources that are no GPUs.
    """

    resource: str = ""
    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    placement: NodePlacement = field(default_factory=NodePlacement)
    ports: int = 0
    extended: Extended = ()


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The resource request of a job: the GPU type's name, ``None`` without GPUs, and the request of each pod."""

    gpu_type: str | None = None
    pods: tuple[PodRequest, ...] = (PodRequest(),)
    gpus: int = field(init=False, repr=False, compare=False)  # of all pods, in milli-GPUs; asked for everywhere
    extended: Extended = field(init=False, repr=False, compare=False)  # of all pods
    _hash: int = field(init=False, repr=False, compare=False)  # of what most requests differ in, in any process

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", sum(pod.gpus for pod in self.pods))
        object.__setattr__(self, "extended", add_up(pod.extended for pod in self.pods))
        numbers = [(pod.cpu_milli, pod.memory_bytes) for pod in self.pods[:1]]
        object.__setattr__(self, "_hash", hash((self.gpus, *numbers)))

    def __hash__(self) -> int:
        return self._hash


def add_up(all_of: Iterable[Extended]) -> Extended:
    total: dict[str, int] = {}
    for amounts in all_of:
        for name, amount in amounts:
            total[name] = total.get(name, 0) + amount
    return tuple(sorted(total.items())) if total else ()


class _Wrong(Exception):
    def __init__(self, reason: Reason, sentence: str, maximum: int | None = None) -> None:
        super().__init__(sentence)
        self.refuse = Refuse(reason, sentence, maximum)


def request_of(pods: Sequence[Manifest], cluster: ClusterConfig) -> ResourceRequest | Refuse:
    """Returns the resource request of a job's pods, or the refusal, also of malformed manifests."""
    try:
        read = [_read(pod, cluster) for pod in pods]
        found = _one_type(read, cluster)
        charged = ResourceRequest(
            found.name if found else None,
            tuple(_pod_request(one, found, cluster) for one in read),
        )
        _check(charged, read, found, cluster)
    except _Wrong as wrong:
        return wrong.refuse
    except (AttributeError, TypeError, ValueError):
        return Refuse(Reason.MALFORMED, "The pod's manifest is not one that Kubernetes would take.")
    return charged


def foreign_usage(pods: Iterable[Manifest]) -> ForeignUsage:
    """Returns the resources that pods without a job hold of their node, for ``Node.others``; ended pods hold nothing.

    Kubernetes has taken these pods, so nothing is refused; what can not be read counts as nothing.
    """
    total: _Amounts = {}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        spec = pod.get("spec") or {}
        try:
            total = _sum([total, _asked(spec)])
        except (_Wrong, ValueError):
            continue
        try:
            total = _sum([total, gpus.asked_without_resource(dict(pod))])
        except ValueError:
            continue
    held = tuple(sorted((name, GPU * int(amount)) for name, amount in total.items() if "/" in name))
    cpu, memory = total.get("cpu", Fraction(0)), total.get("memory", Fraction(0))
    return ForeignUsage(held, units.cpu_milli(cpu), units.memory_bytes(memory))


@dataclass(frozen=True, slots=True)
class _Pod:
    """A manifest read: what it asks of its node (``needs``) and how much it may use at most (``limits``)."""

    needs: _Amounts
    limits: _Amounts
    placement: NodePlacement
    containers: tuple[_Amounts, ...]

    def resources(self, cluster: ClusterConfig) -> list[str]:
        return sorted({name for kind in cluster.gpu_types for name in kind.asked_by if self.needs.get(name)})


def _read(pod: Manifest, cluster: ClusterConfig) -> _Pod:
    spec: Mapping[str, Any] = pod.get("spec") or {}
    containers, inits = list(spec.get("containers") or ()), list(spec.get("initContainers") or ())
    for container in (*containers, *inits):
        _check_names(container, cluster)
    limits = _most([*_moments(containers, inits, _limits), _limits(dict(spec))])
    others = gpus.asked_without_resource(dict(pod))
    for name in others:
        if name.startswith(f"{gpus.CLAIM}/") and name not in cluster.gpu_resources:
            sentence = "Devices can not be claimed here (resourceClaims); ask for GPUs by their type."
            raise _Wrong(Reason.NOT_ALLOWED, sentence)
        _check_name(name, cluster)
    each = tuple(_needs(container) for container in (*containers, *inits))
    return _Pod(_sum([_asked(spec), others]), limits, read_placement(spec), each)


def _asked(spec: Mapping[str, Any]) -> _Amounts:
    """The most that a pod asks of its node at any moment."""
    most = _most(_moments(list(spec.get("containers") or ()), list(spec.get("initContainers") or ()), _needs))
    # What the pod says as a whole wins over what its containers say of CPU and memory; the larger is the safer.
    return _sum([_most([most, _needs(dict(spec))]), _amounts(spec.get("overhead") or {})])


def _moments(
    containers: Sequence[Manifest], inits: Sequence[Manifest], read: Callable[[Manifest], _Amounts]
) -> list[_Amounts]:
    """Returns the containers that run at each moment of the pod's start; at the last moment all of them run."""
    sidecars: list[_Amounts] = []
    moments = []
    for init in inits:
        moments.append(_sum([*sidecars, read(init)]))
        if init.get("restartPolicy") == "Always":  # a sidecar
            sidecars.append(read(init))
    return [*moments, _sum([*sidecars, *(read(one) for one in containers)])]


def _needs(container: Manifest) -> _Amounts:
    """Requests, and limits where nothing is requested, as the API server fills them in; of GPUs the larger."""
    resources = container.get("resources") or {}
    limits, requests = _amounts(resources.get("limits") or {}), _amounts(resources.get("requests") or {})
    return {
        name: max(limits.get(name, Fraction(0)), requests.get(name, Fraction(0)))
        if "/" in name
        else requests.get(name, limits.get(name, Fraction(0)))
        for name in {*limits, *requests}
    }


def _limits(container: Manifest) -> _Amounts:
    resources = container.get("resources") or {}
    return _most([_amounts(resources.get("limits") or {}), _amounts(resources.get("requests") or {})])


def _sum(all_of: Iterable[_Amounts]) -> _Amounts:
    total: _Amounts = {}
    for amounts in all_of:
        for name, amount in amounts.items():
            total[name] = total.get(name, Fraction(0)) + amount
    return total


def _most(all_of: Iterable[_Amounts]) -> _Amounts:
    most: _Amounts = {}
    for amounts in all_of:
        for name, amount in amounts.items():
            most[name] = max(most.get(name, Fraction(0)), amount)
    return most


def _amounts(written: Mapping[str, object]) -> _Amounts:
    return {str(name): _amount(str(name), value) for name, value in written.items() if value is not None}


def _amount(name: str, value: object) -> Fraction:
    counted = "/" in name
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        parsed = units.parse_quantity(str(value))
        if parsed is not None and counted and parsed.denominator != 1:
            raise _Wrong(Reason.MALFORMED, f"{name} must be a whole number; the pod asks for {show(value)}.")
        if parsed is not None and not (counted and parsed > MOST_GPUS):
            return parsed
    must = (
        f"{name} must be a whole number from 0 to {MOST_GPUS:,}"
        if counted
        else f"{name} must be an amount such as 2, “500m” or “4Gi”"
    )
    raise _Wrong(Reason.MALFORMED, f"{must}; the pod asks for {show(value)}.")


def _check_names(container: Manifest, cluster: ClusterConfig) -> None:
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        for name, value in (resources.get(part) or {}).items():
            if value is not None and _amount(name, value):
                _check_name(name, cluster)


def _check_name(name: str, cluster: ClusterConfig) -> None:
    if _is_unknown_gpu(name, cluster):
        have = ", ".join(sorted({kind.resource for kind in cluster.gpu_types})) or "none"
        sentence = f"The pod asks for {show(name)}, which is no GPU type of this cluster. It has: {have}."
        raise _Wrong(Reason.UNKNOWN_TYPE, sentence)


def _check_parts(pod: _Pod, found: GpuType | None, cluster: ClusterConfig) -> None:
    """Raises _Wrong for a part of a GPU of another size than the type's: a larger one would cost as little."""
    names = sorted({name for kind in cluster.gpu_types for name, _ in kind.beside})
    for container in pod.containers if names else ():
        said = dict(found.beside) if found and container.get(found.resource) else {}
        for name in names:
            asked, wanted = int(container.get(name, 0)), said.get(name, 0)
            if asked != wanted:
                which = f"of type {found.name}" if said and found else "without a GPU"
                sentence = f"{name} must be {wanted} in a container {which}; the pod asks for {asked}."
                raise _Wrong(Reason.NOT_ALLOWED, sentence)


def _is_unknown_gpu(name: str, cluster: ClusterConfig) -> bool:
    """True if a resource may be an uncounted GPU, or a share of one: every resource of a known vendor may be."""
    if "/" not in name or name in cluster.gpu_resources or any(one.name == name for one in cluster.extended_resources):
        return False
    vendors = {one.split("/")[0] for one in cluster.gpu_resources}
    vendor, resource = name.lower().split("/", 1)
    return bool(_ACCELERATOR.search(name.lower())) or (vendor in vendors and not _NETWORK.search(resource))


def _one_type(pods: Sequence[_Pod], cluster: ClusterConfig) -> GpuType | None:
    found = {kind.name: kind for kind in (_type(pod, cluster) for pod in pods) if kind is not None}
    if len(found) > 1:
        raise _Wrong(Reason.NOT_ALLOWED, f"A job has GPUs of one type; this one asks for {' and '.join(found)}.")
    return next(iter(found.values()), None)


def _type(pod: _Pod, cluster: ClusterConfig) -> GpuType | None:
    resources = pod.resources(cluster)
    if not resources:
        return None
    if len(resources) > 1:
        raise _Wrong(Reason.NOT_ALLOWED, f"A job has GPUs of one type; this one asks for {' and '.join(resources)}.")
    kinds = [kind for kind in cluster.gpu_types if resources[0] in kind.asked_by]
    possible = [kind for kind in kinds if not _contradicts(pod.placement, kind)]
    if len(possible) == 1:
        return possible[0]
    if possible:
        names = " or ".join(kind.name for kind in possible)
        raise _Wrong(
            Reason.UNKNOWN_TYPE,
            f"The pod asks for {resources[0]} and may get {names}: choose the type, or let the pod select its nodes.",
        )
    names = ", ".join(kind.name for kind in kinds)
    raise _Wrong(
        Reason.UNKNOWN_TYPE, f"The pod asks for {resources[0]} on nodes that have none of its types ({names})."
    )


def _contradicts(placement: NodePlacement, kind: GpuType) -> bool:
    return any(
        (allowed := _values(placement, key)) is not None and value not in allowed for key, value in kind.node_selector
    )


def _values(placement: NodePlacement, key: str) -> set[str] | None:
    """The values of a label that the pod's nodes may have; ``None`` for any. A term that leaves it open opens all."""
    selected = {value for name, value in placement.selector if name == key}
    if selected:
        return selected
    allowed: set[str] = set()
    for term in placement.terms:
        named = [set(one.values) for one in term if one.key == key and one.operator == "In"]
        if not named:
            return None
        allowed |= set.intersection(*named)
    return allowed if placement.terms else None


def _pod_request(pod: _Pod, kind: GpuType | None, cluster: ClusterConfig) -> PodRequest:
    others = (name for name in pod.needs if "/" in name and name not in cluster.gpu_resources)
    milli = kind.milli_of({name: int(pod.needs.get(name, 0)) for name in kind.asked_by}) if kind else 0
    return PodRequest(
        resource=kind.resource if kind and milli else "",
        gpus=milli,
        cpu_milli=units.cpu_milli(pod.needs.get("cpu", Fraction(0))),
        memory_bytes=units.memory_bytes(pod.needs.get("memory", Fraction(0))),
        placement=pod.placement,
        extended=tuple(sorted((name, GPU * int(pod.needs[name])) for name in others if pod.needs[name])),
    )


def _check(charged: ResourceRequest, pods: Sequence[_Pod], kind: GpuType | None, cluster: ClusterConfig) -> None:
    """The limits of a job of any team: GPUs and extended resources per job, CPU and memory per GPU."""
    if kind is not None and charged.gpus > (most := kind.max_per_job * kind.milli):
        raise _Wrong(
            Reason.EXCEEDS_LIMIT,
            f"A job may have {counted(most)} of type {kind.name}; this one asks for {units.shown(charged.gpus)}.",
            most,
        )
    asked_for = dict(charged.extended)
    for one in cluster.extended_resources:
        if one.max_per_job is not None and (amount := asked_for.get(one.name, 0)) > one.max_per_job * GPU:
            raise _Wrong(
                Reason.EXCEEDS_LIMIT,
                f"A job may have {one.max_per_job} {cluster.resource_title(one.name)}; this one asks for "
                f"{amount // GPU}.",
            )
    for pod in pods:
        _check_parts(pod, kind, cluster)
    without = sum(1 for pod in charged.pods if not pod.gpus)
    asked_units = kind.units(charged.gpus) if kind else 0
    share = kind.per_gpu.times(asked_units) if kind else CpuMemory(0, 0)
    more = cluster.cpu_only_max.times(without)
    limit = CpuMemory(share.cpu_milli + more.cpu_milli, share.memory_bytes + more.memory_bytes)
    basis = f"{asked_units} × {kind.name}" if kind else "a job without GPUs"
    asked = _sum(pod.limits for pod in pods)
    cpu = units.cpu_milli(asked.get("cpu", Fraction(0)))
    memory = units.memory_bytes(asked.get("memory", Fraction(0)))
    if cpu > limit.cpu_milli:
        raise _Wrong(
            Reason.NODE_TOO_SMALL,
            f"CPUs must be at most {units.cpu(limit.cpu_milli)} for {basis}; the pod asks for {units.cpu(cpu)}.",
        )
    if memory > limit.memory_bytes:
        raise _Wrong(
            Reason.NODE_TOO_SMALL,
            f"Memory must be at most {units.size(limit.memory_bytes)} for {basis}; "
            f"the pod asks for {units.size(memory)}.",
        )


_OF_SPEC = ("nodeSelector", "nodeName", "tolerations", "overhead", "resources", "resourceClaims")
_OF_CONTAINER = ("name", "resources", "restartPolicy")


def strip_manifest(pod: Manifest) -> dict[str, Any]:
    """Returns the part of a pod that `request_of` and `read_placement` read; its resource request is the same."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    kept = {key: spec[key] for key in _OF_SPEC if spec.get(key)}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    if affinity:
        kept["affinity"] = {"nodeAffinity": affinity}
    for part in ("containers", "initContainers"):
        if spec.get(part):
            kept[part] = _containers(spec[part])
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    asking = {key: annotations[key] for key in gpus.ANNOTATIONS if key in annotations}
    return {"spec": kept} | ({"metadata": {"annotations": asking}} if asking else {})


def _containers(containers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: one[key] for key in _OF_CONTAINER if one.get(key)} for one in containers]
