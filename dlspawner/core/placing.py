"""Placing: on which nodes the pods of a job fit, each on one, together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dlspawner.core.charge import PodRequest
from dlspawner.core.rooms import NO_RESOURCES, NodeInfo, Resources

Nodes = tuple[str, ...]
SpaceOf = Callable[[NodeInfo, PodRequest], Resources]


def place_best(
    pods: tuple[PodRequest, ...],
    rooms: Iterable[NodeInfo],
    space: SpaceOf,
    rank: Callable[[NodeInfo, Resources], Any],
) -> Nodes | None:
    """A node for each pod, the room of the smallest rank that can hold it; the largest pod chooses first."""
    candidates = list(rooms)
    taken: dict[str, Resources] = {}
    nodes = [""] * len(pods)
    for index in _largest_first(pods):
        pod = pods[index]
        best: tuple[Any, str] | None = None
        for room in candidates:
            name = room.node.name
            left = space(room, pod)
            if name in taken:
                left = left - taken[name]
            if left.holds(pod) and pod.placement.matches(room.node):
                candidate = (rank(room, left), name)
                if best is None or candidate < best:
                    best = candidate
        if best is None:
            return None
        nodes[index] = best[1]
        taken[best[1]] = taken.get(best[1], NO_RESOURCES) + Resources(pod.gpus, pod.cpu_milli, pod.memory_bytes)
    return tuple(nodes)


def place_first(
    pods: tuple[PodRequest, ...], rooms: Callable[[PodRequest], Iterable[NodeInfo]], space: SpaceOf
) -> Nodes | None:
    """A node for each pod, the first room that can hold it; the largest pod chooses first."""
    taken: dict[str, Resources] = {}
    nodes = [""] * len(pods)
    for index in _largest_first(pods):
        pod = pods[index]
        for room in rooms(pod):
            name = room.node.name
            if (space(room, pod) - taken.get(name, NO_RESOURCES)).holds(pod):
                nodes[index] = name
                taken[name] = taken.get(name, NO_RESOURCES) + Resources(pod.gpus, pod.cpu_milli, pod.memory_bytes)
                break
        else:
            return None
    return tuple(nodes)


def _largest_first(pods: tuple[PodRequest, ...]) -> list[int]:
    if len(pods) == 1:
        return [0]
    return sorted(range(len(pods)), key=lambda index: (-pods[index].gpus, -pods[index].cpu_milli, index))
