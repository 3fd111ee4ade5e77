"""Stopping a job with a reason: decided in a turn, written down, and then done until it is done.

`stop` is the decision. From then on the job is ``stopping``, whatever happens to this process; whoever acts asks the
Hub to stop its server until the pod is gone, as the person would, so that the template's grace period holds. The Hub
asks back for the sentence (`api/jobs/{id}/ending`) and shows it to the person. If the Hub does not allow us to stop
servers, the pod itself is asked to end, and administrators are told.

A stop is of one job and not of its server: when the Hub has another job there by now, or none, the pod itself is asked
to end; and before each question to the Hub it is made sure that no other Manager acts, which would know of more. What
becomes of a job whose pod is gone is `gone`'s to say.

Cancelling: the end of a request that somebody takes back, wherever it is between its submission and a ready server.

Who waits, or was not yet told that it may have a pod, ends at once. Who was told may have a pod any moment, or has one:
it is stopped, as `stopping` does it. Whether a job whose pod runs is ready is the Hub's to say; one that is ready is
stopped, and not cancelled.

A stop of the server says the same while the Hub starts it: the Hub tells (`interrupted`), because it would otherwise
be told to start the job again. What the Manager itself has stopped stays as it is, and may wait again.

The end of a job that a person asks for: from a page or by REST, by its owner or by whoever may act on it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from enum import Enum

from dlspawner.clients.hub import HubClient, HubError, HubRejected
from dlspawner.clients.kubernetes import PODS, Conflict, KubernetesClient, KubernetesError, ObjectNotFound
from dlspawner.core.job import Job, JobState
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import JobStore, Transaction
from dlspawner.manager.state.lifecycle import CANCELLED_BEFORE_START, cancel_request, stop
from dlspawner.manager.state.notify import post_to_admins

_AT_ONCE = 10  # stops that the Hub is asked for at the same time
_LOOK_SECONDS = 0.5
_FORBIDDEN = frozenset({401, 403})  # asking again brings nothing
_AGAIN_SECONDS = 5.0  # between asking the Hub, and asking it or the cluster again
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Terminator:
    """Carries the stops of one book out; `run` never ends by itself."""

    book: JobStore
    hub: HubClient
    cluster: KubernetesClient
    namespaces: JobNamespaces
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for job, record in tuple(self.book.records.items()):
                    if record.stop is not None and job not in self._tasks:
                        self._tasks[job] = group.create_task(self._carry_out(job), name=f"stop {job}")
                await asyncio.sleep(_LOOK_SECONDS)
                self._tasks = {job: task for job, task in self._tasks.items() if not task.done()}

    def _wanted(self, job: str) -> JobRecord | None:
        record = self.book.records.get(job)
        return record if record is not None and record.stop is not None else None

    async def _carry_out(self, job: str) -> None:
        asked = False  # whether the Hub has said that the server is stopped
        polite = True
        record = self._wanted(job)
        if record is not None and record.stop is not None and record.stop.code is EventReason.STOPPED_BY_OWNER:
            await self._until_gone(job)  # the Hub has been asked already, unless whoever did so was ended then
        while (record := self._wanted(job)) is not None:
            async with self._turns:
                if asked or self._replaced(record):
                    await self._delete_pod(record)
                elif polite and await self._is_stopped_by_others(record):
                    polite = False  # once: it may as well be ready by now
                else:
                    asked = await self._ask_hub(record)
            await self._until_gone(job)

    def _replaced(self, record: JobRecord) -> bool:
        """Whether the Hub has another job on this server."""
        mine = record.job
        others = (one.job for one in self.book.records.values() if one.job.holds and one.job.id != mine.id)
        return any((other.user, other.server) == (mine.user, mine.server) for other in others)

    async def _until_gone(self, job: str) -> None:
        try:
            async with asyncio.timeout(_AGAIN_SECONDS):
                while self._wanted(job) is not None:  # noqa: ASYNC110 - the book tells nobody what has changed
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return

    async def _is_stopped_by_others(self, record: JobRecord) -> bool:
        """Whether somebody has just asked the Hub to stop what is cancelled here: a second stop would give them a 500.

        JupyterHub (5.5 to 6.1) ends a start, which is *ready* then, and stops it a second later if nobody else has.
        """
        job = record.job
        if record.stop is None or record.stop.code is not EventReason.CANCELLED:
            return False
        try:
            user = await self.hub.user(job.user)
        except HubError:
            return False
        server = user.servers.get(job.server) if user else None
        return server is not None and server.ready and server.pending is None

    async def _ask_hub(self, record: JobRecord) -> bool:
        """Whether the Hub has no such server running now."""
        job = record.job
        try:
            await self.book.transact(lambda turn: None)  # what was decided last is on the disk then, or taken back
            if self._wanted(job.id) is None:
                return False
            await self.book.ensure_leader()  # or by now the server may be one that nobody wants to stop
            return await self.hub.stop_server(job.user, job.server)
        except DatabaseUnavailable as problem:
            log.warning("job=%s its stop waits for the database: %s", job.id, problem.__cause__)
            return False
        except HubRejected as no:
            log.warning("job=%s user=%s server=%s the Hub does not stop it: %s", job.id, job.user, job.server, no)
            if no.status in _FORBIDDEN:
                await self._tell_admins(no)
            return no.status in {404, *_FORBIDDEN}
        except HubError as problem:
            log.warning("job=%s user=%s server=%s its stop has to wait: %s", job.id, job.user, job.server, problem)
            return False

    async def _tell_admins(self, no: HubRejected) -> None:
        text = f"The Hub does not let the Manager stop servers; their pods are deleted instead. It says: {no}"
        try:
            await self.book.transact(lambda turn: post_to_admins(turn, NoticeKind.HUB_FORBIDS, text, cause=text))
        except DatabaseUnavailable as problem:
            log.warning("administrators are not told that the Hub does not stop servers: %s", problem)

    async def _delete_pod(self, record: JobRecord) -> None:
        """Delete exactly this pod, with its own grace period."""
        for pod in record.seen:
            log.warning("job=%s pod=%s the Hub does not stop such a job: its pod is deleted", record.job.id, pod.name)
            try:
                await self.cluster.delete(PODS, pod.name, self.namespaces.from_key(pod.namespace), uid=pod.uid)
            except (ObjectNotFound, Conflict):
                continue  # gone, or a namesake: the watch tells
            except KubernetesError as problem:
                log.warning("job=%s pod=%s is not deleted yet: %s", record.job.id, pod.name, problem)


RUNS = "The server runs already, so there is nothing to cancel. Stop it as any server, on the Hub's page of your jobs."


class CancelResult(Enum):
    """What there was to cancel."""

    REQUEST = "a request, which has ended or is on its way to it"
    NOTHING = "nothing"
    RUNS = "a server that is ready"


async def cancel_server_start(book: JobStore, hub: HubClient, user: str, server: str, who: str) -> CancelResult:
    """Cancel what is on its way to this server; HubUnavailable when only the Hub knows whether it is ready."""
    if await book.transact(lambda turn: cancel_request(turn, user, server, who)):
        return CancelResult.REQUEST
    running = await unready_job(book, hub, user, server)
    if running is not None:
        job = running.job.id
        stopped = await book.transact(lambda turn: stop(turn, job, EventReason.CANCELLED, CANCELLED_BEFORE_START))
        return CancelResult.REQUEST if stopped else CancelResult.NOTHING
    return CancelResult.RUNS if _running(book, user, server) else CancelResult.NOTHING


async def unready_job(book: JobStore, hub: HubClient, user: str, server: str) -> JobRecord | None:
    """The job whose pod runs and whose server is not ready yet."""
    record = _running(book, user, server)
    if record is None:
        return None
    found = await hub.user(user)
    known = found.servers.get(server) if found is not None else None
    return record if known is not None and known.pending == "spawn" else None


def _running(book: JobStore, user: str, server: str) -> JobRecord | None:
    found = (book.records[job.id] for job in book.on(user, server) if job.state is JobState.RUNNING)
    return next(found, None)


STOPPED_BY_OWNER_SENTENCE = "Its owner has stopped this job. The files are kept."
_LOOKS, _ENDS_LOOK_SECONDS = 40, 0.05


@dataclass(frozen=True, slots=True)
class JobEnder:
    """Ends jobs of one book. Fenced and StoreUnavailable come through: nothing was done then."""

    book: JobStore
    hub: HubClient

    async def end(self, record: JobRecord, who: str) -> bool:
        """End a job, wherever it stands by the time that is decided; False when it has ended, or ends already."""
        now: JobRecord | None = record
        while now is not None:
            if await self._end(now, who):
                return True
            before, now = now, self.book.records.get(record.job.id)
            if now is not None and now.job.state is before.job.state:
                return False
        return False

    async def _end(self, record: JobRecord, who: str) -> bool:
        job = record.job
        if job.state is JobState.STOPPING and not job.requeue:
            return False
        if job.state is not JobState.RUNNING:
            return await self.book.transact(lambda turn: _cancel(turn, job, who))
        if who != job.user:
            sentence = f"{who} has stopped this job. Your files are kept."
            return await self.book.transact(lambda turn: stop(turn, job.id, EventReason.STOPPED_BY_ANOTHER, sentence))
        why = EventReason.STOPPED_BY_OWNER
        if not await self.book.transact(lambda turn: stop(turn, job.id, why, STOPPED_BY_OWNER_SENTENCE)):
            return False
        try:
            await self.book.ensure_leader()
            if await self.hub.stop_server(job.user, job.server):
                await self._is_seen(job)
        except (HubError, DatabaseUnavailable, NotLeader) as problem:  # it is decided: `stopping` asks until it is done
            log.warning("job=%s user=%s server=%s its stop has to wait: %s", job.id, job.user, job.server, problem)
        return True

    async def _is_seen(self, job: Job) -> None:
        """Until the end of a job that the Hub has told of is written down, or for two seconds."""
        for _ in range(_LOOKS):
            if job.id not in self.book.records:
                return
            await asyncio.sleep(_ENDS_LOOK_SECONDS)


def _cancel(turn: Transaction, job: Job, who: str) -> bool:
    """Cancel what is on its way to the job's server, if that is this job: who may end this one may not any other."""
    waits = turn.store.pending_job(job.user, job.server)
    if turn.record(job.id) is None or (waits is not None and waits.job.id != job.id):
        return False
    return cancel_request(turn, job.user, job.server, who)
