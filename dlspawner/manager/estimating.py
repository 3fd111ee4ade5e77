"""Estimates of when the jobs of the queue start, made again and again beside everything else.

Twice a minute, while jobs wait: a snapshot is taken, and played forward in a thread for so many seconds at the most
(`core.estimates`). Nothing waits for it, and nothing is decided by it. Where the queue is too long for that, fewer of
it are looked at the next time; of the others nothing is said. How long jobs ran is read from the database every few
minutes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from dlspawner.core import estimates
from dlspawner.core.durations import RunTimes, similar
from dlspawner.core.estimates import Estimate, KnownEnds, Starts
from dlspawner.core.idle import idle_rule_of
from dlspawner.core.jobs import Job
from dlspawner.core.model import IdleWindows
from dlspawner.core.template import IdlePolicy
from dlspawner.core.world import Snapshot
from dlspawner.manager import durationrows
from dlspawner.manager.book import JobStore
from dlspawner.manager.ledger import JobRepository
from dlspawner.manager.looks import Explainer
from dlspawner.manager.store import DatabaseUnavailable
from dlspawner.settings import Settings

_EVERY_SECONDS = 30.0
_BUDGET_SECONDS = 3.0  # of one round in the thread
_PLAYS = 20
_MOST, _FEWEST, _OF_A_LANE = 400, 25, 100  # jobs of the queue that are looked at
_REFRESH = timedelta(minutes=5)
_BACK, _ENDED = timedelta(days=30), 20_000  # how far back, and how many jobs at the most
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class StartTimeEstimator:
    """The estimates of one book, for those who look; `run` never ends by itself."""

    book: JobStore
    ledger: JobRepository
    looks: Explainer
    settings: Callable[[], Settings]
    most: int = _MOST
    budget_seconds: float = _BUDGET_SECONDS
    _durations: RunTimes = field(default_factory=RunTimes)
    _read: datetime | None = None

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except DatabaseUnavailable as problem:
                log.warning("estimates wait for the database: %s", problem.__cause__)
            except Exception:  # a task's root: nothing else depends on it
                log.exception("starts were not estimated; it is tried again")
            await asyncio.sleep(_EVERY_SECONDS)

    async def refresh(self) -> None:
        """One round."""
        if not self.book.cluster_state.queues:
            self.looks.estimates = {}
            return
        now = self.book.now()
        if self._read is None or not timedelta() <= now - self._read < _REFRESH:
            since = now - _BACK
            self._durations = await self.ledger.read(
                lambda connection: RunTimes.from_run_times(durationrows.read_run_times(connection, since, _ENDED))
            )
            self._read = now
        snapshot, settings = self.book.cluster_state.snapshot(), self.settings()
        self.looks.estimates = await asyncio.to_thread(self._estimate, snapshot, settings, now)

    def _estimate(self, snapshot: Snapshot, settings: Settings, now: datetime) -> Mapping[str, Estimate]:
        until = time.monotonic() + self.budget_seconds
        cut = estimates.first_in_queue(snapshot, now, self.most, min(self.most, _OF_A_LANE))
        known = KnownEnds(self._durations, lifetimes(cut, settings))
        chance = Random(0).random  # noqa: S311 - the same each time, so that what is shown moves only with the jobs
        plays: list[Starts] = []
        while len(plays) < _PLAYS and time.monotonic() < until:
            plays.append(estimates.simulate(cut, known, now, similar(chance)))
        if len(plays) < estimates.MIN_SIMULATIONS:
            self.most = max(_FEWEST, self.most // 2)
        elif len(plays) == _PLAYS:
            self.most = min(_MOST, 2 * self.most)
        return estimates.estimate_starts(cut, plays, self._durations)


def lifetimes(snapshot: Snapshot, settings: Settings) -> dict[str, datetime]:
    """Until when jobs may run at the most, of those that run and are stopped then."""
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
