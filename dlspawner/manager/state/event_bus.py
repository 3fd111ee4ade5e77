"""Notifies listeners of changes of jobs, the queue or the cluster: one fan-out for all listeners.

The job store has what is on the disk; a moment later each listener receives the changes that concern it, several
together. A listener receives no job that its user may not see (`access`): they learn that *something* of the queue or
the cluster has changed, and look for themselves. The events that wait for one listener are bounded, and a
change costs a look at the listeners that it concerns: simultaneous changes are sorted by user and team once for all.

Listeners have *shares*, so that no program keeps a page from following: each user's pages have one, each
user's programs another one, and each service its own.

Refused: a look per listener every few seconds, which costs the same whether anything has changed or not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, Literal, NamedTuple

from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.notice import NoticeChange
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, JobEvent

PER_SHARE = 8  # listeners
MOST = 10_000  # listeners
_TOGETHER_SECONDS = 0.1  # for which changes are gathered
_JOBS = 50  # that one listener is told by name at one time
_AT_ONCE = 200  # listeners, before others get their turn


@dataclass(slots=True)
class ListenerUpdate:
    """The news of one listener. ``more``: too many changes to be listed by name."""

    jobs: dict[str, dict[str, object]] = field(default_factory=dict)
    queue: bool = False
    cluster: bool = False
    notices: bool = False
    hub: bool = False
    more: bool = False

    def __bool__(self) -> bool:
        return bool(self.jobs) or self.queue or self.cluster or self.notices or self.hub or self.more

    def as_json(self) -> dict[str, Any]:
        flags = {name: True for name in ("queue", "cluster", "notices", "hub", "more") if getattr(self, name)}
        return {**({"jobs": list(self.jobs.values())} if self.jobs else {}), **flags}

    def put(self, entries: Mapping[str, JobEvent]) -> None:
        """The last entries of jobs, by job."""
        for job in self.jobs.keys() & entries.keys():
            self.jobs[job] = _named(entries[job])
        others = (job for job in entries if job not in self.jobs)
        for job in islice(others, _JOBS - len(self.jobs)):
            self.jobs[job] = _named(entries[job])
        self.more = self.more or next(others, None) is not None


def _named(entry: JobEvent) -> dict[str, object]:
    job = entry.record.job
    return {"id": job.id, "user": job.user, "server": job.server, "state": job.state.value, "reason": entry.reason}


class ListenerShare(NamedTuple):
    """The account to which a listener is counted."""

    kind: Literal["pages", "programs", "service"]
    name: str  # of the person or of the service


class ListenerLimit(Enum):
    """The limit that refuses another listener; the values are the HTTP status of the answer."""

    SHARE = 429
    ALL = 503


@dataclass(slots=True, eq=False)
class Listener:
    """One open page or program."""

    viewer: Viewer
    share: ListenerShare
    news: ListenerUpdate = field(default_factory=ListenerUpdate)
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False  # this Manager does not act any more, or the listener may not listen

    def take(self) -> ListenerUpdate:
        """Returns the changes since the last call."""
        news, self.news = self.news, ListenerUpdate()
        self.has_news.clear()
        return news

    def set_viewer(self, viewer: Viewer) -> None:
        """Sets the present rights of the listener; changes that were collected under other rights are dropped."""
        if viewer != self.viewer:
            self.viewer, self.news = viewer, ListenerUpdate(more=True)
            self.has_news.set()

    def end(self) -> None:
        """Ends the listener: it receives no more changes."""
        self.ended = True
        self.has_news.set()

    async def wait(self, seconds: float) -> None:
        """Until there is something new, or so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.has_news.wait(), seconds)


@dataclass(slots=True)
class EventBus:
    """The fan-out of one Manager; ``run`` hands on what was heard, and never ends by itself."""

    _listeners: dict[ListenerShare, set[Listener]] = field(default_factory=dict)
    _entries: list[JobEvent] = field(default_factory=list)
    _readers: set[str] = field(default_factory=set)  # users with changed notices, "" for administrators
    _moved: bool = False
    _heard: asyncio.Event = field(default_factory=asyncio.Event)

    def on_events(self, entries: Sequence[JobEvent]) -> None:
        """Collects committed events; an empty sequence: nodes or files have changed."""
        if self._listeners:
            self._entries += [one for one in entries if not one.record.job.id.startswith(EXTERNAL_POD_PREFIX)]
            self._moved = True
            self._heard.set()

    def on_notices(self, changes: Iterable[NoticeChange]) -> None:
        """Collects committed changes of notices."""
        if self._listeners:
            self._readers |= {one.notice.user for one in changes}
            if self._readers:
                self._heard.set()

    def on_hub_health(self) -> None:
        """Tells all listeners that the Hub is away, or back."""
        for listener in self._everybody():
            listener.news.hub = True
            listener.has_news.set()

    def subscribe(self, viewer: Viewer, share: ListenerShare) -> Listener | ListenerLimit:
        """Adds a listener, unless its account or the whole bus is full."""
        mine = self._listeners.get(share, set())
        if len(mine) >= PER_SHARE:
            return ListenerLimit.SHARE
        if sum(map(len, self._listeners.values())) >= MOST:
            return ListenerLimit.ALL
        listener = Listener(viewer, share)
        self._listeners.setdefault(share, set()).add(listener)
        return listener

    def unsubscribe(self, listener: Listener) -> None:
        mine = self._listeners.get(listener.share, set())
        mine.discard(listener)
        if not mine:
            self._listeners.pop(listener.share, None)

    def end(self) -> None:
        for listener in self._everybody():
            listener.end()

    async def run(self) -> None:
        while True:
            await self._heard.wait()
            await asyncio.sleep(_TOGETHER_SECONDS)
            self._heard.clear()
            entries, self._entries = self._entries, []
            readers, self._readers = self._readers, set()
            moved, self._moved = self._moved, False
            heard = _PendingEvents.together(entries)
            for number, listener in enumerate(self._everybody(), 1):
                _tell(listener, heard, readers, moved=moved)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _everybody(self) -> list[Listener]:
        return [one for mine in self._listeners.values() for one in mine]


@dataclass(frozen=True, slots=True)
class _PendingEvents:
    """The last entry of each job of which something was heard, and those of one person and of one team alone."""

    all: Mapping[str, JobEvent]
    of_user: Mapping[str, Mapping[str, JobEvent]]
    of_team: Mapping[str, Mapping[str, JobEvent]]

    @classmethod
    def together(cls, entries: Sequence[JobEvent]) -> _PendingEvents:
        latest = {entry.record.job.id: entry for entry in entries}
        of_user: dict[str, dict[str, JobEvent]] = {}
        of_team: dict[str, dict[str, JobEvent]] = {}
        for name, entry in latest.items():
            of_user.setdefault(entry.record.job.user, {})[name] = entry
            of_team.setdefault(entry.record.job.team, {})[name] = entry
        return cls(latest, of_user, of_team)

    def reached_by(self, viewer: Viewer) -> Iterator[Mapping[str, JobEvent]]:
        """Returns the parts of `Viewer.reaches`."""
        if viewer.all:
            yield self.all
            return
        yield self.of_user.get(viewer.name, {})
        for team in viewer.teams:
            yield self.of_team.get(team, {})


def _tell(listener: Listener, heard: _PendingEvents, readers: set[str], *, moved: bool) -> None:
    news, viewer = listener.news, listener.viewer
    for entries in heard.reached_by(viewer):
        news.put(entries)
    if moved:
        news.queue = news.cluster = True
    if viewer.name in readers or (viewer.all and "" in readers):
        news.notices = True
    if news:
        listener.has_news.set()
