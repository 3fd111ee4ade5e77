"""Starts: scheduled jobs are started through the Hub, which has kept the options.

A start is asked for without a body, and again until the Hub's spawner asks for this job (``desk``), which ends its
being due, or until the turn is over. The Hub has no word yet that the job may have a pod, so a turn that is over, or
was cancelled, leaves nothing behind: the job is in its place again.

* The Hub does not answer, or is still stopping the server: later, with pauses.
* It is full (429): later as well, and jobs with a later turn are requested after it, so that a full Hub takes jobs in
  the order of their turns. Once it was so for a whole turn, every further turn is over at its first 429, and the next
  one comes after a pause, so that nothing is held for a full Hub.
* It fails (500) before its spawner asks for the job, as with a hook that raises: the turn is over at once, and the next
  one comes after a longer pause each time. Each of these is a failure to the Hub, which may give up after a few
  (``consecutive_failure_limit``): so the third one ends the job, across changes of the leader.
* It has taken the start (202) and does not start it any more, and its spawner has not asked for the job: that may be
  such a failure, or a refusal that passes. The turn is over at once, with a longer pause each time, and the job ends
  after many.
* It wants a fresh login: *login-required*. The job holds nothing and keeps its place, and the person is told.
* It says that the server runs: later, because it may not have noticed yet that the pod is gone; if another job of ours
  runs there, this one ends.
* It refuses: the job keeps its place, and blocks no other job; its user reads why, and it is requested now and then.
* It has no such server any more, or has started nothing after many turns: the job ends, with the reason.

An admitted job without a pod belongs to the Hub for the time of its reservation, unless the Hub reports that it starts
no such server: it was killed meanwhile. Then no pod will follow, and the reservation is over at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from math import inf

from dlspawner.backoff import delays
from dlspawner.clients.hub import HubClient, HubError, HubFailed, HubRejected, HubServer
from dlspawner.core.job import Job, JobState
from dlspawner.manager.admission.scheduler import Scheduler
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import MAX_START_ATTEMPTS, WAITING, JobRecord
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction

_LOOK_SECONDS = 1.0
_LOST_LOOK_SECONDS = 3.0  # between looks whether the Hub still starts what was admitted
_ADMITTED_SECONDS = 5.0  # without a check: most pods are observed long before
_OWNER_LOOK_SECONDS = 10.0  # between checks that pending jobs still have a user and a server
_ASKED_AT_ONCE = 20  # of the pending jobs without victims, at each check
_LONGEST_PAUSE = timedelta(minutes=5)
_FULL_PAUSE = timedelta(minutes=1)  # at most: a Hub that was full may accept a start at any moment
_FAILED_PAUSE = timedelta(seconds=30)  # the first one
_REFUSED_PAUSE = timedelta(seconds=5)  # longer than it takes Hub and Manager to read the same files
_HELD_BACK = timedelta(minutes=1)  # between questions whether the Hub would start by now what it has refused
_NOTICED = timedelta(minutes=30)  # longer than that for jobs with victims: the victims would get their notice again
_ANSWER_SECONDS = 0.5  # for which later jobs wait for the Hub's answer: a full Hub answers at once
_LINE_LOOK_SECONDS = 0.05
_MOST_FAILED = 3  # starts of a job that the Hub answers with 500
log = logging.getLogger("dlspawner.manager")


class _Later(Enum):
    """Why the Hub does not start a job now."""

    FULL = "full"
    BUSY = "busy"
    FAILED = "failed"
    NOTHING = "nothing"  # it had begun to, and does not any more


@dataclass(frozen=True, slots=True)
class _Failure:
    """The reason why this job cannot be started."""

    reason: EventReason
    detail: str = ""


SILENT = "The Hub refuses to start it, and does not say why."


@dataclass(slots=True)
class Dispatcher:
    """Tells the Hub of every job that is due; `run` never ends by itself."""

    book: JobStore
    queue: Scheduler
    hub: HubClient
    _going: set[str] = field(default_factory=set)
    # Jobs to be started, in the order of scheduling, and until when (the loop's time) later jobs wait for each.
    _line: dict[str, float] = field(default_factory=dict)
    _looks: int = 0
    _asked: dict[str, int] = field(default_factory=dict)  # at which look the Hub was asked last about each that waits
    # Jobs that wait since the Hub refused them: how often files had been read then, and when it was.
    _refused_at: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    _full: Counter[str] = field(default_factory=Counter)  # for how many turns of a job this term has found the Hub so

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_owners(), name="look for whose it is that waits")
            group.create_task(self._look_for_lost(), name="look for starts that the Hub has lost")
            while True:
                self.queue.work_available.clear()
                self._let_go()
                for job in self._due():
                    self._going.add(job)
                    self._line[job] = inf
                    group.create_task(self._start(job), name=f"start {job}")
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self.queue.work_available.wait()
                except TimeoutError:
                    continue

    def _due(self) -> list[str]:
        """Returns the scheduled jobs that no start task serves yet, in the order of scheduling."""
        found = [job for job, record in self.book.records.items() if record.awaiting_start and job not in self._going]
        return sorted(found, key=lambda job: self.queue.order.get(job, 0))

    async def _start(self, job: str) -> None:
        try:
            await self._until_asked(job)
        except DatabaseUnavailable as problem:
            log.warning("job=%s start waits for the database: %s", job, problem.__cause__)
        except NotLeader:
            return  # this term is over; the next one goes on
        finally:
            self._going.discard(job)
            self._line.pop(job, None)
            self._full = Counter({one: n for one, n in self._full.items() if n and one in self.book.records})

    async def _until_asked(self, job: str) -> None:
        begun, taken, full, behind, pauses = False, False, False, False, delays(0.5, 10.0)
        while True:
            record = self.book.records.get(job)
            if record is None or not record.awaiting_start or record.deadline is None:
                return
            left = (record.deadline - self.book.now()).total_seconds()
            if left <= 0 or (full and self._full[job]):
                await self._over(job, begun=begun, full=full or behind)
                return
            if behind := not taken and self._is_behind(job):
                await asyncio.sleep(min(_LINE_LOOK_SECONDS, left))
                continue
            self._line[job] = asyncio.get_running_loop().time() + (0 if taken else _ANSWER_SECONDS)
            try:
                said = await self._tell(record.job, taken=taken)
            except HubError as problem:
                log.warning("job=%s start has to wait: %s", job, problem)
                said = _Later.FAILED if isinstance(problem, HubFailed) else _Later.BUSY
            begun, full = begun or isinstance(said, JobState), said is _Later.FULL
            taken = taken or said is JobState.SUBMITTED
            if full:
                self._line[job] = inf
            else:
                self._line.pop(job, None)
            if said is _Later.NOTHING:
                await self._over(job, begun=True, full=False)
            elif isinstance(said, _Failure):
                await self.book.transact(partial(self._end, job=job, end=said))
            elif said is _Later.FAILED:
                await self._failed(job)
            elif said is JobState.LOGIN_REQUIRED:
                await self.book.transact(partial(lifecycle.require_login, job=job))
            if not full or not self._full[job]:
                await asyncio.sleep(min(next(pauses), left))

    def _is_behind(self, job: str) -> bool:
        """True if the Hub has still to answer for an earlier job, or is too full for it."""
        now = asyncio.get_running_loop().time()
        for other, until in self._line.items():
            if other == job:
                return False
            record = self.book.records.get(other)
            if until > now and record is not None and record.awaiting_start:
                return True
        return False

    async def probe(self, job: Job) -> bool:
        """Requests the start of a job while its victims have notice: the start has to wait as long as they run.

        A job that needs a fresh login of its user, or a start that fails or is refused, gives the reservation back.
        False: the Hub did not answer.
        """
        try:
            said: object = await self._tell(job)
        except HubError as problem:
            said = _Later.FAILED if isinstance(problem, HubFailed) else None
        if said is JobState.LOGIN_REQUIRED:
            await self.book.transact(partial(lifecycle.require_login, job=job.id))
        elif said is _Later.FAILED:
            await self._failed(job.id)
        elif isinstance(said, _Failure) and said.reason is EventReason.START_REFUSED:
            await self.book.transact(partial(self._end, job=job.id, end=said))
        return said is not None

    async def _failed(self, job: str) -> None:
        """The Hub could not start it; when its spawner has asked nevertheless, that is told by other means."""

        def note(turn: Transaction) -> None:
            record = turn.record(job)
            if record is None or not (record.awaiting_start or record.job.reserved):
                return
            failed = record.failures + 1
            if failed >= _MOST_FAILED:
                detail = f"The Hub has answered {failed} times with status 500."
                lifecycle.fail_start(turn, record, EventReason.START_FAILED, detail)
                return
            self.queue.backoff(job, turn.now + min(_LONGEST_PAUSE, _FAILED_PAUSE * 4 ** (failed - 1)))
            lifecycle.requeue(turn, replace(record, failures=failed), EventReason.START_FAILING)

        await self.book.transact(note)

    async def _tell(self, job: Job, *, taken: bool = False) -> JobState | _Failure | _Later:
        """Ask the Hub for the start: as what it knows the server then, or why it has not begun to start it.

        *Submitted* is what it has just taken; ``taken``: it had, a moment ago.
        """
        server = await self._server(job)
        if server is None:
            return _Failure(EventReason.NO_SERVER, lifecycle.SERVER_REMOVED)
        if server.ready:  # as far as the Hub knows: it looks at pods now and then only
            return (
                _Failure(EventReason.RUNS_ALREADY, "The server runs already.")
                if self._replaced(job)
                else JobState.RUNNING
            )
        if server.pending:
            return JobState.STARTING if server.pending == "spawn" else _Later.BUSY
        if taken:
            return _Later.NOTHING
        where = (job.user, job.server)
        self.queue.starts_in_flight[where] = job.id
        try:
            await self.hub.start_server(*where)
        except HubRejected as no:
            return await self._refused(job, no)
        finally:
            if self.queue.starts_in_flight.get(where) == job.id:
                del self.queue.starts_in_flight[where]
        return JobState.SUBMITTED

    def _end(self, turn: Transaction, *, job: str, end: _Failure) -> None:
        """A job that the Hub refuses keeps its place.

        The first time it may be by files that it has read before us, or we before it. After that the job blocks no
        other job, and its user reads why, until the files change, some time is over, or the start is requested again.
        """
        record, book = turn.record(job), turn.store
        if record is None or not (record.awaiting_start or record.job.reserved):
            return
        if end.reason is not EventReason.START_REFUSED:
            lifecycle.fail_start(turn, record, end.reason, end.detail)
            return
        # Others are not asked to leave for it time and again.
        again = record.job.reserved or self._refused_at.get(job, (-1, turn.now))[0] == book.files
        self._refused_at = {one: at for one, at in self._refused_at.items() if one in book.records}
        self._refused_at[job] = book.files, turn.now + (_NOTICED if record.job.reserved else timedelta())
        self.queue.backoff(job, turn.now + _REFUSED_PAUSE)
        if again:
            record = replace(record, job=replace(record.job, inadmissible=end.detail or SILENT))
        attempts = record.start_attempts - record.awaiting_start
        record = replace(record, start_attempts=attempts)
        lifecycle.requeue(turn, record, EventReason.START_REFUSED, end.detail)

    def _let_go(self) -> None:
        """Lets jobs that were held back for a while be scheduled again."""
        now = self.book.now()
        for job, (_, at) in self._refused_at.items():
            record = self.book.records.get(job)
            if record is not None and record.job.inadmissible and now - at >= _HELD_BACK:
                self.book.mark_inadmissible(job, "")
                self.book.capacity_changed.set()

    def _replaced(self, job: Job) -> bool:
        """True if another job has this server."""
        return any(other.holds for other in self.book.on(job.user, job.server) if other.id != job.id)

    async def _refused(self, job: Job, no: HubRejected) -> JobState | _Failure | _Later:
        if no.wants_login:
            return JobState.LOGIN_REQUIRED
        if no.status == 429:
            return _Later.FULL
        # A server that its user has started meanwhile is refused by the Hub.
        server = await self._server(job)
        later = server is not None and (server.ready or server.pending)
        return _Later.BUSY if later else _Failure(EventReason.START_REFUSED, str(no))

    async def _server(self, job: Job) -> HubServer | None:
        user = await self.hub.user(job.user)
        return user.servers.get(job.server) if user is not None else None

    async def _look_for_owners(self) -> None:
        """Ends pending jobs without a server or user, so that no victim is stopped for them."""
        while True:
            await asyncio.sleep(_OWNER_LOOK_SECONDS)
            for job in self._next_waiting():
                try:
                    if await self._server(job) is None:
                        await self.book.transact(partial(lifecycle.end_removed, job=job.id))
                except (HubError, DatabaseUnavailable) as problem:
                    log.warning("job=%s whose it is cannot be told now: %s", job.id, problem)

    def _next_waiting(self) -> list[Job]:
        """Returns the jobs that have victims, and some of the others in turn: the Hub is asked about each."""
        waits = [one.job for one in self.book.records.values() if one.job.state in WAITING]
        asked = {job.id: self._asked.get(job.id, 0) for job in waits}
        rest = sorted((job for job in waits if not job.reserved), key=lambda job: asked[job.id])
        chosen = [job for job in waits if job.reserved] + rest[:_ASKED_AT_ONCE]
        self._looks += 1
        self._asked = {**asked, **dict.fromkeys((job.id for job in chosen), self._looks)}
        return chosen

    async def _look_for_lost(self) -> None:
        while True:
            await asyncio.sleep(_LOST_LOOK_SECONDS)
            admitted = [record for record in tuple(self.book.records.values()) if self._is_admitted(record)]
            try:
                for record in await self._not_going(admitted) if admitted else ():
                    await self.book.transact(partial(lifecycle.abandon_start, record=record))
            except (HubError, DatabaseUnavailable) as problem:
                log.warning("whether %d jobs are still being started cannot be told now: %s", len(admitted), problem)

    def _is_admitted(self, record: JobRecord) -> bool:
        """True if a pod was admitted a while ago and none was observed."""
        if record.job.state is not JobState.STARTING or record.awaiting_start or record.pods or record.deadline is None:
            return False
        left = record.deadline - self.book.now()
        return timedelta(0) < left <= self.book.reservation - timedelta(seconds=_ADMITTED_SECONDS)

    async def _not_going(self, admitted: Sequence[JobRecord]) -> list[JobRecord]:
        """Returns the jobs that the Hub does not start; their admission requests came before this question."""
        active = {
            (user.name, server.name)
            for user in await self.hub.active_users()
            for server in user.servers.values()
            if server.pending or server.ready
        }
        missing = [one for one in admitted if (one.job.user, one.job.server) not in active]
        servers = [(one, await self._server(one.job)) for one in missing]  # that list may be incomplete
        return [one for one, server in servers if server is None or not (server.pending or server.ready)]

    async def _over(self, job: str, *, begun: bool, full: bool) -> None:
        """Ends a dispatch without a start; ``full``: the Hub was too full."""
        vain = self._full[job] + full

        def note(turn: Transaction) -> None:
            record = turn.record(job)
            if record is None or not record.awaiting_start:
                return
            if begun and record.start_attempts >= MAX_START_ATTEMPTS:
                lifecycle.fail_start(turn, record, EventReason.NOT_STARTED, "The Hub has tried it many times.")
                return
            if begun or full:  # what is wrong is wrong with this job, or would be with all of them: others first
                most, times = (_LONGEST_PAUSE, record.start_attempts) if begun else (_FULL_PAUSE, vain)
                self.queue.backoff(job, turn.now + min(most, timedelta(seconds=5) * 2 ** min(times, 10)))
            if not begun:  # the Hub was away or full, which is not the job's fault
                record = replace(record, start_attempts=record.start_attempts - 1)
            lifecycle.requeue(turn, record, EventReason.START_TIMEOUT)

        await self.book.transact(note)
        self._full[job] = vain if full else 0
