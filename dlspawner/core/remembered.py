"""Nodes as they were before they lost something or went: for a day, what would fit there waits and is not refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dlspawner.core.nodes import Node
from dlspawner.core.rooms import NodeInfo

_LONGEST = timedelta(days=1)


@dataclass(slots=True)
class Remembered:
    """Rooms of such nodes by name; of them only what was there counts, not who held it."""

    rooms: dict[str, NodeInfo] = field(default_factory=dict)
    _since: dict[str, datetime] = field(default_factory=dict)

    def changed(self, name: str, old: NodeInfo | None, node: Node | None) -> None:
        """A node is something else now, or gone (``None``); what has all that it ever had need not be remembered."""
        before = self.rooms.get(name) or old
        if before is None or (node is not None and _has_all(node, before.node)):
            self.rooms.pop(name, None)
            self._since.pop(name, None)
        else:
            self.rooms[name] = before

    def recall(self, room: NodeInfo, since: datetime | None) -> None:
        """A node of which somebody has written down what it was, and when it was missed first, if it was."""
        self.rooms[room.node.name] = room
        if since is not None:
            self._since[room.node.name] = since

    def since(self, name: str) -> datetime | None:
        """When a node was missed first; ``None`` before somebody has looked for those who are too long gone."""
        return self._since.get(name)

    def forget(self, now: datetime) -> bool:
        """Forget who is too long gone; whether there was any."""
        late = [name for name in self.rooms if now - self._since.setdefault(name, now) > _LONGEST]
        for name in late:
            del self.rooms[name], self._since[name]
        return bool(late)


def _has_all(node: Node, before: Node) -> bool:
    gpus = all(node.gpus_of(resource) >= milli for resource, milli in before.gpus)
    return gpus and node.cpu_milli >= before.cpu_milli and node.memory_bytes >= before.memory_bytes
