"""Reads the logs of jobs, and keeps their ends: Kubernetes has a log only as long as the pod is there.

* The log of a container in a pod that is being deleted is *followed* until the container has ended, so an ordinary stop
  loses nothing, however long its grace period is.
* The log of a container that has ended by itself is read at once; the Hub asks whether that is done (``kept``) before
  it has the pod deleted.

Nothing is kept of a container that still runs: Kubernetes has its log. What a lost node or a forced deletion takes with
it is lost.

A reading asks for what is new, holds no more than is kept of one log, and few go on at one time, over connections of
their own, so that no log holds up a decision. All that is remembered of a container between two readings is its mark.
Only the leader keeps logs; another one goes on at the marks in the database.

Kubernetes gives a log from a time on, to the second; with time stamps, one at the beginning of each line, what is known
already can be told from what is new. Several lines may have one stamp, so those of the last one are counted. A line
without its end is not complete yet: it is read again, whole, unless its container has ended. So is a private
key, from its first line on: a reading from its middle would not recognise it.

Refused: following every container from its start. It would lose nothing at all, and cost a connection through the API
server, and the node's kubelet, for each container of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from traitlets import Integer
from traitlets.config import Configurable

from dlspawner.clients.kubernetes import (
    KubernetesClient,
    KubernetesRejected,
    KubernetesUnavailable,
    LogRequest,
    ObjectNotFound,
    WatchEvent,
)
from dlspawner.core import naming
from dlspawner.core.units import Manifest
from dlspawner.known_settings import Float
from dlspawner.manager.db import logs
from dlspawner.manager.db.logs import Key, LogReading
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.logs.redaction import Redactor
from dlspawner.manager.logs.sources import LoggedContainer, PodLogSource, read_source
from dlspawner.manager.model.log_mark import LogMark, in_utc

READERS, FOLLOWERS = 8, 100  # at the same time
SWEEP_SECONDS = 600.0
_READ_SECONDS, _FOLLOW_SECONDS = 30.0, 900.0
_KEPT_LOOK_SECONDS = 0.05
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class LogRetention:
    """The kept size of one log in bytes, and the days after its job's end; with 0 days no log is kept."""

    most: int = 2**20
    days: float = 7.0


