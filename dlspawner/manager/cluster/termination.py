"""Carries out stops that were decided, and cancels starts.

`lifecycle.stop` is the decision. From then on the job is *stopping*, also if this process is killed: the leader asks
the Hub to stop the job's server until the pod is gone, as the user would, so that the template's grace period holds.
The Hub asks back for the sentence (`api/jobs/{id}/ending`) and shows it to the user. If the Hub does not allow the
Manager to stop servers, the pod itself is deleted, and administrators are notified.

A stop is of one job and not of its server: if the Hub has another job there by now, or none, the pod itself is deleted;
and before the `Terminator` asks the Hub, it makes sure that this Manager is still the leader, because another one would
know more. `lifecycle.on_pods_gone` is the transition of a job after its pods are gone.

Cancelling ends a request anywhere between its submission and a ready server. A pending job, or one that the Hub does
not know yet, ends at once. A job that the Hub knows may have a pod: it is stopped. The Hub says if a running job is
ready; a ready one is stopped, and not cancelled. A stop of the server while the Hub starts it cancels the job too: the
Hub reports it (`lifecycle.on_server_stopped`), because the job would otherwise be dispatched again. Jobs that the
Manager has stopped stay as they are, and may be requeued.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from enum import Enum

from dlspawner.clients.hub import HubClient, HubError, HubRejected
from dlspawner.clients.kubernetes import PODS, Conflict, KubernetesClient, ObjectNotFound
from dlspawner.core.job import Job, JobState
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import JobStore, Transaction
from dlspawner.manager.state.lifecycle import CANCELLED_BEFORE_START, cancel_request, stop
from dlspawner.manager.state.notify import post_to_admins

_BY_THE_HUB = frozenset(
    {EventReason.STOPPED_BY_OWNER, EventReason.STOPPED_ON_HUB, EventReason.FAILED, EventReason.FINISHED}
)
_FORBIDDEN = frozenset({401, 403})  # asking again brings nothing
_AGAIN_SECONDS = 5.0  # between asking the Hub, and asking it or the cluster again
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Terminator:
    """A controller that carries out the stops of one store."""

    store: JobStore
    hub: HubClient
    cluster: KubernetesClient
    namespaces: JobNamespaces
    _left_alone: set[str] = field(default_factory=set)  # stops that the Hub had the time to carry out itself
    _without_server: set[str] = field(default_factory=set)  # the Hub has no such server running

    def due(self) -> list[str]:
        stopping = [job for job, record in self.store.records.items() if record.stop is not None]
        self._left_alone.intersection_update(stopping)
        self._without_server.intersection_update(stopping)
        return stopping

    async def reconcile(self, job: str) -> float:
        """Asks the Hub, or deletes the pod; after that the pod has some seconds to go."""
        record = self._wanted(job)
        if record is None:
            return 0.0
        if job in self._without_server or self._replaced(record):
            await self._delete_pod(record)
        elif job not in self._left_alone and await self._is_stopped_by_others(record):
            self._left_alone.add(job)
        elif await self._ask_hub(record):
            self._without_server.add(job)
        return _AGAIN_SECONDS

    def _wanted(self, job: str) -> JobRecord | None:
        record = self.store.records.get(job)
        return record if record is not None and record.stop is not None else None

    def _replaced(self, record: JobRecord) -> bool:
        """True if the Hub has another job on this server."""
        mine = record.job
        return any(other.holds and other.id != mine.id for other in self.store.on(mine.user, mine.server))

    async def _is_stopped_by_others(self, record: JobRecord) -> bool:
        """True if the Hub stops the server already: a second stop would be answered with 500.

        The Hub has had the owner's stop before the job had it, and deletes what has failed. Of a cancelled start
        JupyterHub (5.5 to 6.1) makes the server *ready*, and stops it a second later unless it is stopped.
        """
        job, code = record.job, record.stop.code if record.stop is not None else None
        if code is not EventReason.CANCELLED:
            return code in _BY_THE_HUB
        try:
            user = await self.hub.user(job.user)
        except HubError:
            return False
        server = user.servers.get(job.server) if user else None
        return server is not None and server.ready and server.pending is None

    async def _ask_hub(self, record: JobRecord) -> bool:
        """Asks the Hub to stop the server; True if the Hub has no such server running now."""
        job = record.job
        try:
            await self.store.transact(lambda transaction: None)  # the last decision is committed then, or undone
            if self._wanted(job.id) is None:
                return False
            await self.store.ensure_leader()  # or the server may have another job by now
            return await self.hub.stop_server(job.user, job.server)
        except HubRejected as no:
            log.warning("job=%s user=%s server=%s the Hub does not stop it: %s", job.id, job.user, job.server, no)
            if no.status in _FORBIDDEN:
                await self._tell_admins(no)
            return no.status in {404, *_FORBIDDEN}

    async def _tell_admins(self, no: HubRejected) -> None:
        text = f"The Hub does not let the Manager stop servers; their pods are deleted instead. It says: {no}"
        await self.store.transact(
            lambda transaction: post_to_admins(transaction, NoticeKind.HUB_FORBIDS, text, cause=text)
        )

    async def _delete_pod(self, record: JobRecord) -> None:
        """Deletes exactly this pod, with its own grace period."""
        for pod in record.seen:
            log.warning("job=%s pod=%s the Hub does not stop such a job: its pod is deleted", record.job.id, pod.name)
            try:
                await self.cluster.delete(PODS, pod.name, self.namespaces.from_key(pod.namespace), uid=pod.uid)
            except (ObjectNotFound, Conflict):
                continue  # gone, or another pod has this name: the watch reports it


RUNS = "The server runs already, so there is nothing to cancel. Stop it on the page Jobs."


class CancelResult(Enum):
    REQUEST = "a request, which has ended or is on its way to it"
    NOTHING = "nothing"
    RUNS = "a server that is ready"


async def cancel_server_start(store: JobStore, hub: HubClient, user: str, server: str, who: str) -> CancelResult:
    """Cancels the start of this server; HubUnavailable when only the Hub knows whether the server is ready."""
    if await store.transact(lambda transaction: cancel_request(transaction, user, server, who)):
        return CancelResult.REQUEST
    running = await unready_job(store, hub, user, server)
    if running is not None:
        job = running.job.id
        stopped = await store.transact(
            lambda transaction: stop(transaction, job, EventReason.CANCELLED, CANCELLED_BEFORE_START)
        )
        return CancelResult.REQUEST if stopped else CancelResult.NOTHING
    return CancelResult.RUNS if _running(store, user, server) else CancelResult.NOTHING


async def unready_job(store: JobStore, hub: HubClient, user: str, server: str) -> JobRecord | None:
    """Returns the job if its pod runs and its server is not ready yet."""
    record = _running(store, user, server)
    if record is None:
        return None
    found = await hub.user(user)
    known = found.servers.get(server) if found is not None else None
    return record if known is not None and known.pending == "spawn" else None


def _running(store: JobStore, user: str, server: str) -> JobRecord | None:
    found = (store.records[job.id] for job in store.on(user, server) if job.state is JobState.RUNNING)
    return next(found, None)


STOPPED_BY_OWNER_SENTENCE = "Its owner has stopped this job. The files are kept."
_LOOKS, _ENDS_LOOK_SECONDS = 40, 0.05


@dataclass(frozen=True, slots=True)
class JobEnder:
    """Ends jobs for users. Raises NotLeader and DatabaseUnavailable: nothing was done then."""

    store: JobStore
    hub: HubClient

    async def end(self, record: JobRecord, who: str) -> bool:
        """Ends a job in any state; False when it has ended, or ends already."""
        now: JobRecord | None = record
        while now is not None:
            if await self._end(now, who):
                return True
            before, now = now, self.store.records.get(record.job.id)
            if now is not None and now.job.state is before.job.state:
                return False
        return False

    async def _end(self, record: JobRecord, who: str) -> bool:
        job = record.job
        if job.state is JobState.STOPPING and not job.requeue:
            return False
        if job.state is not JobState.RUNNING:
            return await self.store.transact(lambda transaction: _cancel(transaction, job, who))
        if who != job.user:
            sentence = f"{who} has stopped this job. Your files are kept."
            return await self.store.transact(
                lambda transaction: stop(transaction, job.id, EventReason.STOPPED_BY_ANOTHER, sentence)
            )
        why = EventReason.STOPPED_BY_OWNER
        if not await self.store.transact(lambda transaction: stop(transaction, job.id, why, STOPPED_BY_OWNER_SENTENCE)):
            return False
        try:
            if await self.hub.stop_server(job.user, job.server):
                await self._is_seen(job)
        except HubError as problem:  # it is decided: the terminator repeats the request
            log.warning("job=%s user=%s server=%s its stop has to wait: %s", job.id, job.user, job.server, problem)
        return True

    async def _is_seen(self, job: Job) -> None:
        """Waits until the end that the Hub has reported is written, or for two seconds."""
        for _ in range(_LOOKS):
            if job.id not in self.store.records:
                return
            await asyncio.sleep(_ENDS_LOOK_SECONDS)


def _cancel(transaction: Transaction, job: Job, who: str) -> bool:
    """Cancels this job; never another one of its server, which the caller may not be allowed to end."""
    waits = transaction.store.pending_job(job.user, job.server)
    if transaction.record(job.id) is None or (waits is not None and waits.job.id != job.id):
        return False
    return cancel_request(transaction, job.user, job.server, who)
