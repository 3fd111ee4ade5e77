"""Who is told, as it happens, that jobs, the queue or the cluster have changed: one fan-out for all who listen.

The book says what is on the disk; a moment later everybody who listens is told what of it concerns them, several
changes together. Nobody is told of a job that they may not see (`access`): they learn that *something* of the queue or
the cluster has changed, and look for themselves. What waits for one listener is bounded, however slow it reads.

Refused: a look per listener every few seconds, which costs the same whether anything has changed or not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlspawner.core.jobs import Job
from dlspawner.manager.access import Viewer
from dlspawner.manager.notices import Change
from dlspawner.manager.records import OF_POD, Entry

PER_PERSON = 8  # pages that one person may have open
MOST = 10_000  # listeners
_TOGETHER_SECONDS = 0.1  # for which changes are gathered
_JOBS = 50  # that one listener is told by name at one time
_AT_ONCE = 200  # listeners, before others get their turn


@dataclass(slots=True)
class News:
    """What is new for one listener. ``more``: too much to be told by name."""

    jobs: dict[str, dict[str, object]] = field(default_factory=dict)
    queue: bool = False
    cluster: bool = False
    notices: bool = False
    more: bool = False

    def __bool__(self) -> bool:
        return bool(self.jobs) or self.queue or self.cluster or self.notices or self.more

    def as_json(self) -> dict[str, Any]:
        flags = {name: True for name in ("queue", "cluster", "notices", "more") if getattr(self, name)}
        return {**({"jobs": list(self.jobs.values())} if self.jobs else {}), **flags}

    def put(self, job: Job, reason: str) -> None:
        if len(self.jobs) >= _JOBS and job.id not in self.jobs:
            self.more = True
            return
        self.jobs[job.id] = {
            "id": job.id,
            "user": job.user,
            "server": job.server,
            "state": job.state.value,
            "reason": reason,
        }


@dataclass(slots=True, eq=False)
class Listener:
    """One open page or program."""

    viewer: Viewer
    news: News = field(default_factory=News)
    there_is: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False  # this Manager does not act any more

    def take(self) -> News:
        """What is new since the last time."""
        news, self.news = self.news, News()
        self.there_is.clear()
        return news

    async def wait(self, seconds: float) -> None:
        """Until there is something new, or so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.there_is.wait(), seconds)


@dataclass(slots=True)
class Changes:
    """The fan-out of one Manager; ``run`` hands on what was heard, and never ends by itself."""

    _listeners: dict[str, set[Listener]] = field(default_factory=dict)  # by person
    _entries: list[Entry] = field(default_factory=list)
    _readers: set[str] = field(default_factory=set)  # whose notices have changed, "" for administrators
    _moved: bool = False
    _heard: asyncio.Event = field(default_factory=asyncio.Event)

    def heard(self, entries: Sequence[Entry]) -> None:
        """These entries are on the disk; none at all: nodes or files have changed."""
        if self._listeners:
            self._entries += [one for one in entries if not one.record.job.id.startswith(OF_POD)]
            self._moved = True
            self._heard.set()

    def noticed(self, changes: Iterable[Change]) -> None:
        """These notices are on the disk."""
        if self._listeners:
            self._readers |= {one.notice.user for one in changes}
            if self._readers:
                self._heard.set()

    def join(self, viewer: Viewer) -> Listener | None:
        """Somebody listens from now on; ``None`` where they, or all together, do already with too many pages."""
        mine = self._listeners.get(viewer.name, set())
        if len(mine) >= PER_PERSON or sum(map(len, self._listeners.values())) >= MOST:
            return None
        listener = Listener(viewer)
        self._listeners.setdefault(viewer.name, set()).add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        mine = self._listeners.get(listener.viewer.name, set())
        mine.discard(listener)
        if not mine:
            self._listeners.pop(listener.viewer.name, None)

    def end(self) -> None:
        """Nobody learns anything here any more."""
        for listener in self._everybody():
            listener.over = True
            listener.there_is.set()

    async def run(self) -> None:
        while True:
            await self._heard.wait()
            await asyncio.sleep(_TOGETHER_SECONDS)
            self._heard.clear()
            entries, self._entries = self._entries, []
            readers, self._readers = self._readers, set()
            moved, self._moved = self._moved, False
            for number, listener in enumerate(self._everybody(), 1):
                _tell(listener, entries, readers, moved=moved)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _everybody(self) -> list[Listener]:
        return [one for mine in self._listeners.values() for one in mine]


def _tell(listener: Listener, entries: Sequence[Entry], readers: set[str], *, moved: bool) -> None:
    news, viewer = listener.news, listener.viewer
    for entry in entries:
        job = entry.record.job
        if viewer.reaches(job.user, job.team):
            news.put(job, entry.reason)
    if moved:
        news.queue = news.cluster = True
    if viewer.name in readers or (viewer.all and "" in readers):
        news.notices = True
    if news:
        listener.there_is.set()