@dataclass(slots=True)
class LogCollector:
    """Keeps the logs of one term by two controllers: `due_reads` with `read`, and `due_follows` with `follow`.

    `job_of` returns the job of a pod, by its uid; None until the pod's first event was processed.
    """

    cluster: KubernetesClient
    repository: JobRepository
    term: int
    job_of: Callable[[str], str | None]
    now: Callable[[], datetime]
    keeping: LogRetention = field(default_factory=LogRetention)
    sources: dict[str, PodLogSource] = field(default_factory=dict)
    read_wake: asyncio.Event = field(default_factory=asyncio.Event)
    follow_wake: asyncio.Event = field(default_factory=asyncio.Event)
    _marks: dict[Key, LogMark] = field(default_factory=dict)
    _whole: set[Key] = field(default_factory=set)
    _vain: set[Key] = field(default_factory=set)  # runs that have ended, of which Kubernetes has no log
    _ended: dict[Key, None] = field(default_factory=dict)  # runs that have ended and were not read
    _leaving: dict[Key, None] = field(default_factory=dict)  # runs in pods that are being deleted
    _open: set[Key] = field(default_factory=set)  # logs that are being read or followed
    _forbidden: bool = False

    async def load(self) -> None:
        """Continues where an earlier term ended."""
        for kept in await self.repository.read(logs.live):
            self._marks[kept.key] = kept.mark
            if kept.whole:
                self._whole.add(kept.key)

    # Events of pods

    def observe(self, change: WatchEvent) -> None:
        """Takes note of a pod's event; never waits."""
        manifest: Manifest = change.object
        uid = str(manifest["metadata"]["uid"])
        if change.type == "DELETED":
            self._forget(uid)
        elif uid in self.sources or naming.JOB_LABEL in (manifest["metadata"].get("labels") or {}):
            source, before = read_source(manifest), self.sources.get(uid)
            self.sources[uid] = source
            for container in source.containers if self.keeping.days else ():
                self._notice(source, container, before)

    def _notice(self, source: PodLogSource, container: LoggedContainer, before: PodLogSource | None) -> None:
        key = (source.uid, container.name, container.run)
        if container.run:
            last = (source.uid, container.name, container.run - 1)
            seen = _current(before, container.name)
            if seen and seen.run < container.run:
                self._whole.discard(last)  # what was read as its end may have been the next run's beginning
            self._want(last)
        if container.ended:
            self._leaving.pop(key, None)
            self._want(key)
        elif container.running and source.leaving:
            self._leaving[key] = None
            self.follow_wake.set()

    def _want(self, key: Key) -> None:
        if key not in self._whole and key not in self._vain:
            self._ended[key] = None
            self.read_wake.set()

    def _forget(self, uid: str) -> None:
        source = self.sources.pop(uid, None)
        for container in source.containers if source else ():
            for run in (container.run, container.run - 1):
                key = (uid, container.name, run)
                for keyed in (self._marks, self._ended, self._leaving):
                    keyed.pop(key, None)
                self._whole.discard(key)
                self._vain.discard(key)

    def of_job(self, job: str) -> list[PodLogSource]:
        """Returns the pods of a job that are there."""
        return [source for uid, source in self.sources.items() if self.job_of(uid) == job]

    async def kept(self, uid: str, seconds: float) -> bool:
        """True once all ended containers of a pod are kept, within these seconds; false at once if the pod goes."""
        clock, seen = asyncio.get_running_loop().time, False
        until = clock() + seconds
        while not self._is_kept(uid):
            if clock() >= until or (seen and uid not in self.sources):
                return False
            seen = uid in self.sources
            await asyncio.sleep(_KEPT_LOOK_SECONDS)
        return True

    def _is_kept(self, uid: str) -> bool:
        if not self.keeping.days:
            return True
        source = self.sources.get(uid)
        runs = [(one.name, one.run if one.ended else one.run - 1) for one in source.containers] if source else []
        done = [key in self._whole or key in self._vain for key in ((uid, *run) for run in runs if run[1] >= 0)]
        return bool(done) and all(done)

    # Reading

    def due_reads(self) -> list[Key]:
        """Returns the runs that have ended and were not read to their end."""
        return [key for key in self._ended if key not in self._open]

    async def read(self, key: Key) -> None:
        """Reads the log of a run that has ended, from where the last reading ended."""
        source = self.sources.get(key[0])
        current = _current(source, key[1])
        if source is None or current is None or key in self._whole or key[2] not in {current.run, current.run - 1}:
            self._ended.pop(key, None)
            return
        wanted = self._request(key, previous=key[2] < current.run)
        try:
            await self._take(source, key, wanted)
        except KubernetesRejected as problem:  # nothing is there any more
            self._vain.add(key)
            self._ended.pop(key, None)
            if problem.status == 403 and not self._forbidden:
                self._forbidden = True
                log.warning("no logs can be kept, the Manager's account needs get on pods/log: %s", problem)

    def due_follows(self) -> list[Key]:
        """Returns the runs in pods that are being deleted."""
        return [key for key in self._leaving if key not in self._open]

    async def follow(self, key: Key) -> None:
        """Reads the log of a run until its end."""
        source = self.sources.get(key[0])
        if source is None or key in self._whole:
            self._leaving.pop(key, None)
            return
        try:
            await self._take(source, key, self._request(key, follow=True))
        except KubernetesRejected:
            self._leaving.pop(key, None)  # its end is read when it has ended

    def _request(self, key: Key, *, previous: bool = False, follow: bool = False) -> LogRequest:
        """Returns the request: new lines only, but all of an earlier run of the container.

        Kubernetes cannot be asked for a run by its number, so what was read of it last may be of the next one.
        """
        return LogRequest(
            container=key[1],
            previous=previous,
            follow=follow,
            timestamps=True,
            tail=None if follow else LINES,
            since="" if previous else self._marks.get(key, LogMark()).stamp,
            seconds=_FOLLOW_SECONDS if follow else _READ_SECONDS,
        )

    async def _take(self, source: PodLogSource, key: Key, wanted: LogRequest) -> None:
        """Reads to the end and keeps what is new; also what came before a reading broke off, which is raised."""
        self._open.add(key)
        try:
            await self._read_and_keep(source, key, wanted)
        finally:
            self._open.discard(key)
        current = _current(self.sources.get(key[0]), key[1])
        if current is not None and current.run > key[2] and not wanted.previous:
            self._whole.discard(key)  # what was read as its end may have been the next run's beginning
            self._want(key)
        elif key in self._whole:
            self._ended.pop(key, None)
            self._leaving.pop(key, None)

    async def _read_and_keep(self, source: PodLogSource, key: Key, wanted: LogRequest) -> None:
        anew, ended = wanted.previous, True
        known = LogMark() if anew else self._marks.get(key, LogMark())
        reader = StampedLog(known, source.secrets, self.keeping.most)
        broken: KubernetesUnavailable | None = None
        try:
            async for piece in self.cluster.log(source.pod, source.namespace, wanted):
                reader.feed(piece)
        except ObjectNotFound:
            ended = False  # the pod went during the reading, which may be incomplete
        except KubernetesUnavailable as problem:
            broken, ended = problem, False
        text, mark, lost = reader.take(ended=ended)
        job = self.job_of(key[0])
        if job is not None and (ended or (text and not anew)):
            await self._keep(
                LogReading(job, source.pod, key, mark, self.now(), lost, ended, anew=anew and bool(text)), text
            )
        if broken is not None:
            raise broken

    async def _keep(self, reading: LogReading, text: bytes) -> None:
        key = reading.key
        adds = text and not reading.anew
        last = await self.repository.read(lambda connection: logs.last_part(connection, key)) if adds else None
        parts = await asyncio.to_thread(_joined, last, text)
        kept = replace(reading, parts=parts, replaces=last.id if last else 0)
        most = self.keeping.most
        await self.repository.write_as_leader(self.term, lambda connection: logs.write(connection, [kept], most))
        if key[0] in self.sources:
            self._marks[key] = reading.mark
            if reading.whole:
                self._whole.add(key)

    async def sweep(self) -> None:
        """Deletes the logs of jobs that ended long ago, in small transactions: others want to write as well."""
        before, some = self.now() - timedelta(days=self.keeping.days), True
        while some:
            some = await self.repository.write_as_leader(self.term, lambda connection: logs.sweep(connection, before))


