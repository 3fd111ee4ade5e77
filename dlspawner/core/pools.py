"""Pools: the open nodes where pods of one kind may be, in the order of what is free there."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from dlspawner.core.nodes import NodePlacement
from dlspawner.core.rooms import NodeInfo


class NodePool:
    """Rooms that suit a placement and have a resource, by free GPUs; without a resource by how many GPUs there are."""

    __slots__ = ("_level", "_placement", "_resource", "levels", "rooms")

    def __init__(self, resource: str, placement: NodePlacement, rooms: Iterable[NodeInfo]) -> None:
        self._resource, self._placement = resource, placement
        self.rooms: dict[str, NodeInfo] = {}
        self.levels: dict[int, list[str]] = {}  # names in their order
        self._level: dict[str, int] = {}
        for room in rooms:
            self.put(room)

    def put(self, room: NodeInfo) -> None:
        """The room of a node, new or changed."""
        name = room.node.name
        self.remove(name)
        if not room.node.open or not self._placement.matches(room.node):
            return
        if self._resource and not room.node.gpus_of(self._resource):
            return
        self.rooms[name] = room
        self._enter(room)

    def remove(self, name: str) -> None:
        if self.rooms.pop(name, None) is not None:
            self._leave(name)

    def update(self, room: NodeInfo) -> None:
        """Something was taken or given back there."""
        name = room.node.name
        if name in self.rooms and self._resource and self._level[name] != room.gpus.get(self._resource, 0):
            self._leave(name)
            self._enter(room)

    def fitting(self, gpus: int) -> Iterator[NodeInfo]:
        """Rooms with so much free, the fullest first, then by name."""
        for level in sorted(level for level in self.levels if level >= gpus or not self._resource):
            yield from (self.rooms[name] for name in self.levels[level])

    def least_allocated(self) -> Iterator[NodeInfo]:
        """All rooms, the emptiest first, then by name."""
        for level in sorted(self.levels, reverse=True):
            yield from (self.rooms[name] for name in self.levels[level])

    @property
    def most_free(self) -> int:
        """The most that is free on one node."""
        return max(self.levels, default=0) if self._resource else 0

    @property
    def total_free(self) -> int:
        """What is free on all nodes together."""
        return sum(level * len(names) for level, names in self.levels.items() if level > 0) if self._resource else 0

    def _enter(self, room: NodeInfo) -> None:
        name = room.node.name
        level = room.gpus.get(self._resource, 0) if self._resource else sum(milli for _, milli in room.node.gpus)
        self._level[name] = level
        insort(self.levels.setdefault(level, []), name)

    def _leave(self, name: str) -> None:
        level = self._level.pop(name)
        names = self.levels[level]
        del names[bisect_left(names, name)]
        if not self.levels[level]:
            del self.levels[level]
