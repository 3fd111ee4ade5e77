"""Answers the Hub's admission requests. The decision is the core's.

A request has the job's id, and is idempotent: the same request gets the same response, because a response may be lost.
What is admitted is reserved in the same transaction; the Hub creates the pod before the reservation's deadline or not
at all.

A job that cannot start now is *queued*, and scheduler and dispatcher do the rest; a job that needs an approval first is
*pending-approval*. A server has at most one pending job; the Hub asks for its id and sends it again, so that it is the
same job. A repeated request for no more than before keeps the first submit time and an approval; one for more is a new
job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dlspawner.clients.kubernetes import KubernetesError
from dlspawner.core import text
from dlspawner.core.config import SpecialPermission, Team
from dlspawner.core.decisions import Admit, Alternative, Decision, EngineSays, MustWait, Preempt, Reason, Refuse
from dlspawner.core.job import Job, JobState, Permissions
from dlspawner.core.resources import request_of
from dlspawner.core.scheduling import admission, limits
from dlspawner.core.scheduling import queue as scheduling_queue
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.preemption import victims_will_stop_sentence
from dlspawner.core.units import Manifest
from dlspawner.manager.admission import approvals
from dlspawner.manager.admission.explain import Explainer, alternative_text
from dlspawner.manager.admission.scheduler import Scheduler
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.namespaces import JobNamespaces
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import MAX_START_ATTEMPTS, JobRecord, as_queued
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction, withdraw
from dlspawner.manager.state.notify import post

log = logging.getLogger("dlspawner.manager")

EXPIRED = "This start was cancelled, or has taken too long and its GPUs were given back. Start the job again."
REPLACED = "It takes the place of your earlier request for this server, and asks for more: its place is a new one."
KEEPS_SUBMIT_TIME = "It holds nothing until then, and keeps its submit time."
EARLIER_JOBS_FIRST = "Others that wait are being started first."
_LEVEL = "Team %s may not use the priority “%s”; choose one of these: %s."
WRONG_NAMESPACE = "This Hub makes jobs in another namespace than the Manager expects: ask an administrator."
NO_SPECIAL_NAMESPACE = (
    "Jobs with special permissions are made in another namespace than the Manager expects: ask an administrator."
)
WAITS_WITH_OTHER_OPTIONS = (
    "This server's job waits in the cluster already, with other options. Cancel it first if you want another one."
)
NOT_YOURS = "Another job has this id already. Start the job again."
_VERDICT_SECONDS = 1.0  # for which a request waits for an engine's verdict; most take a tenth of that
_ASKED = 10_000  # servers with a remembered latest start


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A job that is to start: its owner, and the essentials of its final pods."""

    job: str
    user: str
    server: str
    team: str
    template: str
    preemptible: bool
    priority: str  # the level's name; empty for the team's lowest
    requeue: bool
    request_seconds: float
    namespace: str  # where its pods would be
    pods: tuple[Manifest, ...]
    special: tuple[SpecialPermission, ...] = ()  # permissions that need an approval
    image: str = ""  # the image that gets them
    nonce: str = ""  # the nonce of its pods; none: any is accepted
    options: str = ""  # the user options, as JSON
    ports: tuple[int, ...] = ()  # how many of the host's each pod wants; empty: none


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """``decision``: admit, wait or refuse. Of an admission, ``seconds`` until its deadline.

    ``nodes``, ``ports`` and an engine's ``additions``: of each pod.
    """

    decision: str
    reason: str
    sentences: tuple[str, ...] = ()
    seconds: float = 0.0
    nodes: tuple[str | None, ...] = ()
    ports: tuple[tuple[int, ...], ...] = ()
    additions: tuple[Manifest, ...] = ()
    pods_exist: bool = False


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A pending job and its position in the queue, from 1; 0 for one that waits in the cluster."""

    job: Job
    position: int


class AdmissionService:
    def __init__(self, store: JobStore, queue: Scheduler, explainer: Explainer, namespaces: JobNamespaces) -> None:
        self.store, self._queue, self._namespaces = store, queue, namespaces
        self.additions: Callable[[Job], tuple[Manifest, ...]] = lambda _: ()  # an engine's, to each pod
        self.make_objects: Callable[[str], Awaitable[None]] | None = None  # an engine's, before the pods are made
        self._reservation = store.reservation
        self.explainer = explainer
        self._advising = asyncio.Lock()
        self._last_starts: dict[tuple[str, str], tuple[datetime, str]] = {}

    async def review(self, request: AdmissionRequest) -> AdmissionResponse:
        place = self._namespaces.of(special=bool(request.special))
        if request.namespace != place or not place:
            log.error(
                "job=%s would be in namespace %s, and Manager.%snamespace is %s: the spawner's has to be the same, and "
                "enable_user_namespaces off",
                *(request.job, request.namespace, "special_" if request.special else "", place or "not set"),
            )
            return _logged(
                request,
                AdmissionResponse(
                    "refuse", "other-namespace", (NO_SPECIAL_NAMESPACE if request.special else WRONG_NAMESPACE,)
                ),
            )
        response = await self.store.transact(lambda transaction: self._answer(transaction, request))
        if response.decision == "wait" and response.reason == Reason.ENGINE.value:
            await self.store.until_verdict(request.job, _VERDICT_SECONDS)
            response = await self.store.transact(lambda transaction: self._answer(transaction, request))
        self._remember_start(request, response)
        waits = self.store.records.get(request.job)
        if response.decision == "admit" and self.make_objects is not None:
            try:
                await self.make_objects(request.job)
            except KubernetesError as problem:
                log.warning("job=%s the engine's objects cannot be made: %s", request.job, problem)
                title = self.store.cluster_state.cluster.scheduler.title
                sentence = EngineSays.NOT_STARTED.sentence(title)
                await self.release_reservation(request.job, request.user, temporary=True, why=sentence)
                return _logged(request, AdmissionResponse("refuse", Reason.ENGINE.value, (sentence,)))
        if response.decision != "wait" or waits is None:
            return response
        async with self._advising:
            await asyncio.sleep(0)  # many responses may be due at once, and alternatives cost as much as many decisions
            advice = self.explainer.advice(waits.job, self.store.now())
        return replace(response, sentences=(*response.sentences, *_advice(advice)))

    def last_start_of(self, user: str, server: str, since: datetime) -> str | None:
        """Returns the job of the server's latest admission request since then that a user caused and was not refused.

        Known for the servers of the latest 10,000 starts, and until this process ends.
        """
        at, job = self._last_starts.get((user, server), (since, None))
        return job if at >= since else None

    def _remember_start(self, request: AdmissionRequest, response: AdmissionResponse) -> None:
        where = (request.user, request.server)
        if response.decision == "refuse" or where in self._queue.starts_in_flight:
            return  # the latter is a start that the dispatcher requested
        self._last_starts.pop(where, None)
        self._last_starts[where] = (self.store.now(), request.job)
        if len(self._last_starts) > _ASKED:
            del self._last_starts[next(iter(self._last_starts))]

    def pending(self, user: str, server: str | None = None) -> list[QueuePosition]:
        """Returns the user's pending jobs, of one server or of all."""
        store = self.store
        mine = [job for (name, where), job in store.pending.items() if name == user and server in (None, where)]
        now = store.now()
        return [
            QueuePosition(
                one.job, 0 if one.waits_in_cluster else scheduling_queue.position(one.job, store.cluster_state, now)
            )
            for one in (store.records[job] for job in mine)
        ]

    def starting_or_pending(self, user: str, server: str) -> JobRecord | None:
        """Returns the server's job that is pending or starting."""
        store = self.store
        started = (store.records[one.id] for one in store.on(user, server) if one.state is JobState.STARTING)
        return store.pending_job(user, server) or next(started, None)

    async def release_reservation(self, job: str, user: str, *, temporary: bool = False, why: str = "") -> None:
        """Releases a reservation if the Hub has not created its pod and will not; ``temporary``: the cause will pass.

        A job that was queued before is requeued then.
        """

        def give_back(transaction: Transaction) -> None:
            record = transaction.record(job)
            if record is None or not record.reserved or record.awaiting_start or record.job.user != user:
                return
            waits_again = (
                temporary and 0 < record.start_attempts < MAX_START_ATTEMPTS and record.job.state is JobState.STARTING
            )
            if waits_again:
                self._queue.backoff(job, transaction.now + timedelta(seconds=5))
                lifecycle.requeue(transaction, record, EventReason.NOT_CREATED, why)
            else:
                lifecycle.fail_start(transaction, record, EventReason.NOT_CREATED, why)

        await self.store.transact(give_back)

    def _answer(self, transaction: Transaction, request: AdmissionRequest) -> AdmissionResponse:
        transaction.store.asked = transaction.cluster_state.teams.has_limits(transaction.cluster_state.cluster)
        if transaction.store.capacity_changed.is_set():
            self._queue.schedule(transaction)  # a new job gets nothing that pending jobs wait for
        known = transaction.record(request.job)
        if known is not None and (known.job.user, known.job.server) != (request.user, request.server):
            return AdmissionResponse("refuse", "job-id", (NOT_YOURS,))
        if known is not None and (known.waits_in_cluster or not known.is_pending):
            return self._admitted_before(transaction, request, known)
        if known is None:
            if transaction.store.recently_ended(request.job) or self._was_cancelled(request):
                return AdmissionResponse("refuse", "expired", (EXPIRED,))
            transaction.expect_new(request.job)
            approvals.forget_denial(transaction, request.user, request.server)
        wanted = _requested_job(transaction.cluster_state, transaction.now, request)
        if isinstance(wanted, Refuse):
            return _answered(request, wanted)
        other = transaction.store.pending_job(request.user, request.server)
        if other is not None and other is not known:
            lifecycle.replace_pending(transaction, other, request.job)
        if known is None:
            record = JobRecord(wanted, request_seconds=request.request_seconds, options=request.options)
            return self._decide(transaction, request, record)
        return self._readmit(transaction, request, known, wanted)

    def _admitted_before(
        self, transaction: Transaction, request: AdmissionRequest, known: JobRecord
    ) -> AdmissionResponse:
        """The same start asks once more, or a later one for pods that wait in the cluster."""
        if known.nonce != request.nonce and self._has_all_pods(transaction, known):
            return self._rejoin(transaction, request, known)
        left = (known.deadline - transaction.now).total_seconds() if known.deadline else 0.0
        may = left > 0 and known.job.state is not JobState.STOPPING and known.nonce == request.nonce
        return self._admitted(known.job, "known", left) if may else AdmissionResponse("refuse", "expired", (EXPIRED,))

    def _has_all_pods(self, transaction: Transaction, known: JobRecord) -> bool:
        """True for a job of an engine that is looked for in the cluster: its pods were made, and wait or run."""
        scheduler = transaction.cluster_state.cluster.scheduler
        waits = not scheduler.is_native and not scheduler.admits_before_pods
        return waits and known.job.state in {JobState.STARTING, JobState.RUNNING} and not known.reserved

    def _rejoin(self, transaction: Transaction, request: AdmissionRequest, known: JobRecord) -> AdmissionResponse:
        """The pods of this job are in the cluster: its server is started with them, or not at all."""
        if request.options != known.options:
            return _logged(request, AdmissionResponse("refuse", "in-cluster", (WAITS_WITH_OTHER_OPTIONS,)))
        if known.awaiting_start:
            lifecycle.rejoin(transaction, known)
        seconds = self._reservation.total_seconds()
        return _logged(request, AdmissionResponse("admit", "rejoined", seconds=seconds, pods_exist=True))

    async def leave_in_cluster(self, job: str, user: str) -> str | None:
        """The Hub ends a start and leaves the pods to an engine: the engine's sentence; ``None``: not now."""
        record = self.store.records.get(job)
        if record is None or record.job.user != user:
            return None
        left = await self.store.transact(lambda transaction: lifecycle.leave_in_cluster(transaction, job))
        return self.explainer.why(record.job, self.store.now()) if left else None

    def _was_cancelled(self, request: AdmissionRequest) -> bool:
        """True if the dispatcher requests this start just now, for a job that ended before the Hub learned its id."""
        told = self._queue.starts_in_flight.get((request.user, request.server))
        return told is not None and told not in self.store.records

    def _readmit(
        self, transaction: Transaction, request: AdmissionRequest, known: JobRecord, wanted: Job
    ) -> AdmissionResponse:
        """A pending job is requested again: by its owner, or by the Hub after the dispatch."""
        keeps = _is_no_larger(wanted, known.job)
        same = keeps and _options(wanted) == _options(known.job)
        transaction.store.mark_inadmissible(known.job.id, "")  # the owner asks, or the configuration has changed
        known = transaction.store.records[known.job.id]
        record = replace(known, request_seconds=request.request_seconds, options=request.options)
        if record.awaiting_start and same:
            return self._admit(transaction, request, record, known.job.nodes)
        if not keeps and (never := limits.config_violation(wanted, transaction.cluster_state)) is not None:
            return _answered(request, never)  # and the pending job stays pending
        if not same:  # its reserved nodes were for other options
            job = replace(wanted, submitted=known.job.submitted, approved=known.job.approved) if keeps else wanted
            record = as_queued(replace(record, job=job, demote_at=None))
        elif record.job.state is JobState.LOGIN_REQUIRED:
            record = as_queued(record)
        if known.job.state is JobState.LOGIN_REQUIRED:
            withdraw(transaction, record.job.id, NoticeKind.LOGIN_REQUIRED)
        withdraw(transaction, record.job.id, NoticeKind.CANNOT_START)  # the response tells it again
        if record.job != known.job:
            lifecycle.update_request(transaction, record, changed=not same)
        if known.awaiting_start and record.job.team != known.job.team:
            post(
                transaction,
                record.job,
                NoticeKind.PREEMPTION_CANCELLED,
                _moved(known.job, record.job, transaction.cluster_state),
            )
        return self._decide(transaction, request, record, () if keeps else (REPLACED,))

    def _decide(
        self, transaction: Transaction, request: AdmissionRequest, record: JobRecord, notes: tuple[str, ...] = ()
    ) -> AdmissionResponse:
        state, job = transaction.cluster_state, record.job
        found = self._evaluate(job, state, transaction.now)
        if isinstance(found, Admit):
            return self._admit(transaction, request, record, found.nodes)
        if isinstance(found, Refuse):
            return _answered(request, found)
        record = lifecycle.reevaluate(transaction, record)
        if record.job.state is JobState.PENDING_APPROVAL:
            sentence = self.explainer.why(record.job, transaction.now)
            return _logged(
                request, AdmissionResponse("wait", Reason.APPROVAL.value, (sentence, KEEPS_SUBMIT_TIME, *notes))
            )
        position = scheduling_queue.position(job, state, transaction.now)
        if job.state is JobState.SUBMITTED:
            lifecycle.enqueue(transaction, record, found.reason)
        sentence = _why(found, job, state)
        where = text.queue_place(position)
        if self.explainer.inadmissible(transaction.store.records[job.id].job):
            where = text.AS_REQUESTED_NEVER
        return _logged(request, AdmissionResponse("wait", found.reason.value, (sentence, where, *notes)))

    def _evaluate(self, job: Job, state: ClusterState, now: datetime) -> Decision:
        found = admission.admit(job, state, now)
        if isinstance(found, Admit) and self._queue.behind_earlier_jobs(job):
            return MustWait(Reason.BLOCKED_BY_EARLIER, EARLIER_JOBS_FIRST, scheduling_queue.position(job, state, now))
        return found

    def preview(self, request: AdmissionRequest) -> tuple[Job | None, AdmissionResponse]:
        """Returns the job of this request and the response if it were new and submitted now; nothing is written."""
        state, now = self.store.cluster_state, self.store.now()
        job = _requested_job(state, now, request)
        if isinstance(job, Refuse):
            return None, AdmissionResponse("refuse", job.reason.value, (job.sentence,))
        found = self._evaluate(job, state, now)
        if isinstance(found, Refuse):
            return job, AdmissionResponse("refuse", found.reason.value, (found.sentence,))
        if isinstance(found, Admit):
            return job, AdmissionResponse("admit", Reason.ADMITTED.value)
        sentence = _why(found, job, state)
        if limits.missing_approvals(job, state):
            return job, AdmissionResponse("wait", Reason.APPROVAL.value, (sentence, KEEPS_SUBMIT_TIME))
        where = f"It would be number {scheduling_queue.position(job, state, now)} in the queue."
        advice = _advice(self.explainer.advice(job, now))
        return job, AdmissionResponse("wait", found.reason.value, (sentence, where, *advice))

    def _admit(
        self, transaction: Transaction, request: AdmissionRequest, record: JobRecord, nodes: tuple[str | None, ...]
    ) -> AdmissionResponse:
        starting = lifecycle.admit(transaction, record, nodes, request.nonce)
        return _logged(request, self._admitted(starting, Reason.ADMITTED.value, self._reservation.total_seconds()))

    def _admitted(self, job: Job, reason: str, seconds: float) -> AdmissionResponse:
        nodes = job.nodes if job.request.gpu_type is not None else ()  # without GPUs Kubernetes' scheduler knows best
        return AdmissionResponse("admit", reason, (), seconds, nodes, job.ports, self.additions(job))