def _current(source: PodLogSource | None, name: str) -> LoggedContainer | None:
    return next((one for one in source.containers if one.name == name), None) if source else None


def _joined(last: logs.LogChunk | None, text: bytes) -> tuple[logs.LogChunk, ...]:
    return logs.compressed((zlib.decompress(last.body) if last else b"") + text)


class JobLogs(Configurable):
    """The size and time for which the Manager keeps logs of jobs in its database."""

    max_kib = Integer(
        1024,
        min=64,
        max=65536,
        help="""KiB that are kept of the log of one run of a container: its end. The database holds them compressed, at
        a fifth to a tenth of the size. Default: 1024.""",
    ).tag(config=True)
    retention_days = Float(
        7.0,
        min=0.0,
        max=3660.0,
        help="""Days for which the logs and events of a job are kept after its end. Default: 7. 0: none are kept, and a
        log can be read as long as its pod exists.""",
    ).tag(config=True)

    def keeping(self) -> LogRetention:
        return LogRetention(self.max_kib * 1024, self.retention_days)


LINES = 50_000  # of one reading; what is kept of a log has seldom as many
_LONGEST_HELD = 64 * 1024
_LONGEST_STAMP = 40


class TailBuffer:
    """The last bytes of what is put in; `lost` says that there was more."""

    def __init__(self, most: int) -> None:
        self._most, self._parts, self._size = most, deque[bytes](), 0
        self.lost = False

    def put(self, data: bytes) -> None:
        if not data:
            return
        self._parts.append(data)
        self._size += len(data)
        while self._size - len(self._parts[0]) >= self._most:
            self._size -= len(self._parts.popleft())
            self.lost = True

    def take(self) -> bytes:
        """All of it; where something before it is lost it begins with a line, if one begins in its first half."""
        text = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        self.lost = self.lost or len(text) > self._most
        if not self.lost:
            return text
        text = text[-self._most :]
        at = text.find(b"\n") + 1
        return text[at:] if at <= len(text) // 2 else text


class StampedLog:
    """Takes a log with time stamps, piece by piece; what is new of it, without stamps and secrets, is in `take`.

    ``tail`` is how many of its last lines were asked for; 0 for what goes on where `known` ends, line by line.
    """

    def __init__(self, known: LogMark, secrets: Iterable[bytes], most: int, tail: int = LINES) -> None:
        self._known, self._mark, self._repeated = known, known, 0
        self._masker, self._lines, self._line = Redactor(secrets, middle=tail > 0), TailBuffer(most), TailBuffer(most)
        self._tail, self._read, self._follows = tail, 0, False
        self._rest = b""
        self._inside = self._skips = False
        self._pending = known  # the mark when the line that is being read has ended

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._put(line + b"\n")
            self._end_line()
        self._rest = rest
        if len(rest) > _LONGEST_HELD:
            self._put(rest)
            self._rest = b""

    def news(self) -> bytes:
        """Returns the text since the last call, as far as it may be shown by now."""
        return self._lines.take()

    def take(self, *, ended: bool) -> tuple[bytes, LogMark, bool]:
        """Returns the new text, the mark of its end, and true if more was printed than is kept."""
        if ended and (self._rest or self._inside):
            self._put(self._rest)
            self._end_line()
        if ended or not self._masker.inside:
            self._mark = self._pending if ended else self._mark
            self._lines.put(self._masker.end(cut=self._cut))
        return self._lines.take(), self._mark, self._lines.lost

    @property
    def _cut(self) -> bool:
        """True if lines may be missing before the first new one: too many, or deleted by the node."""
        return not self._follows and (bool(self._known.stamp) or self._read >= self._tail)

    def _put(self, part: bytes) -> None:
        if not self._inside:
            self._inside = True
            stamp, _, part = part.partition(b" ")
            self._skips = self._knows(in_utc(stamp[:_LONGEST_STAMP].decode("ascii", "replace").strip()))
        if not self._skips:
            self._line.put(part)

    def _knows(self, stamp: str) -> bool:
        again = stamp == self._known.stamp and self._repeated < self._known.lines
        self._repeated += again
        if again or stamp < self._known.stamp:
            self._follows = True
            return True
        same = stamp == self._pending.stamp
        self._pending = LogMark(stamp, self._pending.lines + 1 if same else 1)
        return False

    def _end_line(self) -> None:
        self._read += 1
        if not self._skips:
            lost = self._line.lost
            self._lines.put(self._masker.feed(self._line.take()))
            if not self._masker.inside:
                self._mark = self._pending
            self._lines.lost |= lost or self._line.lost
            self._line.lost = False
        self._inside = False
