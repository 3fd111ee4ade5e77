"""The free resources of one node, for each kind of job."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from dlspawner.core.job import Job
from dlspawner.core.nodes import Node, NodePlacement
from dlspawner.core.resources import Extended, PodRequest, add_up


class Resources(NamedTuple):
    """GPUs (milli) of one resource, CPU, memory and extended resources of one node; may be negative where too much is
    there.
    """

    gpus: int
    cpu_milli: int
    memory_bytes: int
    extended: Extended = ()

    def __add__(self, other: Resources) -> Resources:  # type: ignore[override]  # sums, unlike a tuple
        extended = add_up((self[3], other[3])) if other[3] else self[3]
        return Resources(self[0] + other[0], self[1] + other[1], self[2] + other[2], extended)

    def __sub__(self, other: Resources) -> Resources:
        """The difference, with the extended resources that this has."""
        return Resources(self[0] - other[0], self[1] - other[1], self[2] - other[2], _minus(self[3], other[3]))

    def holds(self, pod: PodRequest) -> bool:
        fits = pod.gpus <= self[0] and pod.cpu_milli <= self[1] and pod.memory_bytes <= self[2]
        return fits and (not pod.extended or self.has(pod.extended))

    def covers(self, want: Resources) -> bool:
        fits = want[0] <= self[0] and want[1] <= self[1] and want[2] <= self[2]
        return fits and (not want[3] or self.has(want[3]))

    def has(self, extended: Extended) -> bool:
        known = dict(self[3])
        return all(amount <= known.get(name, 0) for name, amount in extended)

    def positive(self) -> Resources:
        """The parts that are more than nothing; 0 for the others."""
        extended = tuple((name, max(0, amount)) for name, amount in self[3])
        return Resources(max(0, self[0]), max(0, self[1]), max(0, self[2]), extended)

    def meets(self, other: Resources) -> bool:
        """True if a part is more than nothing in both."""
        known = dict(other[3])
        return any(own > 0 and one > 0 for own, one in zip(self[:3], other[:3], strict=True)) or any(
            amount > 0 and known.get(name, 0) > 0 for name, amount in self[3]
        )


def _minus(amounts: Extended, other: Extended) -> Extended:
    if not other:
        return amounts
    taken = dict(other)
    return tuple((name, amount - taken.get(name, 0)) for name, amount in amounts)


def _of(pod: PodRequest) -> Resources:
    return Resources(pod.gpus, pod.cpu_milli, pod.memory_bytes, pod.extended)


NO_RESOURCES = Resources(0, 0, 0)
_Turn = tuple[int, datetime, str]  # by priority and time of submission


def resources_needed(pods: Iterable[PodRequest], resource: str) -> Resources:
    """Returns the resources that pods take together of one node, from the view of one resource."""
    gpus = cpu = memory = 0
    extended: Extended = ()
    for pod in pods:
        if pod.resource == resource:
            gpus += pod.gpus
        cpu += pod.cpu_milli
        memory += pod.memory_bytes
        extended += pod.extended
    return Resources(gpus, cpu, memory, add_up((extended,)) if extended else ())


@dataclass(slots=True)
class NodeInfo:
    """A node with what is held and promised there; kept by ``ClusterState``, which alone changes it."""

    node: Node
    gpus: dict[str, int] = field(default_factory=dict)  # free, by resource, those that are no GPUs too
    cpu_milli: int = 0
    memory_bytes: int = 0
    borrowed: dict[str, int] = field(default_factory=dict)  # held by preemptible jobs, by resource
    gpu_share: Resources = NO_RESOURCES  # CPU and memory that come with the GPUs of the node, held or idle
    cpu_with_gpus: int = 0  # that pods with GPUs hold
    memory_with_gpus: int = 0
    # Guaranteed or promised so, by resource and team.
    guaranteed_by_team: dict[str, dict[str, int]] = field(default_factory=dict)
    allocations: dict[str, tuple[PodRequest, ...]] = field(default_factory=dict)  # by job
    reservations: dict[str, tuple[PodRequest, ...]] = field(default_factory=dict)  # by job
    _turns: dict[str, _Turn] = field(default_factory=dict)  # of the jobs with a reservation
    preemptible: set[str] = field(default_factory=set)  # of the holders those that are preemptible
    terminating: dict[str, datetime | None] = field(default_factory=dict)  # and those that are leaving, when
    cache: dict[object, Any] = field(default_factory=dict)  # what was found out since the last change here
    size: object = None  # the same for nodes that differ in their names alone

    @classmethod
    def empty(cls, node: Node) -> NodeInfo:
        """The node without jobs; pods that are no jobs have theirs."""
        others = node.others
        gpus = dict(node.gpus)
        for resource, milli in others.gpus:
            gpus[resource] = gpus.get(resource, 0) - milli
        cpu, memory = node.cpu_milli - others.cpu_milli, node.memory_bytes - others.memory_bytes
        size = (node.gpus, cpu, memory, node.labels, node.taints, others)
        return cls(node, gpus, cpu, memory, size=hash(size))

    def allocate(self, job: Job, pod: PodRequest, leaving: bool) -> None:
        if self.cache:
            self.cache.clear()
        name, pods, holders = job.id, job.request.pods, self.allocations
        # Most jobs have one pod, and most states are built of many jobs: no tuple is made for each.
        holders[name] = pods if len(pods) == 1 else (*holders.get(name, ()), pod)
        if job.preemptible:
            self.preemptible.add(name)
        if leaving:
            self.terminating[name] = job.notice
        self._shift(job, pod, 1)

    def release(self, job: Job, pod: PodRequest) -> None:
        self.cache.clear()
        _take_out(self.allocations, job.id, pod)
        if job.id not in self.allocations:
            self.preemptible.discard(job.id)
            self.terminating.pop(job.id, None)
        self._shift(job, pod, -1)

    def reserve(self, job: Job, pod: PodRequest) -> None:
        self.cache.clear()
        self.reservations[job.id] = (*self.reservations.get(job.id, ()), pod)
        self._turns[job.id] = (-job.priority, job.submitted, job.id)
        self._count_reserved(job, pod, 1)

    def release_reservation(self, job: Job, pod: PodRequest) -> None:
        self.cache.clear()
        _take_out(self.reservations, job.id, pod)
        if job.id not in self.reservations:
            del self._turns[job.id]
        self._count_reserved(job, pod, -1)

    def _shift(self, job: Job, pod: PodRequest, sign: int) -> None:
        resource, cpu, memory = pod.resource, sign * pod.cpu_milli, sign * pod.memory_bytes
        self.cpu_milli -= cpu
        self.memory_bytes -= memory
        for name, amount in pod.extended:
            self.gpus[name] = self.gpus.get(name, 0) - sign * amount
        if resource:
            self.cpu_with_gpus += cpu
            self.memory_with_gpus += memory
            milli, free = sign * pod.gpus, self.gpus
            free[resource] = free.get(resource, 0) - milli
            if job.preemptible:
                borrowed = self.borrowed
                borrowed[resource] = borrowed.get(resource, 0) + milli
            else:
                self._count_guaranteed(job.team, resource, milli)

    def _count_reserved(self, job: Job, pod: PodRequest, sign: int) -> None:
        if pod.resource and not job.preemptible:
            self._count_guaranteed(job.team, pod.resource, sign * pod.gpus)

    def _count_guaranteed(self, team: str, resource: str, milli: int) -> None:
        teams = self.guaranteed_by_team.get(resource)
        if teams is None:
            teams = self.guaranteed_by_team[resource] = {}
        left = teams[team] = teams.get(team, 0) + milli
        if not left:
            del teams[team]

    def free(self, resource: str) -> Resources:
        """Returns the resources that are free now, reserved or not; for ``""`` those beside the GPUs' part."""
        gpus = self.gpus
        extended = tuple(gpus.items()) if len(gpus) > 1 or resource not in gpus else ()
        if resource:
            return Resources(gpus.get(resource, 0), self.cpu_milli, self.memory_bytes, extended)
        cpu = self.cpu_milli - max(0, self.gpu_share.cpu_milli - self.cpu_with_gpus)
        memory = self.memory_bytes - max(0, self.gpu_share.memory_bytes - self.memory_with_gpus)
        return Resources(0, cpu, memory, extended)

    def allocatable(self, resource: str) -> Resources:
        """Returns the resources of the node without any allocation."""
        node = self.node
        found = Resources(node.gpus_of(resource), node.cpu_milli, node.memory_bytes, node.gpus)
        return found if resource else found - self.gpu_share

    def guaranteed(self, resource: str) -> int:
        """Returns the resources held by guaranteed jobs and by foreign pods."""
        return self.node.gpus_of(resource) - self.gpus.get(resource, 0) - self.borrowed.get(resource, 0)

    def guaranteed_and_reserved(self, resource: str) -> int:
        """Returns the resources of guaranteed jobs, held or reserved, and foreign pods: borrowers leave for them."""
        return dict(self.node.others.gpus).get(resource, 0) + sum(self.guaranteed_by_team.get(resource, {}).values())

    def available(self, resource: str, but: str = "") -> Resources:
        """Returns the resources that may be taken now; the reservation of the job ``but`` is its own.

        Reservations of others are theirs, except as far as victims will make up for them: for those of earlier jobs
        only the ones that leave next, since the later ones do not help the first reservation. A job without a
        reservation here is later than all that have one.
        """
        free = self.free(resource)
        if not self.reservations:
            return free
        back = self.releasing(resource)
        taken = (self._reserved(resource, but) - back).positive()
        times = {at for at in self.terminating.values() if at is not None}
        if len(times) > 1:
            soon = back - self.releasing_after(min(times), resource)
            first = (self._reserved(resource, but, self._turns.get(but)) - soon).positive()
            taken += (first - taken).positive()
        return free - taken

    def available_after_termination(self, resource: str, but: str = "") -> Resources:
        """Returns the resources available after the terminating jobs are gone."""
        if but in self.reservations:
            return self.free(resource) + self.releasing(resource) - self._reserved(resource, but)
        found: Resources | None = self.cache.get(("soon", resource))
        if found is None:
            found = self.free(resource) + self.releasing(resource) - self._reserved(resource, "")
            self.cache["soon", resource] = found
        return found

    def releasing(self, resource: str) -> Resources:
        """Returns the resources that terminating jobs give back."""
        if not self.terminating:
            return NO_RESOURCES
        found: Resources | None = self.cache.get(("leaving", resource))
        if found is None:
            found = resources_needed((pod for name in self.terminating for pod in self.allocations[name]), resource)
            self.cache["leaving", resource] = found
        return found

    def releasing_after(self, moment: datetime | None, resource: str, without: Collection[str] = ()) -> Resources:
        """Returns the part of it that is given back later than at a moment; without one nothing is later."""
        later = [name for name, at in self.terminating.items() if at is not None and moment is not None and at > moment]
        return resources_needed(
            (pod for name in later if name not in without for pod in self.allocations[name]), resource
        )

    def _reserved(self, resource: str, but: str, before: _Turn | None = None) -> Resources:
        """Returns the resources that other jobs were promised; ``before``: those before a job's turn alone."""
        if not self.reservations:
            return NO_RESOURCES
        turns = self._turns
        names = [name for name in self.reservations if name != but and (before is None or turns[name] < before)]
        return resources_needed((pod for name in names for pod in self.reservations[name]), resource)


