"""A job's logs as people find them: those that Kubernetes has while the pod is there, and those that are kept.

Of a container whose pod is there Kubernetes is asked, because it knows what was printed a moment ago; when it does not
answer what is kept is shown, and said to be that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime

from dlspawner.cluster import ClusterError, NotFound, Printed, Refused
from dlspawner.manager.logs import rows
from dlspawner.manager.logs.keeper import LogKeeper
from dlspawner.manager.logs.places import Place, Places
from dlspawner.manager.logs.rows import Kept, Key
from dlspawner.manager.logs.sources import Source, main_container
from dlspawner.manager.logs.tail import LINES, Mark, Ring, Stamped
from dlspawner.manager.logs.text import Masker
from dlspawner.manager.logs.turns import Turns

_READ_SECONDS = 15.0
_READERS = 8  # of Kubernetes, for people
_BEFORE = 600  # lines that are read and not shown: the longest private key, which hides lines, may have begun in them
_LAST = 10  # lines that a log begins with that is followed
SHORT = "Only its end was kept."
OLD = "The cluster does not answer now; this was read {}."
NOT_YET = "It has not started yet."


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one container: whether Kubernetes has its log, and what is kept of it."""

    key: Key
    pod: str
    source: Source | None = None
    previous: bool = False
    running: bool = False
    kept: Kept | None = None

    @property
    def container(self) -> str:
        return self.key[1]

    @property
    def number(self) -> int:
        """The run's number for people, from 1."""
        return self.key[2] + 1


@dataclass(frozen=True, slots=True)
class Text:
    """A log, without secrets, and what there is to say about it."""

    body: bytes = b""
    note: str = ""


class Shelf:
    """The logs of one Manager that acts."""

    def __init__(self, keeper: LogKeeper) -> None:
        self.keeper = self._keeper = keeper
        self.followers: list[str] = []  # who follows a log now, as often as they do
        self.places = Places()
        self.turns = Turns()
        self._seats = asyncio.Semaphore(_READERS)

    async def runs(self, job: str) -> list[Run]:
        """All logs of a job, the oldest first."""
        kept = await self._keeper.ledger.read(lambda connection: rows.of_job(connection, job))
        found = {one.key: Run(one.key, one.pod, kept=one) for one in kept}
        for source in self._keeper.of_job(job):
            for run in _live(source):
                known = found.get(run.key)
                found[run.key] = Run(run.key, run.pod, source, run.previous, run.running, known.kept if known else None)
        return [*found.values()]

    async def text(self, run: Run, lines: int = 0) -> Text:
        """The end of one log: of one that Kubernetes has so many lines at most, unless there are none said."""
        if run.source is not None:
            try:
                async with self._seats:
                    return await self._read(run, run.source, lines or LINES)
            except (NotFound, Refused):
                pass
            except ClusterError:
                return await self._kept(run, OLD)
        return await self._kept(run, "")

    async def follow(self, run: Run, place: Place, seconds: float) -> AsyncGenerator[bytes, None]:
        """The last lines, or what comes after a place, and what is printed from now on.

        Until the container or the time ends; then the place says where it goes on.
        """
        if run.source is None:
            return
        with contextlib.suppress(ClusterError):  # whoever follows asks again
            if place.mark is None:
                last, place.mark = await self._last(run, run.source)
                if last:
                    yield last
            async with contextlib.aclosing(self._after(run, run.source, place, seconds)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _last(self, run: Run, source: Source) -> tuple[bytes, Mark]:
        """The last lines, and where the log goes on."""
        reader = Stamped(Mark(), source.secrets, self._keeper.keeping.most, _LAST + _BEFORE)
        wanted = Printed(run.container, timestamps=True, tail=_LAST + _BEFORE, seconds=_READ_SECONDS)
        async for piece in self._keeper.cluster.log(run.pod, source.namespace, wanted):
            reader.feed(piece)
        body, mark, _ = reader.take(ended=False)
        return b"\n".join(body.split(b"\n")[-_LAST - 1 :]), mark

    async def _after(self, run: Run, source: Source, place: Place, seconds: float) -> AsyncGenerator[bytes, None]:
        mark = place.mark or Mark()
        reader = Stamped(mark, source.secrets, self._keeper.keeping.most, 0)
        tail = None if mark.stamp else _LAST + _BEFORE
        wanted = Printed(run.container, follow=True, timestamps=True, tail=tail, since=mark.stamp, seconds=seconds)
        try:
            async for piece in self._keeper.cluster.log(run.pod, source.namespace, wanted):
                reader.feed(piece)
                if shown := reader.news():
                    yield shown
        except ClusterError:  # the time is over, or the cluster away: what has no end yet is read again, whole
            shown, place.mark, _ = reader.take(ended=False)
        else:
            shown, place.mark = reader.take(ended=True)[0], None
        yield shown

    async def _read(self, run: Run, source: Source, lines: int) -> Text:
        """Its last lines, and some before them."""
        ring, masker, read = Ring(self._keeper.keeping.most), Masker(source.secrets, middle=True), 0
        tail = min(LINES, lines + _BEFORE)
        wanted = Printed(run.container, previous=run.previous, tail=tail, seconds=_READ_SECONDS)
        async for piece in self._keeper.cluster.log(run.pod, source.namespace, wanted):
            read += piece.count(b"\n")
            ring.put(masker.feed(piece))
        ring.put(masker.end(cut=read >= tail))
        body = ring.take()
        return Text(body, SHORT if ring.lost else "")

    async def _kept(self, run: Run, note: str) -> Text:
        kept = run.kept
        if kept is None:
            return Text(note=NOT_YET)
        body = await self._keeper.ledger.read(lambda connection: rows.text(connection, kept.id))
        said = note.format(_moment(kept.read)) if note else ""
        return Text(body, " ".join(filter(None, (said, SHORT if kept.lost else ""))))


def choose(runs: Sequence[Run], container: str, pod: str, number: int | None, previous: bool) -> Run | None:
    """The run that is meant: of this container, or of people's own program; the newest one, or the one before."""
    mine = [run for run in runs if pod in {"", run.pod, run.key[0]}]
    wanted = container or main_container(dict.fromkeys(run.container for run in mine))
    mine = [run for run in mine if run.container == wanted and number in {None, run.number}]
    if previous:
        mine = mine[:-1]
    return mine[-1] if mine else None


def _live(source: Source) -> list[Run]:
    found = []
    for one in source.containers:
        if one.run:
            found.append(Run((source.uid, one.name, one.run - 1), source.pod, source, previous=True))
        found.append(Run((source.uid, one.name, one.run), source.pod, source, running=one.running))
    return found


def _moment(at: datetime) -> str:
    return f"at {at:%Y-%m-%d %H:%M:%S} UTC"
