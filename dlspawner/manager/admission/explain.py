"""Explains the queue: why a job is pending, its position, what would start at once instead, and its estimated start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from dlspawner.core.decisions import Admit, Alternative, EngineWaits, Estimate, MustWait, Preempt, Reason, Refuse
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission, limits, queue
from dlspawner.core.scheduling.admission import find_alternatives
from dlspawner.core.scheduling.cluster_state import queue_key
from dlspawner.core.scheduling.preemption import victims_of, victims_stopping_sentence, victims_will_stop_sentence
from dlspawner.core.text import moment
from dlspawner.core.units import counted
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import JobStore

_ADVICE_FOR = timedelta(seconds=3)  # many people look at once, and trying everything out costs as much as a decision
_MOST_REASONS = 1000
_NEXT = "Its turn comes any moment."


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The status of a pending job, as its page shows it."""

    job: Job
    state: str  # queued, pending-approval, login-required, or starting
    position: int
    waiting: int  # how many wait for the same
    sentence: str
    advice: tuple[Alternative, ...]
    estimate: Estimate | None = None  # of its start, where one is known
    inadmissible: bool = False  # whether it can not start as things are

    @property
    def keeps_place(self) -> bool:
        """True if some alternative keeps the position: less of the same."""
        return any(self._is_less(one) for one in self.advice)

    @property
    def loses_place(self) -> bool:
        """True if some alternative gives the position up: another type, or another kind of job."""
        return not all(self._is_less(one) for one in self.advice)

    def _is_less(self, one: Alternative) -> bool:
        return (one.gpu_type, one.preemptible) == (self.job.request.gpu_type, self.job.preemptible)


