"""Starts: whoever is due is started through the Hub, which has kept the options.

A start is asked for without a body, and again until the Hub's spawner asks for this job (``desk``), which ends its
being due, or until the turn is over. Nobody was told yet that the job may have a pod, so a turn that is over, or was
cancelled, leaves nothing behind: the job is in its place again.

* The Hub does not answer, is full (429) or is still stopping the server: later, with pauses.
* It wants a fresh login: *waiting-login*. The job holds nothing and keeps its place, and the person is told.
* It says that the server runs: later, because it may not have noticed yet that the pod is gone; if another job of ours
  runs there, this one ends.
* It says no, has no such server any more, or has started nothing after many turns: the job ends, with the reason.

Whoever was admitted and has no pod is the Hub's for the time of its reservation, unless the Hub says that it starts no
such server: it was killed meanwhile. Then nobody asks for that pod any more, and the reservation is over at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from dlspawner.backoff import delays
from dlspawner.core.jobs import Job, State
from dlspawner.hubapi import HubApi, HubError, HubRefused, Server
from dlspawner.manager import hopeless
from dlspawner.manager.book import Book, Turn
from dlspawner.manager.ledger import Fenced
from dlspawner.manager.notices import Kind, withdraw
from dlspawner.manager.queue import Queue
from dlspawner.manager.records import MOST_TURNS, WAITING, Record, ended, waiting
from dlspawner.manager.store import StoreUnavailable

_LOOK_SECONDS = 1.0
_LOST_LOOK_SECONDS = 3.0  # between looks whether the Hub still starts what was admitted
_ADMITTED_SECONDS = 5.0  # for which nobody looks: most pods are seen long before
_OWNER_LOOK_SECONDS = 10.0  # between looks whether what waits is still somebody's
_ASKED_AT_ONCE = 20  # of the jobs that wait and that nobody leaves for, at each look
_LONGEST_PAUSE = timedelta(minutes=5)
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class _End:
    """Why this job can not be started."""

    reason: str
    detail: str = ""


_REMOVED = _End("no-server", "The server, or its owner, was removed from the Hub.")


@dataclass(slots=True)
class Starts:
    """Tells the Hub of every job that is due; `run` never ends by itself."""

    book: Book
    queue: Queue
    hub: HubApi
    _going: set[str] = field(default_factory=set)
    _looks: int = 0
    _asked: dict[str, int] = field(default_factory=dict)  # at which look the Hub was asked last about each that waits

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_owners(), name="look for whose it is that waits")
            group.create_task(self._look_for_lost(), name="look for starts that the Hub has lost")
            while True:
                self.queue.given.clear()
                for job, record in tuple(self.book.records.items()):
                    if record.due and job not in self._going:
                        self._going.add(job)
                        group.create_task(self._start(job), name=f"start {job}")
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self.queue.given.wait()
                except TimeoutError:
                    continue

    async def _start(self, job: str) -> None:
        try:
            await self._until_asked(job)
        except StoreUnavailable as problem:
            log.warning("job=%s start waits for the database: %s", job, problem.__cause__)
        except Fenced:
            return  # this epoch is over; the next one goes on
        finally:
            self._going.discard(job)

    async def _until_asked(self, job: str) -> None:
        begun = False
        for delay in delays(0.5, 10.0):
            record = self.book.records.get(job)
            if record is None or not record.due or record.deadline is None:
                return
            left = (record.deadline - self.book.now()).total_seconds()
            if left <= 0:
                await self.book.turn(partial(self._over, job=job, begun=begun))
                return
            try:
                said = await self._tell(record.job)
            except HubError as problem:
                log.warning("job=%s start has to wait: %s", job, problem)
            else:
                begun = begun or said in {State.STARTING, State.RUNNING}
                if isinstance(said, _End):
                    await self.book.turn(partial(_end, job=job, end=said))
                elif said is State.WAITING_LOGIN:
                    await self.book.turn(partial(_wait_for_login, job=job))
            await asyncio.sleep(min(delay, left))

    async def _tell(self, job: Job) -> State | _End | None:
        """Ask the Hub for the start; as what it knows the server then, ``None`` when it has not begun to start it."""
        server = await self._server(job)
        if server is None:
            return _REMOVED
        if server.ready:  # as far as the Hub knows: it looks at pods now and then only
            return _End("runs-already", "The server runs already.") if self._replaced(job) else State.RUNNING
        if server.pending:
            return State.STARTING if server.pending == "spawn" else None
        where = (job.user, job.server)
        self.queue.telling[where] = job.id
        try:
            await self.hub.start_server(*where)
        except HubRefused as no:
            return await self._refused(job, no)
        finally:
            if self.queue.telling.get(where) == job.id:
                del self.queue.telling[where]
        return State.STARTING

    def _replaced(self, job: Job) -> bool:
        """Whether another job has this server."""
        return any(other.holds for other in self.book.on(job.user, job.server) if other.id != job.id)

    async def _refused(self, job: Job, no: HubRefused) -> State | _End | None:
        if no.wants_login:
            return State.WAITING_LOGIN
        # Whose person was quicker is started or runs already, which the Hub refuses to start.
        server = await self._server(job)
        later = no.status == 429 or (server is not None and (server.ready or server.pending))
        return None if later else _End("start-refused", str(no))

    async def _server(self, job: Job) -> Server | None:
        user = await self.hub.user(job.user)
        return user.servers.get(job.server) if user is not None else None

    async def _look_for_owners(self) -> None:
        """What waits ends with its server or its person, so that nobody has to leave for it."""
        while True:
            await asyncio.sleep(_OWNER_LOOK_SECONDS)
            for job in self._next_waiting():
                try:
                    if await self._server(job) is None:
                        await self.book.turn(partial(_remove, job=job.id))
                except (HubError, StoreUnavailable) as problem:
                    log.warning("job=%s whose it is cannot be told now: %s", job.id, problem)

    def _next_waiting(self) -> list[Job]:
        """Those that others may have to leave for, and of the rest some, in turn: the Hub is asked about each."""
        waits = [one.job for one in self.book.records.values() if one.job.state in WAITING]
        asked = {job.id: self._asked.get(job.id, 0) for job in waits}
        rest = sorted((job for job in waits if not job.promised), key=lambda job: asked[job.id])
        chosen = [job for job in waits if job.promised] + rest[:_ASKED_AT_ONCE]
        self._looks += 1
        self._asked = {**asked, **dict.fromkeys((job.id for job in chosen), self._looks)}
        return chosen

    async def _look_for_lost(self) -> None:
        while True:
            await asyncio.sleep(_LOST_LOOK_SECONDS)
            admitted = [record for record in tuple(self.book.records.values()) if self._is_admitted(record)]
            try:
                for record in await self._not_going(admitted) if admitted else ():
                    await self.book.turn(partial(_lost, record=record))
            except (HubError, StoreUnavailable) as problem:
                log.warning("whether %d jobs are still being started cannot be told now: %s", len(admitted), problem)

    def _is_admitted(self, record: Record) -> bool:
        """Whether the Hub was told a while ago that it may make a pod, and nobody has seen one."""
        if record.job.state is not State.STARTING or record.due or record.pods or record.deadline is None:
            return False
        left = record.deadline - self.book.now()
        return timedelta(0) < left <= self.book.reservation - timedelta(seconds=_ADMITTED_SECONDS)

    async def _not_going(self, admitted: Sequence[Record]) -> list[Record]:
        """Those that the Hub does not start: it did when it asked, which was before we ask now."""
        active = {
            (user.name, server.name)
            for user in await self.hub.active_users()
            for server in user.servers.values()
            if server.pending or server.ready
        }
        missing = [one for one in admitted if (one.job.user, one.job.server) not in active]
        servers = [(one, await self._server(one.job)) for one in missing]  # that list may have left somebody out
        return [one for one, server in servers if server is None or not (server.pending or server.ready)]

    def _over(self, turn: Turn, *, job: str, begun: bool) -> None:
        record = turn.record(job)
        if record is None or not record.due:
            return
        if begun and record.turns >= MOST_TURNS:
            turn.write(ended(record), "not-started", "The Hub has tried it many times.")
            return
        if begun:  # what is wrong is wrong with this job: others first
            self.queue.pause(job, turn.now + min(_LONGEST_PAUSE, timedelta(seconds=5) * 2**record.turns))
        else:  # the Hub was away or full, which is not the job's fault
            record = replace(record, turns=record.turns - 1)
        turn.wait_again(record, "turn-over")


def _lost(turn: Turn, *, record: Record) -> None:
    """From now on no request for this job's pod is sent; those on their way are waited for, as after any deadline."""
    now = turn.record(record.job.id)
    if now is not None and now.reserved and now.deadline == record.deadline and not now.pods:
        turn.write(replace(now, deadline=turn.now), "start-lost")


def log_in(turn: Turn, user: str, server: str) -> bool:
    """The person has logged in again: what waited for that is in its place again; False when nothing did."""
    waits = turn.book.waiter(user, server)
    if waits is None or waits.job.state is not State.WAITING_LOGIN:
        return False
    turn.write(waiting(waits), "logged-in")
    withdraw(turn, waits.job.id, Kind.WAITING_LOGIN)
    turn.book.stirred.set()
    return True


def _end(turn: Turn, *, job: str, end: _End) -> None:
    record = turn.record(job)
    if record is not None and record.due:
        turn.write(ended(record), end.reason, end.detail)


def _remove(turn: Turn, *, job: str) -> None:
    record = turn.record(job)
    if record is not None and record.job.state in WAITING:
        turn.write(ended(record), _REMOVED.reason, _REMOVED.detail)


def _wait_for_login(turn: Turn, *, job: str) -> None:
    record = turn.record(job)
    if record is not None and record.due:
        waits = waiting(record, State.WAITING_LOGIN)
        turn.write(waits, "login")
        hopeless.tell_one(turn, waits.job)
