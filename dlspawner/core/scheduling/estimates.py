"""Estimates when a pending job will start: a range, because the run times of the jobs before it are unknown.

The state is played forward a number of times with the decisions themselves (``admission.schedule``). Each time every
job that runs, or starts on the way, has as long left as one drawn from the jobs of its like that have ended
(``RunTimes``), and no longer than is known: what stops is gone in a moment, a victim when its notice is over, no job
outlives its lifetime. The range is from the earliest start to the one that three of five plays are not later than.

Nothing is said of a job that did not start in most of the plays: too little is known of the ends that it needs, or it
is too far back. Later jobs that may be served before are not simulated; the estimate is short by that.

The work is bounded: the first of the queue only, ends that are close to each other seen as one (`_GRAIN`), and so many
passes and days in one play. The later, the coarser: what is days away need not be known to the minute.

A job's like are the ended jobs of its team and template; where too few of them are known, those of the template, then
all. A job that runs already has as many left as those of its like had that ran at least as long. With too few known
ones there is no estimate: ``None``.

Jobs that still run count as far as they have run (Kaplan and Meier, 1958): left out, long jobs would seem rare.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush
from math import ceil

from dlspawner.core.decisions import Estimate
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import cycle, queue
from dlspawner.core.scheduling.cluster_state import ClusterState, QueueKey, Snapshot, queue_key

MIN_SIMULATIONS = 8  # plays that say anything
_SHARE = 0.6  # of the plays, in which a job has started by the end of its range
_HORIZON = timedelta(days=7)
_MAX_CYCLES = 300
_GRAIN, _COARSER = timedelta(seconds=30), 0.04  # seen as one: so much, or this part of how far away it is
_GOING = timedelta(minutes=1)  # what is being stopped is gone
Starts = Mapping[str, datetime]  # by job: when it started in one play


@dataclass(frozen=True, slots=True)
class KnownEnds:
    """The known ends: run times of ended jobs, and by job the latest end that is allowed."""

    durations: RunTimes
    until: Mapping[str, datetime] = field(default_factory=dict)


def first_in_queue(snapshot: Snapshot, now: datetime, most: int, each: int) -> Snapshot:
    """Returns the same without the jobs far back in the queue: so many altogether, and of each lane.

    A job that is left out would hardly start before one that stays.
    """
    order = queue.order(ClusterState.of(snapshot), now)
    if len(order) <= min(most, each):
        return snapshot
    counts: dict[QueueKey, int] = {}
    stay: set[str] = set()
    for job in order:
        counts[queue_key(job)] = counts.get(queue_key(job), 0) + 1
        if (counts[queue_key(job)] <= each and len(stay) < most) or job.reserved:
            stay.add(job.id)
    jobs = tuple(job for job in snapshot.jobs if job.state is not JobState.QUEUED or job.id in stay)
    return replace(snapshot, jobs=jobs)


def simulate(snapshot: Snapshot, known: KnownEnds, now: datetime, pick: Pick) -> Starts:
    """Returns the start of each pending job in one simulation, without those that did not start."""
    return _Simulation(ClusterState.of(snapshot), known, pick, now).run()


def estimate_starts(snapshot: Snapshot, plays: Sequence[Starts], durations: RunTimes) -> dict[str, Estimate]:
    """Returns the estimates of the simulations by job, without unknown jobs."""
    found: dict[str, Estimate] = {}
    if len(plays) < MIN_SIMULATIONS:
        return found
    high = ceil(_SHARE * (len(plays) - 1))
    for job in snapshot.jobs:
        starts = sorted(one[job.id] for one in plays if job.id in one) if job.state is JobState.QUEUED else []
        if len(starts) > high:
            found[job.id] = Estimate(starts[0], starts[high], durations.count(job))
    return found


class _Simulation:
    def __init__(self, state: ClusterState, known: KnownEnds, pick: Pick, now: datetime) -> None:
        self._state, self._known, self._pick, self._begun = state, known, pick, now
        self._ends: dict[str, datetime] = {}  # of its own accord
        self._agenda: list[tuple[datetime, str]] = []
        self._starts: dict[str, datetime] = {}
        self._waiting = {job.id for job in state.jobs.values() if job.state is JobState.QUEUED}

    def run(self) -> Starts:
        for job in sorted(self._state.jobs.values(), key=lambda job: job.id):
            if job.holds:
                self._holds(job, self._begun)
        now = self._begun
        for _ in range(_MAX_CYCLES):
            self._cycle(now)
            if not self._waiting or not self._agenda or self._agenda[0][0] > self._begun + _HORIZON:
                break
            now = self._continue()
        return self._starts

    def _holds(self, job: Job, now: datetime) -> None:
        """Plan its end, if anything is known of it."""
        if job.state is JobState.STOPPING:
            self._plan(job.id, now + _GOING)
            return
        age = max(0.0, (now - (job.started or now)).total_seconds())
        left = self._known.durations.seconds_left(job, age, self._pick)
        if left is not None:
            most = self._known.until.get(job.id)
            end = now + min(timedelta(seconds=left), 2 * _HORIZON)
            self._plan(job.id, max(now, min(end, most or end)))
        if job.notice is not None:
            heappush(self._agenda, (max(now, job.notice), job.id))

    def _plan(self, job: str, end: datetime) -> None:
        self._ends[job] = end
        heappush(self._agenda, (end, job))

    def _continue(self) -> datetime:
        """To the next ends; the time of the last of them."""
        now = self._agenda[0][0]
        until = now + max(_GRAIN, _COARSER * (now - self._begun))
        while self._agenda and self._agenda[0][0] <= until:
            now, name = heappop(self._agenda)
            job = self._state.jobs.get(name)
            if job is None or not job.holds:
                continue
            end = self._ends.get(name)
            if end is not None and end <= now:
                self._state.remove(name)
        return now

    def _cycle(self, now: datetime) -> None:
        done = cycle.run(self._state, now, failed=lambda _job, _error: None)
        for job in done.stopped:
            self._ends.pop(job.id, None)
        for job in done.noticed:
            heappush(self._agenda, (job.notice or now, job.id))
        for job in done.started:
            self._starts.setdefault(job.id, now)
            self._waiting.discard(job.id)
            self._holds(job, now)


LEAST_RUNS = 10  # ended jobs that ran as long, before anything is said
_MOST = 2000  # ended ones of one kind that are remembered
RunKind = tuple[str | None, str | None]  # a team and a template; ``None`` is any
SPREAD = 0.3  # of all lengths, those that one play takes; measured (tests/bench/README.md)
Pick = Callable[[], float]  # a number from 0 to below 1, each as likely as the others


def similar(chance: Callable[[], float], spread: float = SPREAD) -> Pick:
    """The picks of one play: jobs that run together are alike, so they are short together, or long.

    Of all plays together every number is as likely as the others; in one they are within a part of all numbers, which
    goes on at the beginning where it passes the end. ``chance`` gives numbers from 0 to below 1.
    """
    middle = chance()
    return lambda: (middle + spread * (chance() - 0.5)) % 1.0


@dataclass(frozen=True, slots=True)
class RunTime:
    """An ended job, or one that runs: its team, its template, and its run time, until now, in seconds."""

    team: str
    template: str
    seconds: float
    ended: bool = True


def still_running(jobs: Iterable[Job], now: datetime) -> list[RunTime]:
    """Returns how long the running ones of these jobs have run."""
    begun = ((job, job.started) for job in jobs if job.holds)
    return [RunTime(job.team, job.template, (now - at).total_seconds(), ended=False) for job, at in begun if at]


_Ends = tuple[list[float], list[float]]  # run times in order, and the share of the jobs that has ended by each


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The distribution of run times, by kind of job."""

    _known: Mapping[RunKind, _Ends] = field(default_factory=dict)

    @classmethod
    def from_run_times(cls, told: Iterable[RunTime]) -> RunTimes:
        """Returns the distribution of these run times, newest first."""
        found: dict[RunKind, list[tuple[float, bool]]] = {}
        counts = Counter[RunKind]()
        for one in told:
            for kind in _kinds(one.team, one.template):
                counts[kind] += one.ended
                if counts[kind] <= _MOST or not one.ended:
                    found.setdefault(kind, []).append((one.seconds, not one.ended))
        return cls({kind: _shares_of(known) for kind, known in found.items()})

    def _ends(self, job: Job, age: float) -> tuple[_Ends, int]:
        """Returns the run times of the first kind with enough jobs that ran at least as long, and their first index."""
        for kind in _kinds(job.team, job.template):
            ends = self._known.get(kind, ([], []))
            first = bisect_left(ends[0], age)
            if len(ends[0]) - first >= LEAST_RUNS:
                return ends, first
        return ([], []), 0

    def seconds_left(self, job: Job, age: float, pick: Pick) -> float | None:
        """Draws a random number of seconds that a job of this age may have left."""
        (seconds, ended), first = self._ends(job, age)
        if not seconds:
            return None
        before = ended[first - 1] if first else 0.0
        index = bisect_right(ended, before + pick() * (1.0 - before), lo=first)
        return seconds[index] - age if index < len(seconds) else 2 * _HORIZON.total_seconds()

    def count(self, job: Job) -> int:
        """Counts the ended jobs behind the run time of such a job."""
        return len(self._ends(job, 0.0)[0][0])


def _shares_of(runs: list[tuple[float, bool]]) -> _Ends:
    """Kaplan and Meier's estimate from pairs of a run time and whether the job still runs."""
    seconds, ended, rest = [], [], 1.0
    for number, (length, runs_on) in enumerate(sorted(runs)):
        if not runs_on:
            rest *= 1 - 1 / (len(runs) - number)
            seconds.append(length)
            ended.append(1.0 - rest)
    return seconds, ended


def _kinds(team: str, template: str) -> tuple[RunKind, ...]:
    return ((team, template), (None, template), (None, None))