def _requested_job(state: ClusterState, now: datetime, request: AdmissionRequest) -> Job | Refuse:
    charged = request_of(request.pods, state.cluster)
    if isinstance(charged, Refuse):
        return charged
    if request.ports:
        pods = zip(charged.pods, request.ports, strict=True)
        charged = replace(charged, pods=tuple(replace(pod, ports=count) for pod, count in pods))
    team = state.team(request.team) or Team(request.team)
    level = state.cluster.priority(team, request.priority)
    if level is None:
        allowed = ", ".join(one.name for one in state.cluster.allowed_priorities(team))
        return Refuse(Reason.NOT_ALLOWED, _LEVEL % (team.title or team.name, request.priority, allowed))
    return Job(
        id=request.job,
        user=request.user,
        team=request.team,
        submitted=now,
        request=charged,
        server=request.server,
        template=request.template,
        priority=level.level,
        preemptible=request.preemptible,
        requeue=request.requeue,
        special=Permissions(request.special, request.image) if request.special else None,
    )


def _why(found: MustWait | Preempt, job: Job, state: ClusterState) -> str:
    """Returns why a job does not start now."""
    if isinstance(found, MustWait):
        return found.sentence
    return victims_will_stop_sentence(job, [state.jobs[name] for name in found.victims])


