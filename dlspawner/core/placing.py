"""Placing: on which nodes the pods of a job fit, each on one, together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dlspawner.core.charge import PodCharge
from dlspawner.core.rooms import NOTHING, Room, Space

Nodes = tuple[str, ...]
SpaceOf = Callable[[Room, PodCharge], Space]


def ranked(
    pods: tuple[PodCharge, ...],
    rooms: Iterable[Room],
    space: SpaceOf,
    rank: Callable[[Room, Space], Any],
) -> Nodes | None:
    """A node for each pod, the room of the smallest rank that can hold it; the largest pod chooses first."""
    candidates = list(rooms)
    taken: dict[str, Space] = {}
    nodes = [""] * len(pods)
    for index in _largest_first(pods):
        pod = pods[index]
        best: tuple[Any, str] | None = None
        for room in candidates:
            name = room.node.name
            left = space(room, pod)
            if name in taken:
                left = left - taken[name]
            if left.holds(pod) and pod.placement.suits(room.node):
                candidate = (rank(room, left), name)
                if best is None or candidate < best:
                    best = candidate
        if best is None:
            return None
        nodes[index] = best[1]
        taken[best[1]] = taken.get(best[1], NOTHING) + Space(pod.gpus, pod.cpu_milli, pod.memory_bytes)
    return tuple(nodes)


def first(pods: tuple[PodCharge, ...], rooms: Callable[[PodCharge], Iterable[Room]], space: SpaceOf) -> Nodes | None:
    """A node for each pod, the first room that can hold it; the largest pod chooses first."""
    taken: dict[str, Space] = {}
    nodes = [""] * len(pods)
    for index in _largest_first(pods):
        pod = pods[index]
        for room in rooms(pod):
            name = room.node.name
            if (space(room, pod) - taken.get(name, NOTHING)).holds(pod):
                nodes[index] = name
                taken[name] = taken.get(name, NOTHING) + Space(pod.gpus, pod.cpu_milli, pod.memory_bytes)
                break
        else:
            return None
    return tuple(nodes)


def _largest_first(pods: tuple[PodCharge, ...]) -> list[int]:
    if len(pods) == 1:
        return [0]
    return sorted(range(len(pods)), key=lambda index: (-pods[index].gpus, -pods[index].cpu_milli, index))
