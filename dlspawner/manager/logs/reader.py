"""A job's logs for users: those of Kubernetes while the pod is there, and the kept ones.

While the pod is there, Kubernetes is read, because it has the latest lines; without an answer the kept log is shown,
and marked as such.

Only this process remembers up to where a reader has followed a log (`FollowCursors`), and only for the latest 200: any
other reader begins with the last lines.

A reading costs a stream from Kubernetes and memory for what is kept of a log. One person has a few at one time, some
more wait for those, and more are refused at once, so that a line is never long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from dlspawner.clients.kubernetes import KubernetesError, KubernetesRejected, LogRequest, ObjectNotFound
from dlspawner.core import naming
from dlspawner.manager.db import logs
from dlspawner.manager.db.logs import Key, StoredLog
from dlspawner.manager.logs.collector import LINES, LogCollector, StampedLog, TailBuffer
from dlspawner.manager.logs.redaction import Redactor
from dlspawner.manager.logs.sources import PodLogSource, main_container
from dlspawner.manager.model.log_mark import LogMark

_READ_SECONDS = 15.0
_READERS = 8  # of Kubernetes, for people
_BEFORE = 600  # lines that are read and not shown: the longest private key, which hides lines, may have begun in them
_LAST = 10  # lines that a log begins with that is followed
SHORT = "Only its end was kept."
OLD = "The cluster does not answer now; this was read {}."
NOT_YET = "It has not started yet."


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One run of one container: whether Kubernetes has its log, and what is kept of it.

    ``role``: the pod's name within a job of several, as far as it is known.
    """

    key: Key
    pod: str
    source: PodLogSource | None = None
    previous: bool = False
    running: bool = False
    kept: StoredLog | None = None
    role: str = ""

    @property
    def container(self) -> str:
        return self.key[1]

    @property
    def number(self) -> int:
        """The run's number for people, from 1."""
        return self.key[2] + 1


@dataclass(frozen=True, slots=True)
class LogText:
    """A log, without secrets, and what there is to say about it."""

    body: bytes = b""
    note: str = ""


