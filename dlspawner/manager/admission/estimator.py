"""Estimates when queued jobs start, twice a minute while jobs are queued, for the `Explainer` that shows it.

A snapshot is simulated forward in a thread for a limited time (`core.scheduling.estimates`). Nothing waits for an
estimate, and nothing is decided by it. If the queue is too long for that, the next round estimates fewer jobs; the
others get no estimate. Run times are read from the database every few minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

from dlspawner.core.config import IdleWindows
from dlspawner.core.decisions import Estimate
from dlspawner.core.idle import idle_rule_of
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import estimates
from dlspawner.core.scheduling.cluster_state import Snapshot
from dlspawner.core.scheduling.estimates import KnownEnds, RunTimes, Starts, similar
from dlspawner.core.template import IdlePolicy
from dlspawner.manager.admission.explain import Explainer
from dlspawner.manager.db import jobs
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.state.job_store import JobStore
from dlspawner.settings import Settings

ESTIMATE_SECONDS = 30.0
_BUDGET_SECONDS = 3.0  # of one round in the thread
_PREVIEW_SECONDS = 1.0  # of one estimate for the form
_PLAYS = 20
_MOST, _FEWEST, _OF_A_LANE = 400, 25, 100  # jobs of the queue that are looked at
_REFRESH = timedelta(minutes=5)
_BACK, _ENDED = timedelta(days=30), 20_000  # how far back, and how many jobs at the most


@dataclass(slots=True)
class StartTimeEstimator:
    """Estimates the starts of one store: `refresh` runs every `ESTIMATE_SECONDS`."""

    store: JobStore
    repository: JobRepository
    explainer: Explainer
    settings: Callable[[], Settings]
    most: int = _MOST
    budget_seconds: float = _BUDGET_SECONDS
    _durations: RunTimes = field(default_factory=RunTimes)
    _read: datetime | None = None
    _previews: bool = False  # true while one is computed

    async def refresh(self) -> None:
        if not self.store.cluster_state.queues or not self.store.cluster_state.cluster.scheduler.is_native:
            self.explainer.estimates = {}
            return
        now = self.store.now()
        await self._read_run_times(now)
        snapshot, settings = self.store.cluster_state.snapshot(), self.settings()
        self.explainer.estimates, plays = await asyncio.to_thread(
            self._estimate, snapshot, settings, now, self.budget_seconds
        )
        if plays < estimates.MIN_SIMULATIONS:
            self.most = max(_FEWEST, self.most // 2)
        elif plays == _PLAYS:
            self.most = min(_MOST, 2 * self.most)

    async def preview(self, job: Job) -> Estimate | None:
        """Returns the estimate of a job as if queued now; ``None`` if unknown, or while another is computed."""
        if self._previews or not self.store.cluster_state.cluster.scheduler.is_native:
            return None
        self._previews = True
        try:
            now = self.store.now()
            await self._read_run_times(now)
            state = self.store.cluster_state.snapshot()
            snapshot = replace(state, jobs=(*state.jobs, replace(job, state=JobState.QUEUED)))
            found, _ = await asyncio.to_thread(self._estimate, snapshot, self.settings(), now, _PREVIEW_SECONDS)
        finally:
            self._previews = False
        return found.get(job.id)

    async def _read_run_times(self, now: datetime) -> None:
        if self._read is None or not timedelta() <= now - self._read < _REFRESH:
            since = now - _BACK
            ended = await self.repository.read(lambda connection: jobs.read_run_times(connection, since, _ENDED))
            running = estimates.still_running(self.store.cluster_state.jobs.values(), now)
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
