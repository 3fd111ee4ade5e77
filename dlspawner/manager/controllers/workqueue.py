"""The leader's work queue: controllers bring one key at a time nearer to what should be.

A controller has two methods: ``due`` returns the keys that need work as things are now, the most urgent first, and
``reconcile`` does that work for one key, from the present state. The queue looks at ``due`` when it is woken, when a
pause is over, and every few seconds. A key is never reconciled twice at the same time. It pauses after each time: as
many seconds as ``reconcile`` returns; without a number, or after a failure, longer each time until a number is returned
or the key is due no more. A service that does not answer and a fault in the program delay one key and end nothing;
NotLeader ends the term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from dlspawner.backoff import delays
from dlspawner.clients.hub import HubError
from dlspawner.clients.kubernetes import KubernetesError
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.db.store import DatabaseUnavailable

Key = TypeVar("Key", bound=Hashable)
LOOK_SECONDS = 1.0
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class WorkQueue(Generic[Key]):
    """Runs one controller, with so many ``workers`` at the same time; ``name`` says in the log what it does.

    Times are in seconds: ``every`` between two looks at ``due`` without a ``wake``; the pauses of a key that stays due
    grow from ``first_pause`` to ``longest_pause``.
    """

    name: str
    due: Callable[[], Iterable[Key]]
    reconcile: Callable[[Key], Awaitable[float | None]]
    every: float = field(default_factory=lambda: LOOK_SECONDS)
    workers: int = 1
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    first_pause: float = 0.5
    longest_pause: float = 15.0
    _working: set[Key] = field(default_factory=set)
    _not_before: dict[Key, float] = field(default_factory=dict)  # in the loop's time
    _pauses: dict[Key, Iterator[float]] = field(default_factory=dict)

    async def run(self) -> None:
        """Runs until it is cancelled, or until this Manager is no longer the leader."""
        async with asyncio.TaskGroup() as group:
            while True:
                self.wake.clear()
                for key in self._next():
                    self._working.add(key)
                    group.create_task(self._work(key), name=f"{self.name} {key}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds_to_next_look()):
                        await self.wake.wait()

    def _next(self) -> list[Key]:
        """Returns the keys to begin with now, and forgets the pauses of keys that are due no more."""
        due, now = dict.fromkeys(self.due()), asyncio.get_running_loop().time()
        known = self._working.union(due)
        self._not_before = {key: at for key, at in self._not_before.items() if key in known}
        self._pauses = {key: pauses for key, pauses in self._pauses.items() if key in known}
        ready = (key for key in due if key not in self._working and self._not_before.get(key, now) <= now)
        return list(islice(ready, self.workers - len(self._working)))

    def _seconds_to_next_look(self) -> float:
        now = asyncio.get_running_loop().time()
        pauses = (at - now for key, at in self._not_before.items() if key not in self._working and at > now)
        return min(self.every, *pauses, self.every)

    async def _work(self, key: Key) -> None:
        pause = None
        try:
            pause = await self.reconcile(key)
        except (KubernetesError, HubError, DatabaseUnavailable) as problem:
            log.warning("%s %s has to wait: %s", self.name, key, problem.__cause__ or problem)
        except NotLeader:
            raise
        except Exception:  # a fault with one key must not end the work on all others
            log.exception("%s %s has failed and is tried again", self.name, key)
        finally:
            self._working.discard(key)
            self.wake.set()
        if pause is None:
            pause = next(self._pauses.setdefault(key, delays(self.first_pause, self.longest_pause)))
        else:
            self._pauses.pop(key, None)
        self._not_before[key] = asyncio.get_running_loop().time() + pause


def periodic(name: str, work: Callable[[], Awaitable[object]], every: float) -> WorkQueue[str]:
    """A queue of one key that is always due: ``work`` runs every so many seconds."""

    async def reconcile(_: str) -> float:
        await work()
        return every

    return WorkQueue(name, lambda: ("",), reconcile, every)
