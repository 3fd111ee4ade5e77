"""News of pods on their way to the book: those that may wait for a moment are written down together.

Of a pod that starts there are several changes within a moment, while the Hub waits for its server on the same
processors and disk. What is held, and by whom, is the same before and after all of them: so they wait until nothing
more comes, and of each pod only the latest is looked at, many pods in one transaction. Everything else (a pod that is
gone, that leaves or has ended, one that nothing covers, a complete list) is written down at once, after what came
before it; and so is all that waits as soon as somebody asks (`caught_up`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dlspawner.cluster import WatchEvent

TOGETHER_SECONDS = 0.15  # for which news wait for more
_LONGEST = 3  # times that, after which none waits any longer
_PATIENCE_SECONDS = 1.0  # of whoever asks, with a database that is away
_MOST = 500  # pods that wait at one time; who brings more of them waits as well


@dataclass(slots=True)
class PodEventQueue:
    """``note`` writes one change down, for as long as that takes; `run` never ends by itself.

    ``seconds``: for which those wait that may, since the last of them; with 0 every change is written down by itself.
    """

    note: Callable[[WatchEvent], Awaitable[None]]
    may_wait: Callable[[WatchEvent], bool]
    seconds: float = TOGETHER_SECONDS
    _groups: list[tuple[str, dict[str, WatchEvent]]] = field(
        default_factory=list
    )  # in their order; within one there is none
    _last: float = 0.0  # when something came, in the loop's time
    _some: asyncio.Event = field(default_factory=asyncio.Event)
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)
    _taken: asyncio.Event = field(default_factory=asyncio.Event)
    _written: asyncio.Condition = field(default_factory=asyncio.Condition)
    _puts: int = 0
    _done: int = 0

    async def put(self, change: WatchEvent) -> None:
        """The next change; returns at once unless too many wait."""
        kind = change.type if change.type in {"DELETED", "SYNCED"} else "there"
        uid = str(change.object["metadata"]["uid"]) if change.object else ""
        if not self._groups or self._groups[-1][0] != kind or not self.seconds:
            self._groups.append((kind, {}))
        self._groups[-1][1][uid] = change
        self._last = asyncio.get_running_loop().time()
        self._puts += 1
        self._some.set()
        crowded = sum(len(some) for _, some in self._groups) >= _MOST
        if crowded or not self.may_wait(change):
            self._urgent.set()
        if crowded:
            self._taken.clear()
            await self._taken.wait()

    async def flush(self) -> None:
        """All that has been put by now is written down, unless that takes long."""
        puts = self._puts
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS), self._written:
                if self._done < puts:
                    self._urgent.set()
                await self._written.wait_for(lambda: self._done >= puts)

    async def run(self) -> None:
        """Write down what is put, until it is cancelled."""
        while True:
            await self._some.wait()
            await self._wait_for_more()
            groups, self._groups, puts = self._groups, [], self._puts
            self._some.clear()
            self._urgent.clear()
            self._taken.set()
            for _, some in groups:
                await asyncio.gather(*map(self.note, some.values()))
            async with self._written:
                self._done = puts
                self._written.notify_all()

    async def _wait_for_more(self) -> None:
        clock = asyncio.get_running_loop().time
        longest = clock() + _LONGEST * self.seconds
        while not self._urgent.is_set() and (until := min(longest, self._last + self.seconds)) > clock():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._urgent.wait()
