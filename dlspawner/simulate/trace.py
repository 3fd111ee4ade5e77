"""A trace: jobs and interactive sessions of the past, or of a generator; what a replay needs to know of them.

Times are seconds since the trace's beginning. A job without ``activity`` computes all the time. A session has activity:
spans after its start in which it is used, with the GPUs that compute then; between them the session is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from random import Random

from dlspawner.core.config import DEFAULT_TEAM

Span = tuple[float, float, int]  # seconds after the start, and GPUs that compute
BEGIN = datetime(2000, 1, 1, tzinfo=UTC)  # of traces that tell no date


class InvalidTrace(Exception):
    """A file that is no trace; the sentence names file and row."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job or session; ``pods``: the GPUs of each, empty where they are to be spread over whole nodes."""

    name: str
    submit: float
    seconds: float
    gpus: int
    team: str
    user: str = ""
    gpu_type: str = ""
    preemptible: bool = False
    priority: str = ""
    pods: tuple[int, ...] = ()
    activity: tuple[Span, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of their submit times; ``source`` is cited where a figure is printed."""

    jobs: tuple[TraceJob, ...]
    begin: datetime = BEGIN
    source: str = ""

    @property
    def span(self) -> float:
        """Seconds from the first submit to the last one."""
        return self.jobs[-1].submit - self.jobs[0].submit if self.jobs else 0.0


@dataclass(slots=True)
class Loader:
    """Gathers jobs with times in seconds since any moment; numbers and sorts them."""

    jobs: list[TraceJob] = field(default_factory=list)

    def trace(self, source: str, begin: Callable[[float], datetime] | None = None) -> Trace:
        first = min((one.submit for one in self.jobs), default=0.0)
        ordered = sorted(self.jobs, key=lambda one: (one.submit, one.team, one.name))
        width = len(str(len(ordered)))
        jobs = tuple(
            replace(one, name=f"j{number:0{width}}", submit=one.submit - first) for number, one in enumerate(ordered)
        )
        return Trace(jobs, begin(first) if begin else BEGIN, source)


def together(traces: Sequence[Trace]) -> Trace:
    """One trace of several, which begin at the same moment."""
    if len(traces) == 1:
        return traces[0]
    loader = Loader([one for trace in traces for one in trace.jobs])
    sources = dict.fromkeys(trace.source for trace in traces if trace.source)
    return replace(loader.trace("; ".join(sources)), begin=traces[0].begin if traces else BEGIN)


def with_borrowers(trace: Trace, share: float, random: Random) -> Trace:
    """The same trace with this share of its jobs preemptible, drawn one by one."""
    jobs = (replace(one, preemptible=True) if random.random() < share else one for one in trace.jobs)
    return replace(trace, jobs=tuple(jobs)) if share else trace


def team_numbers(trace: Trace, others: Iterable[str] = ()) -> dict[str, str]:
    """Numbers for the names of the trace's teams, in the order in which they came, and then of the others."""
    names = dict.fromkeys([*(one.team for one in trace.jobs), *others])
    return {name: f"team-{number}" for number, name in enumerate(names, 1)} | {DEFAULT_TEAM: DEFAULT_TEAM}


def anonymous(trace: Trace, teams: Mapping[str, str]) -> Trace:
    """The same trace with these names of teams, and numbers instead of the names of people; no name stays none."""
    names = dict.fromkeys(one.user for one in trace.jobs if one.user)
    users = {name: f"u{number}" for number, name in enumerate(names, 1)}
    jobs = (replace(one, team=teams[one.team], user=users.get(one.user, "")) for one in trace.jobs)
    return replace(trace, jobs=tuple(jobs))


SIZES = ((1, 0.93), (2, 0.02), (4, 0.025), (8, 0.025))  # GPUs and the share of jobs, about as in Philly


@dataclass(frozen=True, slots=True)
class Load:
    """A synthetic load of a batch cluster.

    Poisson arrivals; log-normal run times (median and sigma as in Philly), 60 days at most; sizes by share; teams by
    Zipf's law (the n-th has 1/n of the jobs of the first).
    """

    jobs: int = 10_000
    teams: int = 4
    days: float = 30.0
    median: float = 1140.0
    sigma: float = 2.1

    def trace(self, random: Random) -> Trace:
        names, at, loader = [f"team{number}" for number in range(1, self.teams + 1)], 0.0, Loader()
        weights = [1 / number for number in range(1, self.teams + 1)]
        for number in range(self.jobs):
            at += random.expovariate(self.jobs / (self.days * 86400))
            (gpus,) = random.choices([size for size, _ in SIZES], [share for _, share in SIZES])
            seconds = min(60 * 86400, self.median * random.lognormvariate(0, self.sigma))
            (team,) = random.choices(names, weights)
            loader.jobs.append(TraceJob(f"s{number:09}", at, seconds, gpus, team))
        return loader.trace(f"synthetic load: {', '.join(f'{key}={value:g}' for key, value in asdict(self).items())}")
