"""What is told of a job that waits: why, at which place, and what would start at once instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from dlspawner.core import limits, queueing, quota
from dlspawner.core.advice import find_alternatives
from dlspawner.core.decisions import Admit, Alternative, MustWait, Preempt, Reason, Refuse
from dlspawner.core.estimates import Estimate
from dlspawner.core.jobs import Job, JobState
from dlspawner.core.leaving import victims_of, victims_stopping_sentence, victims_will_stop_sentence
from dlspawner.core.telling import moment
from dlspawner.core.world import queue_key
from dlspawner.manager.book import JobStore
from dlspawner.manager.hopeless import FAULT, UNDECIDED
from dlspawner.manager.notices import NoticeKind
from dlspawner.manager.records import JobRecord

_ADVICE_FOR = timedelta(seconds=3)  # many people look at once, and trying everything out costs as much as a decision
_MOST_REASONS = 1000
_NEXT = "Its turn comes any moment."


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What the page says of a job that waits."""

    job: Job
    state: str  # queued, waiting-approval, waiting-login, or starting
    position: int
    waiting: int  # how many wait for the same
    sentence: str
    advice: tuple[Alternative, ...]
    estimate: Estimate | None = None  # of its start, where one is known
    inadmissible: bool = False  # whether it can not start as things are

    @property
    def keeps_place(self) -> bool:
        """Whether asking for some of the advice keeps the place: for less of the same."""
        return any(self._is_less(one) for one in self.advice)

    @property
    def loses_place(self) -> bool:
        """Whether asking for some of the advice gives the place up: for another type, or another kind of job."""
        return not all(self._is_less(one) for one in self.advice)

    def _is_less(self, one: Alternative) -> bool:
        return (one.gpu_type, one.preemptible) == (self.job.request.gpu_type, self.job.preemptible)


class Explainer:
    """Looks at jobs of one book; the function says which templates offer preemptible jobs."""

    def __init__(self, book: JobStore, offers_preemptible: Callable[[str], bool]) -> None:
        self.book, self._offers = book, offers_preemptible
        self.estimates: Mapping[str, Estimate] = {}  # by job, as of a moment ago
        self._reasons: dict[str, tuple[datetime, Reason]] = {}
        self._places: dict[str, tuple[datetime, Job, int, str]] = {}
        book.subscribers.append(lambda _: self._places.clear())
        self._kept: dict[object, tuple[datetime, tuple[Alternative, ...]]] = {}

    def explain(self, record: JobRecord, *, advises: bool = True) -> QueueStatus:
        """What is told of it; without advice, which costs as much as many decisions, where nobody asks for it."""
        job, world, now = record.job, self.book.cluster_state, self.book.now()
        position = queueing.position(job, world, now)
        if job.state is JobState.PENDING_APPROVAL:
            return QueueStatus(job, job.state.value, position, position, self.why(job, now), self.advice(job, now))
        if job.state is not JobState.QUEUED:
            return QueueStatus(job, job.state.value, position, position, "", ())
        advice = self.advice(job, now) if advises and not self._undecided(job) else ()
        waiting, why = _waiting(job, self.book), self.why(job, now)
        return QueueStatus(
            job, "queued", position, waiting, why, advice, self.estimate(job, now), self.inadmissible(job)
        )

    def inadmissible(self, job: Job) -> bool:
        """Whether a queued job can not start as things are: its turn does not come before they change."""
        return job.state is JobState.QUEUED and limits.config_violation(job, self.book.cluster_state) is not None

    def position(self, job: Job, now: datetime) -> tuple[int, str]:
        """Which place a queued job has, and why it waits; the same for a moment, unless anything changes meanwhile."""
        kept = self._places.get(job.id)
        if kept is None or kept[1] is not job or not timedelta() <= now - kept[0] < _ADVICE_FOR:
            kept = (now, job, queueing.position(job, self.book.cluster_state, now), self.why(job, now))
            self._places[job.id] = kept
        return kept[2], kept[3]

    def estimate(self, job: Job, now: datetime) -> Estimate | None:
        """When a queued job probably starts; ``None`` when that is not known."""
        found = self.estimates.get(job.id) if job.state is JobState.QUEUED else None
        return found.remaining(now) if found is not None else None

    def why(self, job: Job, now: datetime) -> str:
        """Why a job has to wait, in the queue or for an approval; empty for one in any other state."""
        if job.state is JobState.PENDING_APPROVAL:
            blocked = limits.config_violation(job, self.book.cluster_state) or limits.caps(job, self.book.cluster_state)
            return blocked.sentence if blocked is not None else _NEXT
        return self._why_queued(job, now) if job.state is JobState.QUEUED else ""

    def _why_queued(self, job: Job, now: datetime) -> str:
        if job.reserved:
            return self._promised(job, now)
        if self._undecided(job):
            return UNDECIDED
        found = quota.admit(job, self.book.cluster_state, now)
        match found:
            case MustWait(until=until) if until is not None and until > now:
                return f"{found.sentence} Earliest: {moment(until, now)}."
            case MustWait() | Refuse():
                return found.sentence
            case Preempt():
                return victims_will_stop_sentence(job, [self.book.cluster_state.jobs[name] for name in found.victims])
            case Admit():
                return _NEXT
            case _:
                assert_never(found)

    def reason(self, job: Job, now: datetime) -> Reason:
        """The kind of reason for which a queued job has to wait; kept for a moment: many people look at once."""
        kept = self._reasons.get(job.id)
        if kept is None or not timedelta() <= now - kept[0] < _ADVICE_FOR:
            if len(self._reasons) > _MOST_REASONS:
                self._reasons.clear()
            ours = job.reserved or self._undecided(job)
            found = Reason.VICTIMS_TERMINATING if ours else quota.admit(job, self.book.cluster_state, now).reason
            kept = self._reasons[job.id] = (now, found)
        return kept[1]

    def _undecided(self, job: Job) -> bool:
        """Whether the queue fails to decide it, so that asking again here would be the same fault."""
        told = self.book.notices.pending((job.id, NoticeKind.CANNOT_START))
        return told is not None and told.cause == FAULT

    def _promised(self, job: Job, now: datetime) -> str:
        leavers = victims_of(job, self.book.cluster_state)
        if not leavers:
            return _NEXT
        said, times = victims_stopping_sentence(job, leavers), [one.notice for one in leavers if one.notice is not None]
        return f"{said} {moment(max(times), now)}." if times else f"{said}."

    def advice(self, job: Job, now: datetime) -> tuple[Alternative, ...]:
        """What would start at once, of what the job's person can choose."""
        held = self.book.cluster_state.held_by(job.team, job.user)
        wish = (job.team, job.request, job.preemptible, job.priority, job.approved, job.template, job.special, held)
        kept = self._kept.get(wish)
        if kept is None or not timedelta() <= now - kept[0] < _ADVICE_FOR:
            self._kept = {one: known for one, known in self._kept.items() if now - known[0] < _ADVICE_FOR}
            offered = self._offers(job.template)
            found = find_alternatives(job, self.book.cluster_state, now)
            kept = self._kept[wish] = (
                now,
                tuple(one for one in found if offered or one.preemptible == job.preemptible),
            )
        return kept[1]


def _waiting(job: Job, book: JobStore) -> int:
    """How many wait for what this job waits for, itself included."""
    return sum(len(keys) for keys in book.cluster_state.queues.get(queue_key(job), {}).values())