class Explainer:
    """Explains jobs of one store; the function tells if a template offers preemptible jobs."""

    def __init__(self, store: JobStore, offers_preemptible: Callable[[str], bool]) -> None:
        self.store, self._offers = store, offers_preemptible
        self.estimates: Mapping[str, Estimate] = {}  # by job, as of a moment ago
        self._reasons: dict[str, tuple[datetime, Reason]] = {}
        self._places: dict[str, tuple[datetime, Job, int, str]] = {}
        store.subscribers.append(lambda _: self._places.clear())
        self._kept: dict[object, tuple[datetime, tuple[Alternative, ...]]] = {}

    def waiting(self, now: datetime) -> list[Job]:
        """Returns all jobs that wait for GPUs: the queue in its order, then those in the cluster by their age."""
        records = (self.store.records[job] for job in self.store.pending.values())
        placed = sorted((one.job for one in records if one.waits_in_cluster), key=lambda job: job.submitted)
        return [*queue.order(self.store.cluster_state, now), *placed]

    def explain(self, record: JobRecord, *, advises: bool = True) -> QueueStatus:
        """Returns the status; alternatives only on request, because they cost as much as many decisions."""
        job, state, now = record.job, self.store.cluster_state, self.store.now()
        if record.waits_in_cluster:
            return QueueStatus(job, "queued", 0, 0, self.why(job, now), ())
        position = queue.position(job, state, now)
        if job.state is JobState.PENDING_APPROVAL:
            return QueueStatus(job, job.state.value, position, position, self.why(job, now), self.advice(job, now))
        if job.state is not JobState.QUEUED:
            return QueueStatus(job, job.state.value, position, position, "", ())
        advice = self.advice(job, now) if advises else ()
        waiting, why = max(position, _waiting(job, self.store)), self.why(job, now)  # an engine may have other jobs
        return QueueStatus(
            job, "queued", position, waiting, why, advice, self.estimate(job, now), self.inadmissible(job)
        )

    def inadmissible(self, job: Job) -> bool:
        """True if the configuration does not allow a queued job: it is not scheduled before that changes."""
        return job.state is JobState.QUEUED and limits.config_violation(job, self.store.cluster_state) is not None

    def position(self, job: Job, now: datetime) -> tuple[int, str]:
        """Returns position and reason of a queued job; cached for a moment, unless anything changes meanwhile."""
        kept = self._places.get(job.id)
        if kept is None or kept[1] is not job or not timedelta() <= now - kept[0] < _ADVICE_FOR:
            kept = (now, job, queue.position(job, self.store.cluster_state, now), self.why(job, now))
            self._places[job.id] = kept
        return kept[2], kept[3]

    def estimate(self, job: Job, now: datetime) -> Estimate | None:
        """Returns when a queued job probably starts; ``None`` if that is not known."""
        found = self.estimates.get(job.id) if job.state is JobState.QUEUED else None
        return found.remaining(now) if found is not None else None

    def why(self, job: Job, now: datetime) -> str:
        """Returns why a job waits in the queue, for an approval or in the cluster, or has not all of its pods."""
        if job.state is JobState.PENDING_APPROVAL:
            blocked = limits.config_violation(job, self.store.cluster_state) or limits.caps(
                job, self.store.cluster_state
            )
            return blocked.sentence if blocked is not None else _NEXT
        if job.state is JobState.RUNNING:
            return self._growth(job, now)
        record = self.store.records.get(job.id)
        if record is not None and record.waits_in_cluster:
            return self._next(job)
        return self._why_queued(job, now) if job.state is JobState.QUEUED else ""

    def _next(self, job: Job) -> str:
        """Returns what happens to a job that could start, which an engine of the cluster may not take."""
        verdict = self.store.cluster_state.verdicts.get(job.id)
        return verdict.sentence if isinstance(verdict, EngineWaits) else _NEXT

    def _growth(self, job: Job, now: datetime) -> str:
        """Returns how many pods a job has that starts with some of them, and why no more; empty with all."""
        record, has = self.store.records.get(job.id), len(job.request.pods)
        own = record.uids if record is not None else frozenset[str]()
        waits = [pod.request for uid, pod in self.store.gated.items() if pod.job == job.id and uid not in own]
        if not waits:
            return ""
        why = admission.grow(job, waits[0], self.store.cluster_state, now)
        later = "the others start when quota and nodes have room for them"
        return f"{has} of {has + len(waits)} pods: {later}. {why if isinstance(why, str) else ''}".strip()

    def _why_queued(self, job: Job, now: datetime) -> str:
        if job.reserved:
            return self._promised(job, now)
        found = admission.admit(job, self.store.cluster_state, now)
        match found:
            case MustWait(until=until) if until is not None and until > now:
                return f"{found.sentence} Earliest: {moment(until, now)}."
            case MustWait() | Refuse():
                return found.sentence
            case Preempt():
                return victims_will_stop_sentence(job, [self.store.cluster_state.jobs[name] for name in found.victims])
            case Admit():
                return self._next(job)
            case _:
                assert_never(found)

    def reason(self, job: Job, now: datetime) -> Reason:
        """Returns the reason for which a job is queued; cached for a moment, because many users may read at once."""
        if self.store.records[job.id].waits_in_cluster:
            return Reason.ENGINE
        kept = self._reasons.get(job.id)
        if kept is None or not timedelta() <= now - kept[0] < _ADVICE_FOR:
            if len(self._reasons) > _MOST_REASONS:
                self._reasons.clear()
            found = (
                Reason.VICTIMS_TERMINATING
                if job.reserved
                else admission.admit(job, self.store.cluster_state, now).reason
            )
            kept = self._reasons[job.id] = (now, found)
        return kept[1]

    def _promised(self, job: Job, now: datetime) -> str:
        victims = victims_of(job, self.store.cluster_state)
        if not victims:
            return _NEXT
        said, times = victims_stopping_sentence(job, victims), [one.notice for one in victims if one.notice is not None]
        return f"{said} {moment(max(times), now)}." if times else f"{said}."

    def advice(self, job: Job, now: datetime) -> tuple[Alternative, ...]:
        """Returns what would start at once, of the choices that the owner has."""
        held = self.store.cluster_state.held_by(job.team, job.user)
        key = (job.team, job.request, job.preemptible, job.priority, job.approved, job.template, job.special, held)
        kept = self._kept.get(key)
        if kept is None or not timedelta() <= now - kept[0] < _ADVICE_FOR:
            self._kept = {one: known for one, known in self._kept.items() if now - known[0] < _ADVICE_FOR}
            offered = self._offers(job.template)
            found = find_alternatives(job, self.store.cluster_state, now)
            kept = self._kept[key] = (
                now,
                tuple(one for one in found if offered or one.preemptible == job.preemptible),
            )
        return kept[1]


def alternative_text(one: Alternative) -> str:
    return f"{counted(one.gpus)} of type {one.gpu_type}{', preemptible' if one.preemptible else ''}"


def _waiting(job: Job, store: JobStore) -> int:
    """Returns how many jobs are queued for the same, including this one."""
    return sum(len(keys) for keys in store.cluster_state.queues.get(queue_key(job), {}).values())
