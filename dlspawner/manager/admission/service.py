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
WRONG_NAMESPACE = "This Hub makes jobs where nobody counts their GPUs, so no job can be started. Ask an administrator."
NO_SPECIAL_NAMESPACE = "Jobs with special permissions would be made where nobody counts them: ask an administrator."
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
    def __init__(self, book: JobStore, queue: Scheduler, looks: Explainer, namespaces: JobNamespaces) -> None:
        self.store, self._queue, self._namespaces = book, queue, namespaces
        self.additions: Callable[[Job], tuple[Manifest, ...]] = lambda _: ()  # an engine's, to each pod
        self.make_objects: Callable[[str], Awaitable[None]] | None = None  # an engine's, before the pods are made
        self._reservation = book.reservation
        self.explainer = looks
        self._advising = asyncio.Lock()
        self._last_starts: dict[tuple[str, str], tuple[datetime, str]] = {}

    async def review(self, question: AdmissionRequest) -> AdmissionResponse:
        place = self._namespaces.of(special=bool(question.special))
        if question.namespace != place or not place:
            log.error(
                "job=%s would be in namespace %s, and Manager.%snamespace is %s: the spawner's has to be the same, and "
                "enable_user_namespaces off",
                *(question.job, question.namespace, "special_" if question.special else "", place or "not set"),
            )
            return _logged(
                question,
                AdmissionResponse(
                    "refuse", "other-namespace", (NO_SPECIAL_NAMESPACE if question.special else WRONG_NAMESPACE,)
                ),
            )
        answer = await self.store.transact(lambda turn: self._answer(turn, question))
        if answer.decision == "wait" and answer.reason == Reason.ENGINE.value:
            await self.store.until_verdict(question.job, _VERDICT_SECONDS)
            answer = await self.store.transact(lambda turn: self._answer(turn, question))
        self._remember_start(question, answer)
        waits = self.store.records.get(question.job)
        if answer.decision == "admit" and self.make_objects is not None:
            try:
                await self.make_objects(question.job)
            except KubernetesError as problem:
                log.warning("job=%s the engine's objects cannot be made: %s", question.job, problem)
                title = self.store.cluster_state.cluster.scheduler.title
                sentence = EngineSays.NOT_STARTED.sentence(title)
                await self.release_reservation(question.job, question.user, passes=True, why=sentence)
                return _logged(question, AdmissionResponse("refuse", Reason.ENGINE.value, (sentence,)))
        if answer.decision != "wait" or waits is None:
            return answer
        async with self._advising:
            await asyncio.sleep(0)  # many responses may be due at once, and alternatives cost as much as many decisions
            advice = self.explainer.advice(waits.job, self.store.now())
        return replace(answer, sentences=(*answer.sentences, *_advice(advice)))

    def last_start_of(self, user: str, server: str, since: datetime) -> str | None:
        """Returns the job of the server's latest admission request since then that a user caused and was not refused.

        Known for the servers of the latest 10,000 starts, and until this process ends.
        """
        at, job = self._last_starts.get((user, server), (since, None))
        return job if at >= since else None

    def _remember_start(self, question: AdmissionRequest, answer: AdmissionResponse) -> None:
        where = (question.user, question.server)
        if answer.decision == "refuse" or where in self._queue.starts_in_flight:
            return  # the latter is a start that the dispatcher requested
        self._last_starts.pop(where, None)
        self._last_starts[where] = (self.store.now(), question.job)
        if len(self._last_starts) > _ASKED:
            del self._last_starts[next(iter(self._last_starts))]

    def pending(self, user: str, server: str | None = None) -> list[QueuePosition]:
        """Returns the user's pending jobs, of one server or of all."""
        book = self.store
        mine = [job for (name, where), job in book.pending.items() if name == user and server in (None, where)]
        now = book.now()
        return [
            QueuePosition(
                one.job, 0 if one.waits_in_cluster else scheduling_queue.position(one.job, book.cluster_state, now)
            )
            for one in (book.records[job] for job in mine)
        ]

    def starting_or_pending(self, user: str, server: str) -> JobRecord | None:
        """Returns the server's job that is pending or starting."""
        book = self.store
        started = (book.records[one.id] for one in book.on(user, server) if one.state is JobState.STARTING)
        return book.pending_job(user, server) or next(started, None)

    async def release_reservation(self, job: str, user: str, *, passes: bool = False, why: str = "") -> None:
        """Releases a reservation if the Hub has not created its pod and will not; ``passes``: the cause is temporary.

        A job that was queued before is requeued then.
        """

        def give_back(turn: Transaction) -> None:
            record = turn.record(job)
            if record is None or not record.reserved or record.awaiting_start or record.job.user != user:
                return
            waits_again = (
                passes and 0 < record.start_attempts < MAX_START_ATTEMPTS and record.job.state is JobState.STARTING
            )
            if waits_again:
                self._queue.backoff(job, turn.now + timedelta(seconds=5))
                lifecycle.requeue(turn, record, EventReason.NOT_CREATED, why)
            else:
                lifecycle.fail_start(turn, record, EventReason.NOT_CREATED, why)

        await self.store.transact(give_back)

    def _answer(self, turn: Transaction, question: AdmissionRequest) -> AdmissionResponse:
        turn.store.asked = turn.cluster_state.teams.has_limits(turn.cluster_state.cluster)
        if turn.store.capacity_changed.is_set():
            self._queue.schedule(turn)  # a new job gets nothing that pending jobs wait for
        known = turn.record(question.job)
        if known is not None and (known.job.user, known.job.server) != (question.user, question.server):
            return AdmissionResponse("refuse", "job-id", (NOT_YOURS,))
        if known is not None and (known.waits_in_cluster or not known.is_pending):
            return self._admitted_before(turn, question, known)
        if known is None:
            if turn.store.recently_ended(question.job) or self._was_cancelled(question):
                return AdmissionResponse("refuse", "over", (EXPIRED,))
            turn.expect_new(question.job)
            approvals.forget_denial(turn, question.user, question.server)
        wanted = _requested_job(turn.cluster_state, turn.now, question)
        if isinstance(wanted, Refuse):
            return _answered(question, wanted)
        other = turn.store.pending_job(question.user, question.server)
        if other is not None and other is not known:
            lifecycle.replace_pending(turn, other, question.job)
        if known is None:
            record = JobRecord(wanted, request_seconds=question.request_seconds, options=question.options)
            return self._decide(turn, question, record)
        return self._readmit(turn, question, known, wanted)

    def _admitted_before(self, turn: Transaction, question: AdmissionRequest, known: JobRecord) -> AdmissionResponse:
        """The same start asks once more, or a later one for pods that wait in the cluster."""
        if known.nonce != question.nonce and self._has_all_pods(turn, known):
            return self._rejoin(turn, question, known)
        left = (known.deadline - turn.now).total_seconds() if known.deadline else 0.0
        may = left > 0 and known.job.state is not JobState.STOPPING and known.nonce == question.nonce
        return self._admitted(known.job, "known", left) if may else AdmissionResponse("refuse", "over", (EXPIRED,))

    def _has_all_pods(self, turn: Transaction, known: JobRecord) -> bool:
        """True for a job of an engine that is looked for in the cluster: its pods were made, and wait or run."""
        scheduler = turn.cluster_state.cluster.scheduler
        waits = not scheduler.is_native and not scheduler.admits_before_pods
        return waits and known.job.state in {JobState.STARTING, JobState.RUNNING} and not known.reserved

    def _rejoin(self, turn: Transaction, question: AdmissionRequest, known: JobRecord) -> AdmissionResponse:
        """The pods of this job are in the cluster: its server is started with them, or not at all."""
        if question.options != known.options:
            return _logged(question, AdmissionResponse("refuse", "in-cluster", (WAITS_WITH_OTHER_OPTIONS,)))
        if known.awaiting_start:
            lifecycle.rejoin(turn, known)
        seconds = self._reservation.total_seconds()
        return _logged(question, AdmissionResponse("admit", "rejoined", seconds=seconds, pods_exist=True))

    async def leave_in_cluster(self, job: str, user: str) -> str | None:
        """The Hub ends a start and leaves the pods to an engine: the engine's sentence; ``None``: not now."""
        record = self.store.records.get(job)
        if record is None or record.job.user != user:
            return None
        left = await self.store.transact(lambda turn: lifecycle.leave_in_cluster(turn, job))
        return self.explainer.why(record.job, self.store.now()) if left else None

    def _was_cancelled(self, question: AdmissionRequest) -> bool:
        """True if the dispatcher requests this start just now, for a job that ended before the Hub learned its id."""
        told = self._queue.starts_in_flight.get((question.user, question.server))
        return told is not None and told not in self.store.records

    def _readmit(
        self, turn: Transaction, question: AdmissionRequest, known: JobRecord, wanted: Job
    ) -> AdmissionResponse:
        """A pending job is requested again: by its owner, or by the Hub after the dispatch."""
        keeps = _is_no_larger(wanted, known.job)
        same = keeps and _options(wanted) == _options(known.job)
        turn.store.mark_inadmissible(known.job.id, "")  # the owner asks, or the configuration has changed
        known = turn.store.records[known.job.id]
        record = replace(known, request_seconds=question.request_seconds, options=question.options)
        if record.awaiting_start and same:
            return self._admit(turn, question, record, known.job.nodes)
        if not keeps and (never := limits.config_violation(wanted, turn.cluster_state)) is not None:
            return _answered(question, never)  # and the pending job stays pending
        if not same:  # its reserved nodes were for other options
            job = replace(wanted, submitted=known.job.submitted, approved=known.job.approved) if keeps else wanted
            record = as_queued(replace(record, job=job, demote_at=None))
        elif record.job.state is JobState.LOGIN_REQUIRED:
            record = as_queued(record)
        if known.job.state is JobState.LOGIN_REQUIRED:
            withdraw(turn, record.job.id, NoticeKind.LOGIN_REQUIRED)
        withdraw(turn, record.job.id, NoticeKind.CANNOT_START)  # the response tells it again
        if record.job != known.job:
            lifecycle.update_request(turn, record, changed=not same)
        if known.awaiting_start and record.job.team != known.job.team:
            post(turn, record.job, NoticeKind.PREEMPTION_CANCELLED, _moved(known.job, record.job, turn.cluster_state))
        return self._decide(turn, question, record, () if keeps else (REPLACED,))

    def _decide(
        self, turn: Transaction, question: AdmissionRequest, record: JobRecord, notes: tuple[str, ...] = ()
    ) -> AdmissionResponse:
        world, job = turn.cluster_state, record.job
        found = self._evaluate(job, world, turn.now)
        if isinstance(found, Admit):
            return self._admit(turn, question, record, found.nodes)
        if isinstance(found, Refuse):
            return _answered(question, found)
        record = lifecycle.reevaluate(turn, record)
        if record.job.state is JobState.PENDING_APPROVAL:
            sentence = self.explainer.why(record.job, turn.now)
            return _logged(
                question, AdmissionResponse("wait", Reason.APPROVAL.value, (sentence, KEEPS_SUBMIT_TIME, *notes))
            )
        position = scheduling_queue.position(job, world, turn.now)
        if job.state is JobState.SUBMITTED:
            lifecycle.enqueue(turn, record, found.reason)
        sentence = _why(found, job, world)
        where = text.queue_place(position)
        if self.explainer.inadmissible(turn.store.records[job.id].job):
            where = text.AS_REQUESTED_NEVER
        return _logged(question, AdmissionResponse("wait", found.reason.value, (sentence, where, *notes)))

    def _evaluate(self, job: Job, world: ClusterState, now: datetime) -> Decision:
        found = admission.admit(job, world, now)
        if isinstance(found, Admit) and self._queue.behind_earlier_jobs(job):
            return MustWait(Reason.BLOCKED_BY_EARLIER, EARLIER_JOBS_FIRST, scheduling_queue.position(job, world, now))
        return found

    def preview(self, question: AdmissionRequest) -> tuple[Job | None, AdmissionResponse]:
        """Returns the job of this request and the response if it were new and submitted now; nothing is written."""
        world, now = self.store.cluster_state, self.store.now()
        job = _requested_job(world, now, question)
        if isinstance(job, Refuse):
            return None, AdmissionResponse("refuse", job.reason.value, (job.sentence,))
        found = self._evaluate(job, world, now)
        if isinstance(found, Refuse):
            return job, AdmissionResponse("refuse", found.reason.value, (found.sentence,))
        if isinstance(found, Admit):
            return job, AdmissionResponse("admit", Reason.ADMITTED.value)
        sentence = _why(found, job, world)
        if limits.missing_approvals(job, world):
            return job, AdmissionResponse("wait", Reason.APPROVAL.value, (sentence, KEEPS_SUBMIT_TIME))
        where = f"It would be number {scheduling_queue.position(job, world, now)} in the queue."
        advice = _advice(self.explainer.advice(job, now))
        return job, AdmissionResponse("wait", found.reason.value, (sentence, where, *advice))

    def _admit(
        self, turn: Transaction, question: AdmissionRequest, record: JobRecord, nodes: tuple[str | None, ...]
    ) -> AdmissionResponse:
        starting = lifecycle.admit(turn, record, nodes, question.nonce)
        return _logged(question, self._admitted(starting, Reason.ADMITTED.value, self._reservation.total_seconds()))

    def _admitted(self, job: Job, reason: str, seconds: float) -> AdmissionResponse:
        nodes = job.nodes if job.request.gpu_type is not None else ()  # without GPUs Kubernetes' scheduler knows best
        return AdmissionResponse("admit", reason, (), seconds, nodes, job.ports, self.additions(job))


