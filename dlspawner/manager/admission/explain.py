"""Explains the queue: why a job is pending, its position, what would start at once instead, and an estimated start.

Estimates are computed twice a minute while jobs are queued: a snapshot is simulated forward in a thread for a limited
time (`core.scheduling.estimates`). Nothing waits for an estimate, and nothing is decided by it. If the queue is too
long for that, the next round estimates fewer jobs; the others get no estimate. Run times are read from the database
every few minutes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import assert_never

from dlspawner.core.config import IdleWindows
from dlspawner.core.decisions import Admit, Alternative, EngineWaits, MustWait, Preempt, Reason, Refuse
from dlspawner.core.idle import idle_rule_of
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission, estimates, limits, queue
from dlspawner.core.scheduling.admission import find_alternatives
from dlspawner.core.scheduling.cluster_state import Snapshot, queue_key
from dlspawner.core.scheduling.estimates import Estimate, KnownEnds, RunTimes, Starts, similar
from dlspawner.core.scheduling.preemption import victims_of, victims_stopping_sentence, victims_will_stop_sentence
from dlspawner.core.template import IdlePolicy
from dlspawner.core.text import moment
from dlspawner.manager.db import jobs
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import JobStore
from dlspawner.settings import Settings

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

    def __init__(self, book: JobStore, offers_preemptible: Callable[[str], bool]) -> None:
        self.book, self._offers = book, offers_preemptible
        self.estimates: Mapping[str, Estimate] = {}  # by job, as of a moment ago
        self._reasons: dict[str, tuple[datetime, Reason]] = {}
        self._places: dict[str, tuple[datetime, Job, int, str]] = {}
        book.subscribers.append(lambda _: self._places.clear())
        self._kept: dict[object, tuple[datetime, tuple[Alternative, ...]]] = {}

    def waiting(self, now: datetime) -> list[Job]:
        """Returns all jobs that wait for GPUs: the queue in its order, then those in the cluster by their age."""
        records = (self.book.records[job] for job in self.book.pending.values())
        placed = sorted((one.job for one in records if one.waits_in_cluster), key=lambda job: job.submitted)
        return [*queue.order(self.book.cluster_state, now), *placed]

    def explain(self, record: JobRecord, *, advises: bool = True) -> QueueStatus:
        """Returns the status; alternatives only on request, because they cost as much as many decisions."""
        job, world, now = record.job, self.book.cluster_state, self.book.now()
        if record.waits_in_cluster:
            return QueueStatus(job, "queued", 0, 0, self.why(job, now), ())
        position = queue.position(job, world, now)
        if job.state is JobState.PENDING_APPROVAL:
            return QueueStatus(job, job.state.value, position, position, self.why(job, now), self.advice(job, now))
        if job.state is not JobState.QUEUED:
            return QueueStatus(job, job.state.value, position, position, "", ())
        advice = self.advice(job, now) if advises else ()
        waiting, why = max(position, _waiting(job, self.book)), self.why(job, now)  # an engine may have other jobs
        return QueueStatus(
            job, "queued", position, waiting, why, advice, self.estimate(job, now), self.inadmissible(job)
        )

    def inadmissible(self, job: Job) -> bool:
        """True if the configuration does not allow a queued job: it is not scheduled before that changes."""
        return job.state is JobState.QUEUED and limits.config_violation(job, self.book.cluster_state) is not None

    def position(self, job: Job, now: datetime) -> tuple[int, str]:
        """Returns position and reason of a queued job; cached for a moment, unless anything changes meanwhile."""
        kept = self._places.get(job.id)
        if kept is None or kept[1] is not job or not timedelta() <= now - kept[0] < _ADVICE_FOR:
            kept = (now, job, queue.position(job, self.book.cluster_state, now), self.why(job, now))
            self._places[job.id] = kept
        return kept[2], kept[3]

    def estimate(self, job: Job, now: datetime) -> Estimate | None:
        """Returns when a queued job probably starts; ``None`` if that is not known."""
        found = self.estimates.get(job.id) if job.state is JobState.QUEUED else None
        return found.remaining(now) if found is not None else None

    def why(self, job: Job, now: datetime) -> str:
        """Returns why a job waits in the queue, for an approval or in the cluster, or has not all of its pods."""
        if job.state is JobState.PENDING_APPROVAL:
            blocked = limits.config_violation(job, self.book.cluster_state) or limits.caps(job, self.book.cluster_state)
            return blocked.sentence if blocked is not None else _NEXT
        if job.state is JobState.RUNNING:
            return self._growth(job, now)
        record = self.book.records.get(job.id)
        if record is not None and record.waits_in_cluster:
            return self._next(job)
        return self._why_queued(job, now) if job.state is JobState.QUEUED else ""

    def _next(self, job: Job) -> str:
        """Returns what happens to a job that could start, which an engine of the cluster may not take."""
        verdict = self.book.cluster_state.verdicts.get(job.id)
        return verdict.sentence if isinstance(verdict, EngineWaits) else _NEXT

    def _growth(self, job: Job, now: datetime) -> str:
        """Returns how many pods a job has that starts with some of them, and why no more; empty with all."""
        own, has = self.book.records[job.id].uids, len(job.request.pods)
        waits = [pod.request for uid, pod in self.book.gated.items() if pod.job == job.id and uid not in own]
        if not waits:
            return ""
        why = admission.grow(job, waits[0], self.book.cluster_state, now)
        later = "the others start when quota and nodes have room for them"
        return f"{has} of {has + len(waits)} pods: {later}. {why if isinstance(why, str) else ''}".strip()

    def _why_queued(self, job: Job, now: datetime) -> str:
        if job.reserved:
            return self._promised(job, now)
        found = admission.admit(job, self.book.cluster_state, now)
        match found:
            case MustWait(until=until) if until is not None and until > now:
                return f"{found.sentence} Earliest: {moment(until, now)}."
            case MustWait() | Refuse():
                return found.sentence
            case Preempt():
                return victims_will_stop_sentence(job, [self.book.cluster_state.jobs[name] for name in found.victims])
            case Admit():
                return self._next(job)
            case _:
                assert_never(found)

    def reason(self, job: Job, now: datetime) -> Reason:
        """Returns the reason for which a job is queued; cached for a moment, because many users may read at once."""
        if self.book.records[job.id].waits_in_cluster:
            return Reason.ENGINE
        kept = self._reasons.get(job.id)
        if kept is None or not timedelta() <= now - kept[0] < _ADVICE_FOR:
            if len(self._reasons) > _MOST_REASONS:
                self._reasons.clear()
            found = (
                Reason.VICTIMS_TERMINATING
                if job.reserved
                else admission.admit(job, self.book.cluster_state, now).reason
            )
            kept = self._reasons[job.id] = (now, found)
        return kept[1]

    def _promised(self, job: Job, now: datetime) -> str:
        leavers = victims_of(job, self.book.cluster_state)
        if not leavers:
            return _NEXT
        said, times = victims_stopping_sentence(job, leavers), [one.notice for one in leavers if one.notice is not None]
        return f"{said} {moment(max(times), now)}." if times else f"{said}."

    def advice(self, job: Job, now: datetime) -> tuple[Alternative, ...]:
        """Returns what would start at once, of the choices that the owner has."""
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
    """Returns how many jobs are queued for the same, including this one."""
    return sum(len(keys) for keys in book.cluster_state.queues.get(queue_key(job), {}).values())


ESTIMATE_SECONDS = 30.0
_BUDGET_SECONDS = 3.0  # of one round in the thread
_PREVIEW_SECONDS = 1.0  # of one estimate for the form
_PLAYS = 20
_MOST, _FEWEST, _OF_A_LANE = 400, 25, 100  # jobs of the queue that are looked at
_REFRESH = timedelta(minutes=5)
_BACK, _ENDED = timedelta(days=30), 20_000  # how far back, and how many jobs at the most
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class StartTimeEstimator:
    """Estimates the starts of one store: `refresh` runs every `ESTIMATE_SECONDS`."""

    book: JobStore
    ledger: JobRepository
    looks: Explainer
    settings: Callable[[], Settings]
    most: int = _MOST
    budget_seconds: float = _BUDGET_SECONDS
    _durations: RunTimes = field(default_factory=RunTimes)
    _read: datetime | None = None
    _previews: bool = False  # true while one is computed

    async def refresh(self) -> None:
        if not self.book.cluster_state.queues or not self.book.cluster_state.cluster.scheduler.is_native:
            self.looks.estimates = {}
            return
        now = self.book.now()
        await self._read_run_times(now)
        snapshot, settings = self.book.cluster_state.snapshot(), self.settings()
        self.looks.estimates, plays = await asyncio.to_thread(
            self._estimate, snapshot, settings, now, self.budget_seconds
        )
        if plays < estimates.MIN_SIMULATIONS:
            self.most = max(_FEWEST, self.most // 2)
        elif plays == _PLAYS:
            self.most = min(_MOST, 2 * self.most)

    async def preview(self, job: Job) -> Estimate | None:
        """Returns the estimate of a job as if queued now; ``None`` if unknown, or while another is computed."""
        if self._previews or not self.book.cluster_state.cluster.scheduler.is_native:
            return None
        self._previews = True
        try:
            now = self.book.now()
            await self._read_run_times(now)
            world = self.book.cluster_state.snapshot()
            snapshot = replace(world, jobs=(*world.jobs, replace(job, state=JobState.QUEUED)))
            found, _ = await asyncio.to_thread(self._estimate, snapshot, self.settings(), now, _PREVIEW_SECONDS)
        finally:
            self._previews = False
        return found.get(job.id)

    async def _read_run_times(self, now: datetime) -> None:
        if self._read is None or not timedelta() <= now - self._read < _REFRESH:
            since = now - _BACK
            ended = await self.ledger.read(lambda connection: jobs.read_run_times(connection, since, _ENDED))
            running = estimates.still_running(self.book.cluster_state.jobs.values(), now)
            self._durations = await asyncio.to_thread(RunTimes.from_run_times, [*running, *ended])
            self._read = now

    def _estimate(
        self, snapshot: Snapshot, settings: Settings, now: datetime, seconds: float
    ) -> tuple[Mapping[str, Estimate], int]:
        """Returns the estimates, and the number of simulations."""
        until = time.monotonic() + seconds
        cut = estimates.first_in_queue(snapshot, now, self.most, min(self.most, _OF_A_LANE))
        known = KnownEnds(self._durations, lifetimes(cut, settings))
        chance = Random(0).random  # noqa: S311 - the same each time, so that what is shown moves only with the jobs
        plays: list[Starts] = []
        while len(plays) < _PLAYS and time.monotonic() < until:
            plays.append(estimates.simulate(cut, known, now, similar(chance)))
        return estimates.estimate_starts(cut, plays, self._durations), len(plays)


def lifetimes(snapshot: Snapshot, settings: Settings) -> dict[str, datetime]:
    """Returns the latest end of the running jobs that have a lifetime."""
    known: dict[tuple[str, str, bool], timedelta | None] = {}
    found: dict[str, datetime] = {}
    for job in snapshot.jobs:
        if job.started is None or not job.holds:
            continue
        kind = (job.team, job.template, job.preemptible)
        if kind not in known:
            known[kind] = _lifetime(job, snapshot, settings)
        longest = known[kind]
        if longest is not None:
            found[job.id] = job.started + longest
    return found


def _lifetime(job: Job, snapshot: Snapshot, settings: Settings) -> timedelta | None:
    team, template = snapshot.teams.paying_team(job.team), settings.template(job.template)
    windows, idle = team.idle if team else IdleWindows(), template.idle if template else IdlePolicy()
    policy = idle_rule_of(idle, windows, snapshot.cluster.culling, job.preemptible)
    return None if policy.culling.dry_run else policy.lifetime
