"""Reads the logs of jobs, and keeps their ends: Kubernetes has a log only as long as the pod is there.

* The log of a container in a pod that is being deleted is *followed* until the container has ended, so an ordinary stop
  loses nothing, however long its grace period is.
* Of a container that has ended by itself it is read at once; the Hub asks whether that is done (``kept``) before it has
  the pod deleted.
* Of one that runs it is read every so often, from where the last reading ended: a lost node or a forced deletion
  loses the lines since then. Quiet containers are read less often, up to `_QUIETEST` times as seldom.

A reading asks for what is new, holds no more than is kept of one log, and few go on at one time, over connections of
their own, so that no log holds up a decision. All that is remembered of a container between two readings is its mark.
Only the acting Manager keeps logs; another one goes on at the marks in the database.

Refused: following every container from its start. It would lose nothing at all, and cost a connection through the API
server, and the node's kubelet, for each container of the cluster.

The settings on how much of a log is kept.

The end of a log, in bounded memory, and how a log that is read again goes on where the last reading ended. PURE.

Kubernetes gives a log from a time on, to the second; with time stamps, one at the beginning of each line, what is known
already can be told from what is new. Several lines may have one stamp, so those of the last one are counted. A line
without its end is not complete yet: it is read again, whole, unless its container has ended. So is a private
key, from its first line on: a reading from its middle would not recognise it.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from traitlets import Integer
from traitlets.config import Configurable

from dlspawner.backoff import delays
from dlspawner.clients.kubernetes import (
    KubernetesClient,
    KubernetesError,
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
from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.logs.redaction import Redactor
from dlspawner.manager.logs.sources import LoggedContainer, PodLogSource, read_source
from dlspawner.manager.model.log_mark import LogMark, in_utc

_READERS, _FOLLOWERS = 8, 48
_READ_SECONDS, _FOLLOW_SECONDS = 30.0, 900.0
_QUIETEST = 4
_AGAIN_SECONDS = 1.0
_KEPT_LOOK_SECONDS = 0.05
_BROKEN_SECONDS = 600.0  # the longest pause of a log whose reading fails for an unknown reason
_SILENT_SECONDS = 10.0  # for which a node that gave no log is not asked: it would keep all readers waiting
_SWEEP_SECONDS = 600.0
_CANNOT = "log of pod=%s container=%s cannot be %s; next try in %.1f s"
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class LogRetention:
    """The kept size of one log, the days after its job's end, and the interval between readings of a running
    container.
    """

    most: int = 2**20
    days: float = 7.0
    seconds: float = 60.0


@dataclass(slots=True)
class LogCollector:
    """Keeps the logs of one term; `run` never ends by itself.

    `job_of` tells which job a pod is, by its uid; `caught_up` has that known of all pods that were seen.
    """

    cluster: KubernetesClient
    ledger: JobRepository
    term: int
    job_of: Callable[[str], str | None]
    caught_up: Callable[[], Awaitable[None]]
    now: Callable[[], datetime]
    keeping: LogRetention = field(default_factory=LogRetention)
    sources: dict[str, PodLogSource] = field(default_factory=dict)
    _marks: dict[Key, LogMark] = field(default_factory=dict)
    _whole: set[Key] = field(default_factory=set)
    _vain: set[Key] = field(default_factory=set)  # runs that have ended, of which Kubernetes has no log
    _due: dict[Key, float] = field(default_factory=dict)  # when running containers are read again, in the loop's time
    _quiet: dict[Key, int] = field(default_factory=dict)  # how often nothing new was found
    _urgent: dict[Key, None] = field(default_factory=dict)  # containers that have ended
    _usual: dict[Key, None] = field(default_factory=dict)
    _broken: dict[Key, Iterator[float]] = field(default_factory=dict)  # logs that cannot be read, and their pauses
    _resting: set[Key] = field(default_factory=set)  # those of them in a pause
    _silent: dict[str, float] = field(default_factory=dict)  # nodes, and until when they are not asked
    _forbidden: bool = False
    _busy: set[Key] = field(default_factory=set)
    _some: asyncio.Event = field(default_factory=asyncio.Event)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)
    _going: dict[Key, asyncio.Task[None]] = field(default_factory=dict)  # followers
    _seats: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_FOLLOWERS))
    _readings: list[tuple[LogReading, asyncio.Future[None]]] = field(default_factory=list)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> None:
        """Go on where an earlier term ended."""
        for kept in await self.ledger.read(logs.live):
            self._marks[kept.key] = kept.mark
            if kept.whole:
                self._whole.add(kept.key)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(_READERS):
                    group.create_task(self._work(), name=f"read logs {number}")
                group.create_task(self._look_again(), name="logs that are due")
                group.create_task(self._sweep(), name="forget old logs")
        finally:
            for task in self._going.values():
                task.cancel()
            await asyncio.gather(*self._going.values(), return_exceptions=True)

    # What the watch tells

    def observe(self, change: WatchEvent) -> None:
        """A pod as the watch tells it; never waits."""
        if change.type == "SYNCED":
            return
        manifest: Manifest = change.object
        uid = str(manifest["metadata"]["uid"])
        if change.type == "DELETED":
            self._forget(uid)
        elif uid in self.sources or naming.JOB_LABEL in (manifest["metadata"].get("labels") or {}):
            source, before = read_source(manifest), self.sources.get(uid)
            self.sources[uid] = source
            for container in source.containers:
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
            self._want(key)
        elif container.running:
            if source.leaving and not (before and before.leaving and key in self._going):
                self._follow(key)
            # At once when it has just begun; after a restart of ours spread over the time.
            spread = 0.0 if before else zlib.crc32(repr(key).encode()) % 100 / 100 * self.keeping.seconds
            self._due.setdefault(key, asyncio.get_running_loop().time() + spread)

    def _forget(self, uid: str) -> None:
        source = self.sources.pop(uid, None)
        for container in source.containers if source else ():
            for run in (container.run, container.run - 1):
                key = (uid, container.name, run)
                self._marks.pop(key, None)
                self._due.pop(key, None)
                self._quiet.pop(key, None)
                self._urgent.pop(key, None)
                self._usual.pop(key, None)
                self._broken.pop(key, None)
                self._whole.discard(key)
                self._vain.discard(key)

    def of_job(self, job: str) -> list[PodLogSource]:
        """The pods of a job that are there."""
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

    # Readers

    def _want(self, key: Key) -> None:
        """A run that has ended: the rest of its log."""
        if key not in self._whole and self.keeping.days:
            self._urgent[key] = None
            self._some.set()

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.keeping.days:
                now = loop.time()
                self._usual.update(dict.fromkeys(key for key, at in self._due.items() if at <= now))
                if self._usual:
                    self._some.set()
            await asyncio.sleep(min(1.0, self.keeping.seconds))

    async def _work(self) -> None:
        while True:
            key = await self._next()
            self._busy.add(key)
            try:
                await self._read(key)
            except (KubernetesError, DatabaseUnavailable) as problem:
                log.warning("log of pod=%s container=%s has to wait: %s", key[0], key[1], problem)
                self._later(key)
            except NotLeader:
                raise
            except Exception:  # a task's root: what a job prints must not end the deciding
                log.exception(_CANNOT, key[0], key[1], "kept", self._rest(key))
            finally:
                self._free(key)

    async def _next(self) -> Key:
        while True:
            for wanted in (self._urgent, self._usual):
                key = next((one for one in wanted if one not in self._busy and one not in self._resting), None)
                if key is not None:
                    del wanted[key]
                    return key
            self._some.clear()
            await self._some.wait()

    def _free(self, key: Key) -> None:
        self._busy.discard(key)
        self._some.set()
        self._freed.set()

    def _later(self, key: Key, seconds: float = _AGAIN_SECONDS) -> None:
        """Try again soon, as long as the pod is there."""
        if key[0] in self.sources:
            asyncio.get_running_loop().call_later(seconds, self._want, key)

    def _rest(self, key: Key) -> float:
        """For how many seconds this log is left alone: longer each time that it cannot be read."""
        pause = next(self._broken.setdefault(key, delays(_AGAIN_SECONDS, _BROKEN_SECONDS)))
        self._resting.add(key)
        asyncio.get_running_loop().call_later(pause, self._rested, key)
        return pause

    def _rested(self, key: Key) -> None:
        self._resting.discard(key)
        self._later(key, 0.0)

    async def _read(self, key: Key) -> None:
        source, loop = self.sources.get(key[0]), asyncio.get_running_loop()
        current = _current(source, key[1])
        if source is None or current is None or key in self._whole or key[2] not in {current.run, current.run - 1}:
            self._due.pop(key, None)
            return
        ended = current.ended or current.run > key[2]
        if self._silent.get(source.node, 0.0) > loop.time():
            self._later(key, _SILENT_SECONDS)
            return
        if not ended:
            pause = self.keeping.seconds * min(_QUIETEST, 2 ** self._quiet.get(key, 0))
            self._due[key] = loop.time() + pause
        wanted = self._printed(key, previous=key[2] < current.run)
        try:
            news = await self._take(source, key, wanted, ended=ended)
        except KubernetesUnavailable:
            self._silent[source.node] = loop.time() + _SILENT_SECONDS
            raise
        except KubernetesRejected as problem:  # nothing is there yet, or not any more
            news = False
            if ended:
                self._vain.add(key)
            if problem.status == 403 and not self._forbidden:
                self._forbidden = True
                log.warning("no logs can be kept, the Manager's account needs get on pods/log: %s", problem)
        self._quiet[key] = 0 if news else min(_QUIETEST, self._quiet.get(key, 0) + 1)

    def _printed(self, key: Key, *, previous: bool = False, follow: bool = False) -> LogRequest:
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

    async def _take(self, source: PodLogSource, key: Key, wanted: LogRequest, *, ended: bool) -> bool:
        """Read, and keep what is new; whether there was any. What came before a reading broke off is kept as well."""
        if not ended and self.job_of(key[0]) is None:  # the watch has not told yet what it is
            self._later(key)
            return False
        anew = wanted.previous
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
        if ended or (text and not anew):
            job = await self._job(key[0])
            if job is None:
                self._rest(key)
                return False
            anew = anew and bool(text)
            await self._keep(LogReading(job, source.pod, key, mark, self.now(), lost, ended, anew=anew), text)
        if broken is not None:
            raise broken
        self._broken.pop(key, None)
        return bool(text)

    async def _job(self, uid: str) -> str | None:
        """Returns the job of a pod after its log was read: a short job may be gone before its log is stored."""
        if self.job_of(uid) is None:
            await self.caught_up()
        return self.job_of(uid)

    async def _keep(self, reading: LogReading, text: bytes) -> None:
        key = reading.key
        adds = text and not reading.anew
        last = await self.ledger.read(lambda connection: logs.last_part(connection, key)) if adds else None
        parts = await asyncio.to_thread(_joined, last, text)
        await self._write(replace(reading, parts=parts, replaces=last.id if last else 0))
        if key[0] in self.sources:
            self._marks[key] = reading.mark
        if reading.whole:
            self._whole.add(key)
            self._due.pop(key, None)

    async def _write(self, reading: LogReading) -> None:
        """Writes a reading: the first writer writes for all that wait, so many small readings are one transaction."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readings.append((reading, written))
        async with self._writing:
            if not written.done():
                some, self._readings = self._readings, []
                await self._write_all(some)
        await written

    async def _write_all(self, some: list[tuple[LogReading, asyncio.Future[None]]]) -> None:
        readings = [reading for reading, _ in some]
        try:
            await self.ledger.write_as_leader(
                self.term, lambda connection: logs.write(connection, readings, self.keeping.most)
            )
        except Exception as problem:  # noqa: BLE001 - raised in each waiter
            for _, written in some:
                written.set_exception(problem)
        else:
            for _, written in some:
                written.set_result(None)

    # Followers

    def _follow(self, key: Key) -> None:
        if key not in self._going and key not in self._whole and self.keeping.days:
            task = asyncio.create_task(self._follow_to_the_end(key), name=f"follow the log of {key[0]} {key[1]}")
            self._going[key] = task
            task.add_done_callback(lambda _: self._going.pop(key, None))

    async def _follow_to_the_end(self, key: Key) -> None:
        if self._seats.locked():
            self._want(key)  # at least what there is
        async with self._seats:
            while key in self._busy:
                self._freed.clear()
                await self._freed.wait()
            source = self.sources.get(key[0])
            if source is None:
                return
            self._busy.add(key)
            try:
                await self._take(source, key, self._printed(key, follow=True), ended=True)
            except (KubernetesError, DatabaseUnavailable) as problem:
                log.warning("log of pod=%s container=%s is not followed: %s", source.pod, key[1], problem)
                self._later(key)
            except NotLeader:
                return  # the readers end with it, and this term with them
            except Exception:  # a task's root, as above
                log.exception(_CANNOT, source.pod, key[1], "followed", self._rest(key))
            finally:
                self._free(key)

    # The end

    async def _sweep(self) -> None:
        while True:
            try:
                await self._forget_old(self.now() - timedelta(days=self.keeping.days))
            except DatabaseUnavailable as problem:
                log.warning("old logs are not forgotten: %s", problem)
            await asyncio.sleep(_SWEEP_SECONDS)

    async def _forget_old(self, before: datetime) -> None:
        """In small transactions: others want to write as well."""
        some = True
        while some:
            some = await self.ledger.write_as_leader(self.term, lambda connection: logs.sweep(connection, before))


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
        help="""KiB that are kept of the log of one run of a container: its end. What a database holds of it is
        compressed, to a fifth or a tenth. Default: 1024.""",
    ).tag(config=True)
    retention_days = Float(
        7.0,
        min=0.0,
        max=3660.0,
        help="""Days for which the logs and events of a job are kept after its end. 0: none are kept, and a log is there
        as long as its pod is. Default: 7.""",
    ).tag(config=True)
    poll_seconds = Float(
        60.0,
        min=1.0,
        max=3600.0,
        help="""How often the log of a running container is read, in seconds; of one that prints nothing four times as
        seldom at most. So much is missing when a job's node is lost, or its pod deleted by force: an ordinary stop
        loses nothing. Default: 60.""",
    ).tag(config=True)

    def keeping(self) -> LogRetention:
        return LogRetention(self.max_kib * 1024, self.retention_days, self.poll_seconds)


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