def _requested_job(world: ClusterState, now: datetime, question: AdmissionRequest) -> Job | Refuse:
    charged = request_of(question.pods, world.cluster)
    if isinstance(charged, Refuse):
        return charged
    if question.ports:
        pods = zip(charged.pods, question.ports, strict=True)
        charged = replace(charged, pods=tuple(replace(pod, ports=count) for pod, count in pods))
    team = world.team(question.team) or Team(question.team)
    level = world.cluster.priority(team, question.priority)
    if level is None:
        allowed = ", ".join(one.name for one in world.cluster.allowed_priorities(team))
        return Refuse(Reason.NOT_ALLOWED, _LEVEL % (team.title or team.name, question.priority, allowed))
    return Job(
        id=question.job,
        user=question.user,
        team=question.team,
        submitted=now,
        request=charged,
        server=question.server,
        template=question.template,
        priority=level.level,
        preemptible=question.preemptible,
        requeue=question.requeue,
        special=Permissions(question.special, question.image) if question.special else None,
    )


def _why(found: MustWait | Preempt, job: Job, world: ClusterState) -> str:
    """Returns why a job does not start now."""
    if isinstance(found, MustWait):
        return found.sentence
    return victims_will_stop_sentence(job, [world.jobs[name] for name in found.victims])


def _moved(before: Job, after: Job, world: ClusterState) -> str:
    """Returns the owner's sentence about a pending job that changed teams, as the Hub said at its start."""
    old, new = (
        f"“{team.title or team.name}”" if (team := world.team(one.team)) else f"“{one.team}”" for one in (before, after)
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


def _answered(question: AdmissionRequest, found: Refuse) -> AdmissionResponse:
    return _logged(question, AdmissionResponse("refuse", found.reason.value, (found.sentence,)))


def _logged(question: AdmissionRequest, answer: AdmissionResponse) -> AdmissionResponse:
    log.info(
        "admission team=%s job=%s user=%s server=%s decision=%s reason=%s",
        question.team,
        question.job,
        question.user,
        question.server,
        answer.decision,
        answer.reason,
    )
    return answer


def _advice(advice: Sequence[Alternative]) -> tuple[str, ...]:
    return (f"What would start at once: {', or '.join(map(alternative_text, advice))}.",) if advice else ()