def _take_out(pods: dict[str, tuple[PodRequest, ...]], job: str, pod: PodRequest) -> None:
    index = pods[job].index(pod)
    rest = pods[job][:index] + pods[job][index + 1 :]
    if rest:
        pods[job] = rest
    else:
        del pods[job]


Nodes = tuple[str, ...]
SpaceOf = Callable[[NodeInfo, PodRequest], Resources]


def place_best(
    pods: tuple[PodRequest, ...],
    infos: Iterable[NodeInfo],
    space: SpaceOf,
    rank: Callable[[NodeInfo, Resources], Any],
) -> Nodes | None:
    """Returns for each pod the node of the smallest rank that can hold it; the largest pod chooses first."""
    candidates = list(infos)
    taken: dict[str, Resources] = {}
    nodes = [""] * len(pods)
    for index in _largest_first(pods):
        pod = pods[index]
        best: tuple[Any, str] | None = None
        for info in candidates:
            name = info.node.name
            left = space(info, pod)
            if name in taken:
                left = left - taken[name]
            if left.holds(pod) and pod.placement.matches(info.node):
                candidate = (rank(info, left), name)
                if best is None or candidate < best:
                    best = candidate
        if best is None:
            return None
        nodes[index] = best[1]
        taken[best[1]] = taken.get(best[1], NO_RESOURCES) + _of(pod)
    return tuple(nodes)


