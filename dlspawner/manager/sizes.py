"""What nodes had before they lost it or went, for whichever Manager acts next.

What would fit there waits for a day and is not refused (`core.remembered`); who has just taken over, perhaps because
the node was lost on which the last Manager ran, has never seen it. So what every node has is written down when that
changes, with some delay. Only what says what fits is kept: not who is there, nor whether the node is open.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial

from dlspawner.core.nodes import Node
from dlspawner.core.world import ClusterState
from dlspawner.manager import sizerows
from dlspawner.manager.book import JobStore
from dlspawner.manager.ledger import JobRepository
from dlspawner.manager.sizerows import Size
from dlspawner.manager.store import DatabaseUnavailable

_EVERY_SECONDS = 10.0
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Sizes:
    """Keeps them for one book; `run` never ends by itself."""

    book: JobStore
    ledger: JobRepository
    _written: dict[str, Size] = field(default_factory=dict)

    async def load(self) -> None:
        """Let the book know what is written down, before it knows any node."""
        self._written = await self.ledger.read(sizerows.read)
        for node, since in self._written.values():
            self.book.cluster_state.recall(node, since)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            now = sizes(self.book.cluster_state)
            changed = {name: size for name, size in now.items() if self._written.get(name) != size}
            gone = self._written.keys() - now.keys()
            if not changed and not gone:
                continue
            try:
                await self.ledger.write_as_leader(self.book.term, partial(sizerows.write, changed=changed, gone=gone))
            except DatabaseUnavailable as problem:
                log.warning("what nodes have is not written down yet: %s", problem)
            else:
                self._written = now


def sizes(world: ClusterState) -> dict[str, Size]:
    """What every node has, or had."""
    found: dict[str, Size] = {name: (_size(room.node), None) for name, room in world.rooms.items()}
    return found | {name: (_size(room.node), world.away.since(name)) for name, room in world.away.rooms.items()}


def _size(node: Node) -> Node:
    return Node(node.name, node.gpus, node.cpu_milli, node.memory_bytes, node.labels, node.taints)
