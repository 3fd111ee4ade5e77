"""The replay: jobs of a trace come, start, are warned, stopped and end, by the decisions of the core alone.

No rule is repeated here: ``core.scheduling.admission`` and ``cycle`` decide starts and stops for others, ``core.idle``
warnings and stops of unused jobs; the import contracts forbid everything below them. What the Manager does around them
is done in the same order: a job that comes is admitted or queued; a cycle follows every end, stop and expired notice.

Differences from a real cluster: pods start and are gone at once; approvals are given at once; a preempted job is queued
again at its old place and starts from its beginning (a session goes on where it was); a session that was stopped while
idle is asked for again when it is next used in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush
from math import inf

from dlspawner.core.config import IdleWindows
from dlspawner.core.decisions import Admit, Preempt, Refuse
from dlspawner.core.idle import (
    Cause,
    IdleRule,
    JobActivity,
    SentWarning,
    StopJob,
    WarnUser,
    evaluate,
    idle_rule_of,
    next_change,
)
from dlspawner.core.job import Job, JobState
from dlspawner.core.resources import ResourceRequest
from dlspawner.core.scheduling import admission, cycle
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.usage_report import capacity_by_type
from dlspawner.core.template import ActivitySource, IdlePolicy
from dlspawner.core.units import GPU
from dlspawner.simulate.trace import Span, Trace, TraceJob

USE = IdlePolicy(counts=(ActivitySource.KERNEL,))  # a trace tells when a session is used, as kernels do
SAMPLES = 300  # of the cluster's use in one replay


@dataclass(slots=True)
class Outcome:
    """The result for one job; times in seconds, GPU-time in GPU-seconds."""

    job: TraceJob
    started: float | None = None
    waited: float = 0.0  # until its first start
    leaving: float = 0.0  # of it the last part, in which its place was reserved and borrowers were leaving
    held: float = 0.0
    inside: float = 0.0  # of it until the last submit of the trace
    active: float = 0.0
    lost: float = 0.0  # held in vain, by runs that were preempted
    reclaimed: float = 0.0  # between a stop for being idle and the next use, or the end in the trace
    preempted: int = 0
    culled: int = 0
    unwanted: int = 0  # culls after which the session was used again
    refused: str = ""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """The whole cluster at one moment, in GPUs."""

    at: float
    total: float
    free: float
    fragmented: float
    waiting: int


@dataclass(slots=True)
class _Run:
    """A job that is queued or runs: since when it does, and how much of it was before."""

    outcome: Outcome
    queued: float
    offset: float = 0.0
    at: float = 0.0
    number: int = 0  # events of earlier runs are void
    warned: tuple[SentWarning, ...] = ()
    reserved: float | None = None


@dataclass(slots=True)
class Replay:
    """One replay of a trace on a cluster without jobs; ``request_of``: the resource request of a job."""

    state: ClusterState
    trace: Trace
    request_of: Callable[[TraceJob], ResourceRequest]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    now: float = 0.0
    _runs: dict[str, _Run] = field(default_factory=dict)
    _agenda: list[tuple[float, int, str, str, int]] = field(default_factory=list)
    _count: int = 0
    _rules: dict[tuple[str, bool], IdleRule | None] = field(default_factory=dict)

    def run(self, told: Callable[[int], None] = lambda _: None) -> None:
        """Plays to the end; ``told`` hears now and then how many jobs have come. What an exception leaves is valid."""
        jobs, number, due = self.trace.jobs, 0, 0.0
        every = max(1.0, self.trace.span / SAMPLES)
        while number < len(jobs) or self._agenda:
            coming = jobs[number].submit if number < len(jobs) else inf
            at = min(coming, self._agenda[0][0] if self._agenda else inf)
            while due <= at and due <= self.trace.span:
                self._sample(due)
                due += every
                told(number)
            self.now = at
            changed = False
            while self._agenda and self._agenda[0][0] <= at:
                changed = self._happen(*heappop(self._agenda)[2:]) or changed
            if changed and (self.state.queues or self.state.noticed):
                self._cycle()
            while number < len(jobs) and jobs[number].submit <= at:
                one = jobs[number]
                self.outcomes[one.name] = outcome = Outcome(one)
                self._submit(_Run(outcome, at))
                number += 1
        told(number)

    def _moment(self, at: float) -> datetime:
        return self.trace.begin + timedelta(seconds=at)

    def _plan(self, at: float, what: str, name: str, number: int = 0) -> None:
        self._count += 1
        heappush(self._agenda, (at, self._count, what, name, number))

    # jobs come

    def _submit(self, run: _Run) -> None:
        one, now = run.outcome.job, self._moment(self.now)
        self._runs[one.name] = run
        team = self.state.team(one.team)
        level = self.state.cluster.priority(team, one.priority) if team else None
        priority = level.level if level else int(one.priority) if one.priority.isdecimal() else 0
        job = Job(
            id=one.name,
            user=one.user or one.name,
            team=one.team,
            submitted=now,
            request=self.request_of(one),
            priority=priority,
            preemptible=one.preemptible,
            requeue=True,
            approved=True,
            state=JobState.QUEUED,
        )
        found = admission.evaluate(job, self.state, now)
        if isinstance(found, Admit):
            self._started(cycle.start(job, found.nodes, self.state, now))
        elif isinstance(found, Refuse):
            run.outcome.refused = found.sentence
            del self._runs[one.name]
        else:
            self.state.put(job)
            if isinstance(found, Preempt) or found.reserve:
                self._cycle()

    def _cycle(self) -> None:
        done = cycle.run(self.state, self._moment(self.now))
        for name in self.state.reserved_jobs:
            if self._runs[name].reserved is None:
                self._runs[name].reserved = self.now
        for job in done.stopped:
            run = self._runs[job.id]
            ran = self.now - run.at
            self._stop(run)
            run.outcome.lost += ran * run.outcome.job.gpus
            run.outcome.preempted += 1
            run.offset += ran if run.outcome.job.activity is not None else 0.0
            run.queued = self.now
        for job in done.started:
            self._started(job)
        for job in done.noticed:
            if job.notice is not None:
                self._plan((job.notice - self.trace.begin).total_seconds(), "notice", job.id)

    # jobs run

    def _started(self, job: Job) -> None:
        run = self._runs[job.id]
        outcome, run.at, run.warned = run.outcome, self.now, ()
        run.number += 1
        if outcome.started is None:
            outcome.started, outcome.waited = self.now, self.now - run.queued
            outcome.leaving = 0.0 if run.reserved is None else self.now - run.reserved
        self._plan(self.now + max(0.0, outcome.job.seconds - run.offset), "end", job.id, run.number)
        rule = self._rule(outcome.job)
        if rule is not None:
            self._plan_look(run, rule, self._moment(self.now))

    def _happen(self, what: str, name: str, number: int) -> bool:
        """Carries out an event; True if it may let other jobs start."""
        if what == "notice":
            return True
        run = self._runs.get(name)
        if run is None or run.number != number:
            return False
        if what == "back":
            self._submit(run)
            return False
        if what == "end":
            self._stop(run)
            run.outcome.ended = True
            self.state.remove(name)
            del self._runs[name]
            return True
        return self._look(run)

    def _stop(self, run: _Run) -> None:
        """A run is over: counts what it held."""
        ran, outcome = self.now - run.at, run.outcome
        gpus = outcome.job.gpus
        outcome.held += ran * gpus
        outcome.inside += max(0.0, min(self.now, self.trace.span) - run.at) * gpus
        outcome.active += active_within(outcome.job, run.offset, run.offset + ran)
        run.number += 1

    # jobs that are not used

    def _rule(self, one: TraceJob) -> IdleRule | None:
        key = (one.team, one.preemptible)
        if key not in self._rules:
            team = self.state.team(one.team)
            rule = idle_rule_of(USE, team.idle if team else IdleWindows(), self.state.cluster.culling, one.preemptible)
            acts = not rule.culling.dry_run and (rule.window or rule.lifetime)
            self._rules[key] = rule if acts else None
        known = self._rules[key]
        return None if known is not None and one.activity is None and known.lifetime is None else known

    def _activity(self, run: _Run, now: datetime) -> JobActivity:
        begun, offset = self._moment(run.at), run.offset + self.now - run.at
        used = last_use(run.outcome.job, offset)
        busy = None if used is None or used < run.offset else begun + timedelta(seconds=used - run.offset)
        return JobActivity(begun, tells_kernels=True, kernel_busy=busy, kernel_report=now, warned=run.warned)

    def _plan_look(self, run: _Run, rule: IdleRule, now: datetime) -> None:
        later = next_change(self._activity(run, now), rule, now)
        if later is not None:
            at = (later - self.trace.begin).total_seconds()
            until = run.at + used_until(run.outcome.job, run.offset + self.now - run.at) - run.offset
            limit = inf if rule.lifetime is None else at
            self._plan(max(at, min(until, limit)), "look", run.outcome.job.name, run.number)

    def _look(self, run: _Run) -> bool:
        rule, now = self._rule(run.outcome.job), self._moment(self.now)
        if rule is None:
            return False
        found = evaluate(self._activity(run, now), rule, now)
        if isinstance(found, StopJob):
            self._cull(run, lifetime=found.why is Cause.LIFETIME)
            return True
        if isinstance(found, WarnUser):
            run.warned = (*run.warned, SentWarning(now, found.percent, found.why))
        self._plan_look(run, rule, now)
        return False

    def _cull(self, run: _Run, *, lifetime: bool) -> None:
        outcome, name = run.outcome, run.outcome.job.name
        self._stop(run)
        self.state.remove(name)
        offset = run.offset + self.now - run.at
        again = None if lifetime else next_use(outcome.job, offset)
        if not lifetime:
            outcome.culled += 1
            free = (outcome.job.seconds if again is None else again) - offset
            outcome.reclaimed += free * outcome.job.gpus
        if again is None:
            outcome.ended = True
            del self._runs[name]
            return
        outcome.unwanted += 1
        run.offset, run.queued = again, self.now + again - offset
        self._plan(run.queued, "back", name, run.number)

    def _sample(self, at: float) -> None:
        found = capacity_by_type(self.state).values()
        total, free, bad = (sum(getattr(one, name) for one in found) / GPU for name in ("total", "free", "fragmented"))
        waiting = sum(len(keys) for teams in self.state.queues.values() for keys in teams.values())
        self.samples.append(Sample(at, total, free, bad, waiting))


def active_within(job: TraceJob, begin: float, end: float) -> float:
    """GPU-seconds that the job computes in a part of its time."""
    if job.activity is None:
        return (end - begin) * job.gpus
    return sum(max(0.0, min(b, end) - max(a, begin)) * gpus for a, b, gpus in job.activity)


def last_use(job: TraceJob, offset: float) -> float | None:
    """When the job was last used, at most ``offset``; ``None`` for never."""
    if job.activity is None:
        return offset
    return max((min(b, offset) for a, b, _ in job.activity if a <= offset), default=None)


def used_until(job: TraceJob, offset: float) -> float:
    """Until when the use goes on that is under way; ``offset`` itself without one."""
    return max((b for a, b, _ in _spans(job) if a <= offset <= b), default=offset)


def next_use(job: TraceJob, offset: float) -> float | None:
    """When an idle job is next used."""
    return min((a for a, _, _ in _spans(job) if a >= offset), default=None)


def _spans(job: TraceJob) -> Sequence[Span]:
    return job.activity if job.activity is not None else ((0.0, job.seconds, job.gpus),)