def place_first(
    pods: tuple[PodRequest, ...], infos: Callable[[PodRequest], Iterable[NodeInfo]], space: SpaceOf
) -> Nodes | None:
    """Returns for each pod the first node that can hold it; the largest pod chooses first."""
    taken: dict[str, Resources] = {}
    nodes = [""] * len(pods)
    for index in _largest_first(pods):
        pod = pods[index]
        for info in infos(pod):
            name = info.node.name
            if (space(info, pod) - taken.get(name, NO_RESOURCES)).holds(pod):
                nodes[index] = name
                taken[name] = taken.get(name, NO_RESOURCES) + _of(pod)
                break
        else:
            return None
    return tuple(nodes)


def _largest_first(pods: tuple[PodRequest, ...]) -> list[int]:
    if len(pods) == 1:
        return [0]

    def size(index: int) -> tuple[int, ...]:
        pod = pods[index]
        return (-pod.gpus, -sum(amount for _, amount in pod.extended), -pod.cpu_milli, index)

    return sorted(range(len(pods)), key=size)


class NodePool:
    """Nodes that match a placement and have a resource, by free GPUs; without a resource by the number of GPUs."""

    __slots__ = ("_level", "_placement", "_resource", "levels", "node_infos")

    def __init__(self, resource: str, placement: NodePlacement, infos: Iterable[NodeInfo]) -> None:
        self._resource, self._placement = resource, placement
        self.node_infos: dict[str, NodeInfo] = {}
        self.levels: dict[int, list[str]] = {}  # names in their order
        self._level: dict[str, int] = {}
        for info in infos:
            self.put(info)

    def put(self, info: NodeInfo) -> None:
        name = info.node.name
        self.remove(name)
        if not info.node.open or not self._placement.matches(info.node):
            return
        if self._resource and not info.node.gpus_of(self._resource):
            return
        self.node_infos[name] = info
        self._enter(info)

    def remove(self, name: str) -> None:
        if self.node_infos.pop(name, None) is not None:
            self._leave(name)

    def update(self, info: NodeInfo) -> None:
        name = info.node.name
        if name in self.node_infos and self._resource and self._level[name] != info.gpus.get(self._resource, 0):
            self._leave(name)
            self._enter(info)

    def fitting(self, gpus: int) -> Iterator[NodeInfo]:
        """Yields the nodes with so many free milli-GPUs, the fullest first, then by name."""
        for level in sorted(level for level in self.levels if level >= gpus or not self._resource):
            yield from (self.node_infos[name] for name in self.levels[level])

    def least_allocated(self) -> Iterator[NodeInfo]:
        """Yields all nodes, the emptiest first, then by name."""
        for level in sorted(self.levels, reverse=True):
            yield from (self.node_infos[name] for name in self.levels[level])

    @property
    def most_free(self) -> int:
        return max(self.levels, default=0) if self._resource else 0

    @property
    def total_free(self) -> int:
        return sum(level * len(names) for level, names in self.levels.items() if level > 0) if self._resource else 0

    def _enter(self, info: NodeInfo) -> None:
        name = info.node.name
        level = info.gpus.get(self._resource, 0) if self._resource else sum(milli for _, milli in info.node.gpus)
        self._level[name] = level
        insort(self.levels.setdefault(level, []), name)

    def _leave(self, name: str) -> None:
        level = self._level.pop(name)
        names = self.levels[level]
        del names[bisect_left(names, name)]
        if not self.levels[level]:
            del self.levels[level]
