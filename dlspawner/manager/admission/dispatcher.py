"""Starts: scheduled jobs are started through the Hub, which has kept the options.

Each scheduling of a job is one *attempt*. A start is requested without a body, and again until the Hub's spawner sends
the job's admission request, or until the reservation has expired: then nothing is left behind, and the job is back at
its position.

* The Hub does not answer, is full (429) or is still stopping the server: the request is repeated, with pauses.
* It fails (500) before its spawner sends the admission request, as with a hook that raises: the attempt ends at once,
  and the next one comes after a longer pause each time. Each of these is a failure to the Hub, which may give up after
  a few (``consecutive_failure_limit``): so the third one ends the job, across changes of the leader.
* It has accepted the start (202) and does not start the server any more, without an admission request: that may be such
  a failure, or a temporary refusal. The attempt ends at once, with a longer pause each time, and the job ends after
  many.
* It requires a fresh login: *login-required*. The job holds nothing and keeps its position, and the owner is notified.
* It says that the server runs: later, because it may not have noticed yet that the pod is gone; if another job of ours
  runs there, this one ends.
* It refuses: the job keeps its position, and blocks no other job; its user reads why, and the start is requested now
  and then.
* It has no such server any more, or has started nothing after many attempts: the job ends, with the reason.

A job with pods that wait in the cluster for an engine (`core.schedulers`) is started when all of them have a node, then
until the Hub does it: the job holds what it has, so its attempt has no deadline.

An admitted job without a pod belongs to the Hub for the time of its reservation, also if the Hub was killed meanwhile.

Refused: to ask the Hub whether it still starts what was admitted, which gives GPUs back a minute sooner after a kill.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from dlspawner import tracing
from dlspawner.clients.hub import HubClient, HubFailed, HubRejected, HubServer
from dlspawner.core.decisions import EngineAdmits
from dlspawner.core.job import Job, JobState
from dlspawner.manager.admission.scheduler import Scheduler
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import MAX_START_ATTEMPTS, WAITING
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction

_OWNER_LOOK_SECONDS = 10.0  # between checks that a pending job still has a user and a server
_OWNER_LOOKS_PER_SECOND = 2  # of all jobs together
_LONGEST_PAUSE = timedelta(minutes=5)
_FAILED_PAUSE = timedelta(seconds=30)  # the first one
_UNANSWERED_PAUSE = timedelta(seconds=5)  # after an attempt during which the Hub was full or away
_REFUSED_PAUSE = timedelta(seconds=5)  # longer than it takes Hub and Manager to read the same files
_HELD_BACK = timedelta(minutes=1)  # between questions whether the Hub would start by now what it has refused
_MOST_FAILED = 3  # starts of a job that the Hub answers with 500
_FULL = 429
log = logging.getLogger("dlspawner.manager")

Attempt = tuple[str, int]  # a job, and how often it was scheduled
SILENT = "The Hub refuses to start it, and does not say why."


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: EventReason
    detail: str = ""


@dataclass(slots=True)
class Dispatcher:
    """Three controllers, by their methods for work queues: `due` and `reconcile` start scheduled jobs, `due_refused`
    and `retry` schedule refused ones again, and `due_owners` and `check_owner` end pending jobs without a server.
    """

    store: JobStore
    queue: Scheduler
    hub: HubClient
    # STARTING: the Hub has begun the start in this attempt; RUNNING: it says that the server runs already.
    _answers: dict[Attempt, JobState] = field(default_factory=dict)
    _with_owner: set[str] = field(default_factory=set)  # pending jobs that had a server when they were last looked at

    # Starts

    def due(self) -> list[Attempt]:
        """Returns the scheduled jobs, in the order of scheduling."""
        verdicts = self.store.cluster_state.verdicts
        awaiting = [
            (job, record.start_attempts)
            for job, record in self.store.records.items()
            if record.awaiting_start and (not record.seen or isinstance(verdicts.get(job), EngineAdmits))
        ]
        self._answers = {attempt: self._answers[attempt] for attempt in awaiting if attempt in self._answers}
        return sorted(awaiting, key=lambda attempt: self.queue.order.get(attempt[0], 0))

    async def reconcile(self, attempt: Attempt) -> None:
        """Requests one start, or ends the attempt."""
        job, _ = attempt
        record = self.store.records.get(job)
        if record is None or not record.awaiting_start:
            return
        if record.waits_in_cluster:
            await self._start_placed(attempt, record.job)
            return
        if record.deadline is None or record.deadline <= self.store.now():
            await self._time_out(attempt)
            return
        try:
            answer = await self._request(record.job, attempt)
        except HubFailed as problem:
            log.warning("job=%s its start has failed in the Hub: %s", job, problem)
            await self.store.transact(partial(self._fail, job=job))
            return
        if isinstance(answer, _Failure):
            await self.store.transact(partial(self._end, job=job, end=answer))
        elif answer is JobState.LOGIN_REQUIRED:
            await self.store.transact(partial(lifecycle.require_login, job=job))
        elif answer is JobState.ENDED:
            await self._time_out(attempt)
        elif answer is not None:
            self._answers[attempt] = answer

    async def _start_placed(self, attempt: Attempt, job: Job) -> None:
        """Requests the start of a job with pods on their nodes; what the Hub refuses for good is stopped."""
        try:
            answer = await self._request(job, attempt)
        except HubFailed as problem:
            log.warning("job=%s its start has failed in the Hub, and is requested again: %s", job.id, problem)
            return
        if isinstance(answer, _Failure) or answer is JobState.LOGIN_REQUIRED:
            reason, detail = EventReason.START_REFUSED, "The Hub wants a fresh login before it starts it."
            if isinstance(answer, _Failure):
                reason, detail = answer.reason, answer.detail or SILENT
            await self.store.transact(lambda now: lifecycle.stop(now, job.id, reason, detail))
        elif answer is JobState.RUNNING:  # a restarted Hub has gone on with the start
            await self.store.transact(partial(_rejoin, job=job.id))
        elif answer is JobState.ENDED:
            self._answers.pop(attempt, None)
        elif answer is not None:
            self._answers[attempt] = answer

    async def _request(self, job: Job, attempt: Attempt) -> JobState | _Failure | None:
        """Requests the start unless the Hub has begun it already; returns how the Hub knows the server then.

        *Ended*: it had begun the start in this attempt, and does not any more. None: it cannot start it now.
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
            return JobState.STARTING if server.pending == "spawn" else None
        if self._answers.get(attempt) is JobState.STARTING:
            return JobState.ENDED
        where = (job.user, job.server)
        self.queue.starts_in_flight[where] = job.id
        try:
            about = {"dlspawner.job": job.id, "dlspawner.user": job.user, "dlspawner.server": job.server}
            waited = (self.store.now() - job.submitted).total_seconds()
            with tracing.span("start from the queue", {**about, "dlspawner.queued_seconds": waited}):
                await self.hub.start_server(*where)
        except HubRejected as no:
            return await self._refused(job, no)
        finally:
            if self.queue.starts_in_flight.get(where) == job.id:
                del self.queue.starts_in_flight[where]
        return JobState.STARTING

    async def _refused(self, job: Job, no: HubRejected) -> JobState | _Failure | None:
        if no.wants_login:
            return JobState.LOGIN_REQUIRED
        if no.status == _FULL:
            return None
        # A server that its user has started meanwhile is refused by the Hub.
        server = await self._server(job)
        later = server is not None and (server.ready or server.pending)
        return None if later else _Failure(EventReason.START_REFUSED, str(no))

    async def _server(self, job: Job) -> HubServer | None:
        user = await self.hub.user(job.user)
        return user.servers.get(job.server) if user is not None else None

    def _replaced(self, job: Job) -> bool:
        return any(other.holds for other in self.store.on(job.user, job.server) if other.id != job.id)

    async def _time_out(self, key: Attempt) -> None:
        job, _ = key

        def note(transaction: Transaction) -> None:
            record = transaction.record(job)
            if record is None or not record.awaiting_start or record.seen:
                return
            pause = _UNANSWERED_PAUSE
            if key not in self._answers:  # the Hub was full or away, which is not the job's fault
                record = replace(record, start_attempts=record.start_attempts - 1)
            elif record.start_attempts >= MAX_START_ATTEMPTS:
                lifecycle.fail_start(transaction, record, EventReason.NOT_STARTED, "The Hub has tried it many times.")
                return
            else:
                pause = min(_LONGEST_PAUSE, timedelta(seconds=5) * 2 ** min(record.start_attempts, 10))
            self.queue.backoff(job, transaction.now + pause)
            lifecycle.requeue(transaction, record, EventReason.START_TIMEOUT)

        await self.store.transact(note)

    def _fail(self, transaction: Transaction, *, job: str) -> None:
        """The Hub could not start it. After an admission request of its spawner the failure is reported otherwise."""
        record = transaction.record(job)
        if record is None or not record.awaiting_start or record.seen:
            return
        failed = record.failures + 1
        if failed >= _MOST_FAILED:
            detail = f"The Hub has answered {failed} times with status 500."
            lifecycle.fail_start(transaction, record, EventReason.START_FAILED, detail)
            return
        self.queue.backoff(job, transaction.now + min(_LONGEST_PAUSE, _FAILED_PAUSE * 4 ** (failed - 1)))
        lifecycle.requeue(transaction, replace(record, failures=failed), EventReason.START_FAILING)

    def _end(self, transaction: Transaction, *, job: str, end: _Failure) -> None:
        """A job that the Hub refuses keeps its place.

        The first time it may be by files that it has read before us, or we before it. After that the job blocks no
        other job, and its user reads why, until the files change, some time is over, or the start is requested again.
        """
        record, store = transaction.record(job), transaction.store
        if record is None or not record.awaiting_start or record.seen:
            return
        if end.reason is not EventReason.START_REFUSED:
            lifecycle.fail_start(transaction, record, end.reason, end.detail)
            return
        again = self.queue.refused.get(job, (-1, transaction.now))[0] == store.files
        self.queue.refused = {one: at for one, at in self.queue.refused.items() if one in store.records}
        self.queue.refused[job] = store.files, transaction.now
        self.queue.backoff(job, transaction.now + _REFUSED_PAUSE)
        if again:
            record = replace(record, job=replace(record.job, inadmissible=end.detail or SILENT))
        record = replace(record, start_attempts=record.start_attempts - 1)
        lifecycle.requeue(transaction, record, EventReason.START_REFUSED, end.detail)

    # Refused starts

    def due_refused(self) -> list[str]:
        """Returns the jobs that were held back long enough."""
        now = self.store.now()
        return [
            job
            for job, (_, at) in self.queue.refused.items()
            if (record := self.store.records.get(job)) is not None
            and record.job.inadmissible
            and now - at >= _HELD_BACK
        ]

    async def retry(self, job: str) -> None:
        self.store.mark_inadmissible(job, "")
        self.store.capacity_changed.set()

    # Pending jobs without a server

    def due_owners(self) -> list[str]:
        """Returns the pending jobs; those with victims first, so that no victim is stopped for a removed server."""
        waits = [record.job for record in self.store.records.values() if record.job.state in WAITING]
        self._with_owner.intersection_update(job.id for job in waits)
        return [job.id for job in sorted(waits, key=lambda job: not job.reserved)]

    async def check_owner(self, job: str) -> float:
        """Ends a pending job without a server or user; returns the seconds until the next check."""
        record = self.store.records.get(job)
        if record is None or record.job.state not in WAITING:
            return 0.0
        if job not in self._with_owner:
            self._with_owner.add(job)  # its server was there a moment ago
        elif await self._server(record.job) is None:
            await self.store.transact(partial(lifecycle.end_removed, job=job))
        if record.job.reserved:
            return _OWNER_LOOK_SECONDS
        return max(_OWNER_LOOK_SECONDS, len(self.due_owners()) / _OWNER_LOOKS_PER_SECOND)


def _rejoin(transaction: Transaction, *, job: str) -> None:
    record = transaction.record(job)
    if record is not None and record.waits_in_cluster:
        lifecycle.rejoin(transaction, record)
