"""How long jobs run, learnt from those that have ended.

A job's like are the ended jobs of its team and template; where too few of them are known, those of the template, then
all. A job that runs already has as many left as those of its like had that ran at least as long. Of whom too few are
known nothing is said: ``None``.

Jobs that still run are not counted, so that what is said is a little short where long jobs are many.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dlspawner.core.jobs import Job

LEAST_RUNS = 10  # ended jobs that ran as long, before anything is said
_MOST = 2000  # of one kind that are remembered, the first that are told
RunKind = tuple[str | None, str | None]  # a team and a template; ``None`` is any
SPREAD = 0.3  # of all lengths, those that one play takes; measured (tests/bench/README.md)
Pick = Callable[[int], int]  # one of the numbers from 0 to below that, each as likely as the others


def similar(chance: Callable[[], float], spread: float = SPREAD) -> Pick:
    """The picks of one play: jobs that run together are alike, so they are short together, or long.

    Of all plays together every number is as likely as the others; in one they are within a part of all numbers, which
    goes on at the beginning where it passes the end. ``chance`` gives numbers from 0 to below 1.
    """
    middle = chance()
    return lambda below: min(below - 1, int(below * ((middle + spread * (chance() - 0.5)) % 1.0)))


@dataclass(frozen=True, slots=True)
class RunTime:
    """An ended job: whose, from which template, and for how many seconds it ran."""

    team: str
    template: str
    seconds: float


@dataclass(slots=True)
class RunTimes:
    """Seconds that jobs ran, by kind, in order."""

    _known: dict[RunKind, list[float]] = field(default_factory=dict)

    @classmethod
    def from_run_times(cls, ended: Iterable[RunTime]) -> RunTimes:
        """What these come to; the newest are told first."""
        found = cls()
        for one in ended:
            for kind in _kinds(one.team, one.template):
                known = found._known.setdefault(kind, [])
                if len(known) < _MOST:
                    known.append(one.seconds)
        for known in found._known.values():
            known.sort()
        return found

    def add(self, one: RunTime) -> None:
        """One more."""
        for kind in _kinds(one.team, one.template):
            insort(self._known.setdefault(kind, []), one.seconds)

    def similar_runs(self, job: Job, age: float = 0.0) -> tuple[float, ...] | list[float]:
        """Seconds that jobs of its like ran which ran at least as long, in order; none when that is not known."""
        for kind in _kinds(job.team, job.template):
            known = self._known.get(kind, ())
            first = bisect_left(known, age)
            if len(known) - first >= LEAST_RUNS:
                return known[first:]
        return ()

    def seconds_left(self, job: Job, age: float, pick: Pick) -> float | None:
        """How many seconds a job of this age may have left; another answer each time."""
        known = self.similar_runs(job, age)
        return known[pick(len(known))] - age if known else None

    def count(self, job: Job) -> int:
        """How many ended jobs say how long such a job runs."""
        return len(self.similar_runs(job))


def _kinds(team: str, template: str) -> tuple[RunKind, ...]:
    return ((team, template), (None, template), (None, None))