def _moved(before: Job, after: Job, state: ClusterState) -> str:
    """Returns the owner's sentence about a pending job that changed teams, as the Hub said at its start."""
    old, new = (
        f"“{team.title or team.name}”" if (team := state.team(one.team)) else f"“{one.team}”" for one in (before, after)
    )
    return f"Your job does not count for team {old} any more: it is now one of team {new}, at the place it gets there."


def _is_no_larger(wanted: Job, known: Job) -> bool:
    """True if a job requests nothing beyond another one, so that it can have that one's place."""
    same = (wanted.team, wanted.preemptible, wanted.request.gpu_type) == (
        *(known.team, known.preemptible, known.request.gpu_type),
    )
    had = dict(known.request.extended)
    no_more = all(amount <= had.get(name, 0) for name, amount in wanted.request.extended)
    asked, before = _amounts(wanted), _amounts(known)
    no_more = no_more and all(a <= b for a, b in zip(asked, before, strict=True))
    return same and wanted.priority <= known.priority and no_more


def _options(job: Job) -> tuple[object, ...]:
    """Returns the options that a reservation is for, beside team and GPU type."""
    special = None if job.special is None else (job.special.special, job.special.image)
    return (job.request, job.template, job.priority, job.requeue, special)


def _amounts(job: Job) -> tuple[int, int, int]:
    pods = job.request.pods
    return job.request.gpus, sum(pod.cpu_milli for pod in pods), sum(pod.memory_bytes for pod in pods)


def _answered(request: AdmissionRequest, found: Refuse) -> AdmissionResponse:
    return _logged(request, AdmissionResponse("refuse", found.reason.value, (found.sentence,)))


def _logged(request: AdmissionRequest, response: AdmissionResponse) -> AdmissionResponse:
    log.info(
        "admission team=%s job=%s user=%s server=%s decision=%s reason=%s",
        request.team,
        request.job,
        request.user,
        request.server,
        response.decision,
        response.reason,
    )
    return response


def _advice(advice: Sequence[Alternative]) -> tuple[str, ...]:
    return (f"What would start at once: {', or '.join(map(alternative_text, advice))}.",) if advice else ()