class LogReader:
    def __init__(self, collector: LogCollector) -> None:
        self.collector = collector
        self.followers: list[str] = []  # the followers of logs, once for each log
        self.places = FollowCursors()
        self.limiter = ReadLimiter()
        self._seats = asyncio.Semaphore(_READERS)

    async def runs(self, job: str) -> list[ContainerRun]:
        """All logs of a job, as `by_pod` sorts them."""
        kept = await self.collector.repository.read(lambda connection: logs.of_job(connection, job))
        found = {one.key: ContainerRun(one.key, one.pod, kept=one) for one in kept}
        for source in self.collector.of_job(job):
            for run in _live(source):
                known = found.get(run.key)
                found[run.key] = ContainerRun(
                    run.key, run.pod, source, run.previous, run.running, known.kept if known else None
                )
        record = await self.collector.repository.find(job)
        roles = {pod.uid: pod.role for pod in record.seen} if record else {}
        return by_pod(replace(run, role=roles.get(run.key[0]) or naming.pod_of(run.pod)) for run in found.values())

    async def text(self, run: ContainerRun, lines: int = 0) -> LogText:
        """The end of one log: of one that Kubernetes has so many lines at most, unless there are none said."""
        if run.source is not None:
            try:
                async with self._seats:
                    return await self._read(run, run.source, lines or LINES)
            except (ObjectNotFound, KubernetesRejected):
                pass
            except KubernetesError:
                return await self._kept(run, OLD)
        return await self._kept(run, "")

    async def follow(self, run: ContainerRun, place: FollowCursor, seconds: float) -> AsyncGenerator[bytes, None]:
        """The last lines, or what comes after a place, and what is printed from now on.

        Until the container or the time ends; then the place says where it goes on.
        """
        if run.source is None:
            return
        with contextlib.suppress(KubernetesError):  # the follower asks again
            if place.mark is None:
                last, place.mark = await self._last(run, run.source)
                if last:
                    yield last
            async with contextlib.aclosing(self._after(run, run.source, place, seconds)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _last(self, run: ContainerRun, source: PodLogSource) -> tuple[bytes, LogMark]:
        """The last lines, and where the log goes on."""
        reader = StampedLog(LogMark(), source.secrets, self.collector.keeping.most, _LAST + _BEFORE)
        wanted = LogRequest(run.container, timestamps=True, tail=_LAST + _BEFORE, seconds=_READ_SECONDS)
        async for piece in self.collector.cluster.log(run.pod, source.namespace, wanted):
            reader.feed(piece)
        body, mark, _ = reader.take(ended=False)
        return b"\n".join(body.split(b"\n")[-_LAST - 1 :]), mark

    async def _after(
        self, run: ContainerRun, source: PodLogSource, place: FollowCursor, seconds: float
    ) -> AsyncGenerator[bytes, None]:
        mark = place.mark or LogMark()
        reader = StampedLog(mark, source.secrets, self.collector.keeping.most, 0)
        tail = None if mark.stamp else _LAST + _BEFORE
        wanted = LogRequest(run.container, follow=True, timestamps=True, tail=tail, since=mark.stamp, seconds=seconds)
        try:
            async for piece in self.collector.cluster.log(run.pod, source.namespace, wanted):
                reader.feed(piece)
                if shown := reader.news():
                    yield shown
        except KubernetesError:  # the time is over, or the cluster away: what has no end yet is read again, whole
            shown, place.mark, _ = reader.take(ended=False)
        else:
            shown, place.mark = reader.take(ended=True)[0], None
        yield shown

    async def _read(self, run: ContainerRun, source: PodLogSource, lines: int) -> LogText:
        """Its last lines, and some before them."""
        ring, masker, read = TailBuffer(self.collector.keeping.most), Redactor(source.secrets, middle=True), 0
        tail = min(LINES, lines + _BEFORE)
        wanted = LogRequest(run.container, previous=run.previous, tail=tail, seconds=_READ_SECONDS)
        async for piece in self.collector.cluster.log(run.pod, source.namespace, wanted):
            read += piece.count(b"\n")
            ring.put(masker.feed(piece))
        ring.put(masker.end(cut=read >= tail))
        body = ring.take()
        return LogText(body, SHORT if ring.lost else "")

    async def _kept(self, run: ContainerRun, note: str) -> LogText:
        kept = run.kept
        if kept is None:
            return LogText(note=NOT_YET)
        body = await self.collector.repository.read(lambda connection: logs.text(connection, kept.id))
        said = note.format(_moment(kept.read)) if note else ""
        return LogText(body, " ".join(filter(None, (said, SHORT if kept.lost else ""))))


def by_pod(runs: Iterable[ContainerRun]) -> list[ContainerRun]:
    """The pods of a job of several in their order, and the runs of each as they are given."""
    return sorted(runs, key=lambda run: naming.pod_order(run.pod))


def choose(
    runs: Sequence[ContainerRun], container: str, pod: str, number: int | None, previous: bool
) -> ContainerRun | None:
    """The run that is meant: of this container, or of people's own program; the newest one, or the one before.

    ``pod``: its role, name or uid; without one it is the first pod.
    """
    mine = [run for run in runs if (pod in {run.role, run.pod, run.key[0]} if pod else run.pod == runs[0].pod)]
    wanted = container or main_container(dict.fromkeys(run.container for run in mine))
    mine = [run for run in mine if run.container == wanted and number in {None, run.number}]
    if previous:
        mine = mine[:-1]
    return mine[-1] if mine else None


def _live(source: PodLogSource) -> list[ContainerRun]:
    found = []
    for one in source.containers:
        if one.run:
            found.append(ContainerRun((source.uid, one.name, one.run - 1), source.pod, source, previous=True))
        found.append(ContainerRun((source.uid, one.name, one.run), source.pod, source, running=one.running))
    return found


def _moment(at: datetime) -> str:
    return f"at {at:%Y-%m-%d %H:%M:%S} UTC"


MOST = 200


@dataclass(slots=True)
class FollowCursor:
    """Up to where a log was followed; without a ``mark`` it has ended, or nothing of it was read."""

    key: Key
    mark: LogMark | None = None


@dataclass(frozen=True, slots=True)
class FollowCursors:
    """The places by reader and name; names are the readers' own."""

    _places: dict[tuple[str, str], FollowCursor] = field(default_factory=dict)

    def keep(self, who: str, name: str, place: FollowCursor) -> None:
        """The oldest is forgotten when there are too many."""
        self._places.pop((who, name), None)
        self._places[who, name] = place
        if len(self._places) > MOST:
            del self._places[next(iter(self._places))]

    def find(self, who: str, name: str) -> FollowCursor | None:
        """Finds the continuation of a log, if there is one."""
        place = self._places.get((who, name))
        return place if place is not None and place.mark is not None else None


AT_ONCE, WAITING = 4, 4  # of one person


class TooManyReads(Exception):
    """This person reads enough logs already, and others of theirs wait."""


@dataclass(slots=True)
class _Person:
    seats: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    asked: int = 0


class ReadLimiter:
    """The open readings of all users; a user without a reading is forgotten."""

    def __init__(self) -> None:
        self._people: dict[str, _Person] = {}

    @contextlib.asynccontextmanager
    async def wait_for_slot(self, who: str) -> AsyncIterator[None]:
        """Wait for this person's turn; `TooManyReads` at once where their line is full."""
        person = self._people.setdefault(who, _Person())
        if person.asked >= AT_ONCE + WAITING:
            raise TooManyReads(f"You are reading {AT_ONCE} logs, and {WAITING} more wait: ask again when one has come.")
        person.asked += 1
        try:
            async with person.seats:
                yield
        finally:
            person.asked -= 1
            if not person.asked:
                del self._people[who]
