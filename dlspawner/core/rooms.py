"""Rooms: what is free on one node, and for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dlspawner.core.charge import PodCharge
from dlspawner.core.jobs import Job
from dlspawner.core.nodes import Node


class Space(NamedTuple):
    """GPUs (milli) of one resource, CPU and memory of one node; may be negative where too much is there."""

    gpus: int
    cpu_milli: int
    memory_bytes: int

    def __add__(self, other: tuple[int, ...]) -> Space:  # type: ignore[override]  # sums, unlike a tuple
        return Space(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def __sub__(self, other: tuple[int, ...]) -> Space:
        return Space(self[0] - other[0], self[1] - other[1], self[2] - other[2])

    def holds(self, pod: PodCharge) -> bool:
        return pod.gpus <= self[0] and pod.cpu_milli <= self[1] and pod.memory_bytes <= self[2]


NOTHING = Space(0, 0, 0)


def needs(pods: Iterable[PodCharge], resource: str) -> Space:
    """What pods take together of one node, seen by somebody who wants one resource."""
    gpus = cpu = memory = 0
    for pod in pods:
        if pod.resource == resource:
            gpus += pod.gpus
        cpu += pod.cpu_milli
        memory += pod.memory_bytes
    return Space(gpus, cpu, memory)


@dataclass(slots=True)
class Room:
    """A node with what is held and promised there; kept by ``World``, which alone changes it."""

    node: Node
    gpus: dict[str, int] = field(default_factory=dict)  # free, by resource
    cpu_milli: int = 0
    memory_bytes: int = 0
    borrowed: dict[str, int] = field(default_factory=dict)  # held by preemptible jobs, by resource
    kept: Space = NOTHING  # CPU and memory that come with the GPUs of the node, held or idle
    cpu_with_gpus: int = 0  # that pods with GPUs hold
    memory_with_gpus: int = 0
    entitled: dict[str, dict[str, int]] = field(default_factory=dict)  # guaranteed or promised so, by resource and team
    holders: dict[str, tuple[PodCharge, ...]] = field(default_factory=dict)  # by job
    promises: dict[str, tuple[PodCharge, ...]] = field(default_factory=dict)  # by job
    lent: set[str] = field(default_factory=set)  # of the holders those that are preemptible
    leavers: set[str] = field(default_factory=set)  # and those that are leaving
    memo: dict[object, Any] = field(default_factory=dict)  # what was found out since the last change here

    @classmethod
    def empty(cls, node: Node) -> Room:
        """The node without jobs; pods that are no jobs have theirs."""
        others = node.others
        gpus = dict(node.gpus)
        for resource, milli in others.gpus:
            gpus[resource] = gpus.get(resource, 0) - milli
        return cls(node, gpus, node.cpu_milli - others.cpu_milli, node.memory_bytes - others.memory_bytes)

    def take(self, job: Job, pod: PodCharge, leaving: bool) -> None:
        if self.memo:
            self.memo.clear()
        name, pods, holders = job.id, job.charge.pods, self.holders
        # Most jobs have one pod, and most worlds are built of many jobs: no tuple is made for each.
        holders[name] = pods if len(pods) == 1 else (*holders.get(name, ()), pod)
        if job.preemptible:
            self.lent.add(name)
        if leaving:
            self.leavers.add(name)
        self._shift(job, pod, 1)

    def give(self, job: Job, pod: PodCharge) -> None:
        self.memo.clear()
        _take_out(self.holders, job.id, pod)
        if job.id not in self.holders:
            self.lent.discard(job.id)
            self.leavers.discard(job.id)
        self._shift(job, pod, -1)

    def promise(self, job: Job, pod: PodCharge) -> None:
        self.memo.clear()
        self.promises[job.id] = (*self.promises.get(job.id, ()), pod)
        self._entitle_promised(job, pod, 1)

    def break_promise(self, job: Job, pod: PodCharge) -> None:
        self.memo.clear()
        _take_out(self.promises, job.id, pod)
        self._entitle_promised(job, pod, -1)

    def _shift(self, job: Job, pod: PodCharge, sign: int) -> None:
        resource, cpu, memory = pod.resource, sign * pod.cpu_milli, sign * pod.memory_bytes
        self.cpu_milli -= cpu
        self.memory_bytes -= memory
        if resource:
            self.cpu_with_gpus += cpu
            self.memory_with_gpus += memory
            milli, free = sign * pod.gpus, self.gpus
            free[resource] = free.get(resource, 0) - milli
            if job.preemptible:
                borrowed = self.borrowed
                borrowed[resource] = borrowed.get(resource, 0) + milli
            else:
                self._entitle(job.team, resource, milli)

    def _entitle_promised(self, job: Job, pod: PodCharge, sign: int) -> None:
        if pod.resource and not job.preemptible:
            self._entitle(job.team, pod.resource, sign * pod.gpus)

    def _entitle(self, team: str, resource: str, milli: int) -> None:
        teams = self.entitled.get(resource)
        if teams is None:
            teams = self.entitled[resource] = {}
        left = teams[team] = teams.get(team, 0) + milli
        if not left:
            del teams[team]

    def free(self, resource: str) -> Space:
        """What nobody holds now, promised or not; without GPUs (``""``) what is beside that which comes with them."""
        if resource:
            return Space(self.gpus.get(resource, 0), self.cpu_milli, self.memory_bytes)
        cpu = self.cpu_milli - max(0, self.kept.cpu_milli - self.cpu_with_gpus)
        return Space(0, cpu, self.memory_bytes - max(0, self.kept.memory_bytes - self.memory_with_gpus))

    def whole(self, resource: str) -> Space:
        """What there would be if nobody held anything."""
        node = self.node
        found = Space(node.gpus_of(resource), node.cpu_milli, node.memory_bytes)
        return found if resource else found - self.kept

    def guaranteed(self, resource: str) -> int:
        """What jobs that are not preemptible hold, and pods that are no jobs."""
        return self.node.gpus_of(resource) - self.gpus.get(resource, 0) - self.borrowed.get(resource, 0)

    def staying(self, resource: str) -> int:
        """What guaranteed jobs hold there or were promised, and pods that are no jobs: borrowers leave for them."""
        return dict(self.node.others.gpus).get(resource, 0) + sum(self.entitled.get(resource, {}).values())

    def now(self, resource: str, but: str = "") -> Space:
        """What may be taken now; the promise of the job ``but`` is its own.

        What is promised to others is theirs, except as far as those who leave will make up for it.
        """
        free = self.free(resource)
        if not self.promises:
            return free
        gpus, cpu, memory = self._promised(resource, but) - self.leaving(resource)
        return free - (max(0, gpus), max(0, cpu), max(0, memory))

    def soon(self, resource: str, but: str = "") -> Space:
        """What may be taken when those who leave are gone."""
        if but in self.promises:
            return self.free(resource) + self.leaving(resource) - self._promised(resource, but)
        found: Space | None = self.memo.get(("soon", resource))
        if found is None:
            found = self.free(resource) + self.leaving(resource) - self._promised(resource, "")
            self.memo["soon", resource] = found
        return found

    def leaving(self, resource: str) -> Space:
        """What those give back who leave."""
        if not self.leavers:
            return NOTHING
        found: Space | None = self.memo.get(("leaving", resource))
        if found is None:
            found = needs((pod for name in self.leavers for pod in self.holders[name]), resource)
            self.memo["leaving", resource] = found
        return found

    def _promised(self, resource: str, but: str) -> Space:
        if not self.promises:
            return NOTHING
        return needs((pod for name, pods in self.promises.items() if name != but for pod in pods), resource)


def _take_out(pods: dict[str, tuple[PodCharge, ...]], job: str, pod: PodCharge) -> None:
    index = pods[job].index(pod)
    rest = pods[job][:index] + pods[job][index + 1 :]
    if rest:
        pods[job] = rest
    else:
        del pods[job]
