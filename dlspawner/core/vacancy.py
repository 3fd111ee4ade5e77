"""Vacancy: where something is free now, without anybody's leaving, and what people read about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dlspawner.core.amounts import shown
from dlspawner.core.charge import PodCharge
from dlspawner.core.jobs import Job
from dlspawner.core.placing import Nodes, first
from dlspawner.core.rooms import Room
from dlspawner.core.world import World


def first_free(request: Job, world: World, kept: frozenset[str]) -> Nodes | None:
    """The fullest nodes that can hold a job now; those with a name in ``kept`` are somebody else's.

    Preemptible jobs prefer nodes without guaranteed ones: those fill up nodes where their team's jobs are already, and
    would then find a borrower there, to be stopped while other nodes are empty.
    """

    def rooms(pod: PodCharge) -> Iterable[Room]:
        found = (
            room for room in world.pool(pod.resource, pod.placement).fitting(pod.gpus) if room.node.name not in kept
        )
        return _lenders_last(found, pod.resource) if request.preemptible and pod.gpus else found

    return first(request.charge.pods, rooms, lambda room, pod: room.now(pod.resource, request.id))


def _lenders_last(rooms: Iterable[Room], resource: str) -> Iterator[Room]:
    later = []
    for room in rooms:
        if room.guaranteed(resource) > 0:
            later.append(room)
        else:
            yield room
    yield from later


def room_sentence(request: Job, world: World) -> str:
    """How much is free, for somebody who can not start, and which nodes would be there as well."""
    pod, kind = max(request.charge.pods, key=lambda pod: pod.gpus), request.charge.gpu_type
    closed = _closed_sentence(pod, kind, world)
    if kind is None:
        return f"No node has so much CPU and memory free beside what comes with its GPUs.{closed}"
    pool = world.pool(pod.resource, pod.placement)
    idle, most = pool.idle, max(0, pool.most)
    said = f"Idle GPUs of type {kind}: {shown(idle)}, at most {shown(most)} on one node"
    if most >= pod.gpus:
        together = "not together with the CPU and memory that this job wants, or they are promised to others"
        return f"{said}, but {together}.{closed}"
    return f"{said}; this job needs {shown(pod.gpus)}{' on one node' if idle >= pod.gpus else ''}.{closed}"


def _closed_sentence(pod: PodCharge, kind: str | None, world: World) -> str:
    """Which nodes that could hold the pod take no jobs now, with a space before it; empty where there are none."""
    rooms = [world.rooms[name] for name in world.closed]
    nodes = [one.node for one in rooms if pod.placement.suits(one.node) and one.whole(pod.resource).holds(pod)]
    of_type = f" with GPUs of type {kind}" if kind else ""
    silent = sum(not node.ready for node in nodes)
    said = ""
    for count, one, several in (
        (len(nodes) - silent, "is closed for maintenance", "are closed for maintenance"),
        (silent, "does not answer", "do not answer"),
    ):
        if count:
            said += f" A node{of_type} {one}." if count == 1 else f" {count} nodes{of_type} {several}."
    return said
