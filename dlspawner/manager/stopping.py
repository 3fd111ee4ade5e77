"""Stopping a job with a reason: decided in a turn, written down, and then done until it is done.

`stop` is the decision. From then on the job is ``stopping``, whatever happens to this process; whoever acts asks the
Hub to stop its server until the pod is gone, as the person would, so that the template's grace period holds. The Hub
asks back for the sentence (`api/jobs/{id}/ending`) and shows it to the person. If the Hub does not allow us to stop
servers, the pod itself is asked to end, and administrators are told.

A stop is of one job and not of its server: when the Hub has another job there by now, or none, the pod itself is asked
to end; and before each question to the Hub it is made sure that no other Manager acts, which would know of more. What
becomes of a job whose pod is gone is `gone`'s to say.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace

from dlspawner.cluster import PODS, Conflict, KubernetesClient, KubernetesError, ObjectNotFound
from dlspawner.core.jobs import JobState
from dlspawner.hubapi import HubClient, HubError, HubRejected
from dlspawner.manager import hopeless
from dlspawner.manager.book import JobStore, Transaction
from dlspawner.manager.namespaces import JobNamespaces
from dlspawner.manager.notices import NoticeKind, post_to_admins, withdraw
from dlspawner.manager.records import CANCELLED, JobRecord, StopReason
from dlspawner.manager.store import DatabaseUnavailable

PREEMPTED = "preempted"  # the one reason after which a job may wait again
BY_OWNER = "stopped-by-owner"  # who waits for the Hub's answer

_AT_ONCE = 10  # stops that the Hub is asked for at the same time
_LOOK_SECONDS = 0.5
_FORBIDDEN = frozenset({401, 403})  # asking again brings nothing
_AGAIN_SECONDS = 5.0  # between asking the Hub, and asking it or the cluster again
log = logging.getLogger("dlspawner.manager")


def stop(turn: Transaction, job: str, reason: str, sentence: str) -> bool:
    """Decide that a job is stopped; False when it holds nothing that could be stopped, or is being stopped already.

    ``reason`` is a word for events and logs, ``sentence`` is for the job's person: why, and what they can do.
    """
    record = turn.record(job)
    if record is None or record.reserved or record.job.state not in {JobState.STARTING, JobState.RUNNING}:
        return False
    stopping = replace(record.job, state=JobState.STOPPING, notice=None)
    turn.write(replace(record, job=stopping, stop=StopReason(reason, sentence)), reason, sentence)
    return True


def on_pods_gone(turn: Transaction, record: JobRecord, reason: str) -> None:
    """A job's pod is gone: the job has ended, or waits again with its first submit time."""
    job = record.job
    if record.stop is None or record.stop.code != PREEMPTED or not job.requeue:
        turn.write(replace(record, job=replace(job, state=JobState.ENDED)), reason)
        return
    turn.requeue(replace(record, start_attempts=1, failures=0), "requeued")
    withdraw(turn, job.id)
    waits = turn.record(job.id)
    if waits is not None:
        hopeless.tell_one(turn, waits.job)  # the files may have changed while it ran


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
        if record is not None and record.stop is not None and record.stop.code == BY_OWNER:
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
        if record.stop is None or record.stop.code != CANCELLED:
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
