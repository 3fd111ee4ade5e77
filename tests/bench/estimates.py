"""How good estimated starts are: `python -m tests.bench.estimates DIRECTORY`, and a part of `make simulations`.

Traces are replayed by the simulator. From time to time, while jobs wait, their starts are estimated from the jobs that
have ended until then, and compared with when they then started. Estimates change nothing of the replay.

The weeks `BETWEEN` were looked at last, and chose nothing. `SPREAD` is the choice of the busiest five days (from 4
October 2017) and the week after them; that jobs which still run count, and the bounds of a range, of all other rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.estimates import (
    Estimate,
    KnownEnds,
    RunTime,
    RunTimes,
    estimate_starts,
    first_in_queue,
    similar,
    simulate,
    still_running,
)
from dlspawner.simulate import readers
from dlspawner.simulate.engine import Replay
from dlspawner.simulate.scenario import make
from dlspawner.simulate.trace import Loader, Trace, TraceJob

PLAYS = 20  # as the Manager
FIRST = 0.25  # of the time in which nothing is asked: only short jobs can have ended
LOAD = 0.9  # what a team's jobs ask of its nodes, on average over the time
MOST_WAIT = 100  # of the queue that are looked at, and of a lane
WEEKS = tuple(datetime(2017, month, day, tzinfo=UTC) for month, day in ((10, 16), (10, 30), (11, 13), (11, 27)))
BETWEEN = tuple(datetime(2017, month, day, tzinfo=UTC) for month, day in ((10, 23), (11, 6), (11, 20)))
BUSIEST = datetime(2017, 10, 4, tzinfo=UTC)


@dataclass(slots=True)
class Score:
    """How good the estimates were; times in seconds."""

    asked: int = 0
    inside: int = 0
    early: int = 0  # started before the range
    widths: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # that were still to come

    def add(self, found: Estimate, asked: datetime, started: datetime) -> None:
        slack = timedelta(minutes=1)  # an estimate is read to the minute
        self.inside += found.earliest - slack <= started <= found.latest + slack
        self.early += started < found.earliest - slack
        self.widths.append((found.latest - found.earliest).total_seconds())
        self.waits.append((started - asked).total_seconds())

    def __add__(self, other: Score) -> Score:
        counts = (self.asked + other.asked, self.inside + other.inside, self.early + other.early)
        return Score(*counts, self.widths + other.widths, self.waits + other.waits)

    def __str__(self) -> str:
        known = len(self.waits)
        if not known:
            return f"asked {self.asked}, none known"
        width, wait = median(self.widths), median(self.waits)
        return (
            f"asked {self.asked}, known {known / self.asked:.0%}; of these started within the range "
            f"{self.inside / known:.0%}, before it {self.early / known:.0%}; median width {width / 60:.0f} min, "
            f"median wait {wait / 60:.0f} min, {width / max(wait, 1.0):.1f} times as wide"
        )


@dataclass(slots=True)
class Asking(Replay):
    """A replay that asks for estimates at every so many samples of the cluster's use."""

    every: int = 1
    score: Score = field(default_factory=Score)
    _sampled: int = 0
    _ended: list[RunTime] = field(default_factory=list)
    _open: dict[str, list[tuple[datetime, Estimate]]] = field(default_factory=dict)

    def _sample(self, at: float) -> None:
        Replay._sample(self, at)
        self._sampled += 1
        waiting = [job for job in self.real_hub.jobs.values() if job.state is JobState.QUEUED]
        if waiting and at >= FIRST * self.trace.span and self._sampled % self.every == 0:
            self._ask(waiting, self._moment(at))

    def _ask(self, waiting: Sequence[Job], now: datetime) -> None:
        chance = Random(f"{now}").random
        snapshot = first_in_queue(self.real_hub.snapshot(), now, MOST_WAIT, MOST_WAIT)
        known = RunTimes.from_run_times([*still_running(self.real_hub.jobs.values(), now), *reversed(self._ended)])
        plays = [simulate(snapshot, KnownEnds(known), now, similar(chance)) for _ in range(PLAYS)]
        found = estimate_starts(snapshot, plays, known)
        self.score.asked += len(waiting)
        for job in waiting:
            if job.id in found:
                self._open.setdefault(job.id, []).append((now, found[job.id]))

    def _started(self, job: Job) -> None:
        for asked, estimate in self._open.pop(job.id, ()):
            self.score.add(estimate, asked, self._moment(self.now))
        Replay._started(self, job)

    def _stop(self, run: Any) -> None:
        job = run.outcome.job
        self._ended.append(RunTime(job.team, "", self.now - run.at))
        Replay._stop(self, run)


def asked(trace: Trace, every: int, changes: Sequence[str] = ()) -> Score:
    plain = make(trace, (None, None), changes, load=LOAD).replay(trace)
    replay = Asking(plain.real_hub, trace, plain.request_of, every=every)
    replay.run()
    return replay.score


def week(trace: Trace, begin: datetime) -> Trace:
    """Five days: Monday to Friday."""
    first = (begin - trace.begin).total_seconds()
    jobs = [one for one in trace.jobs if first <= one.submit < first + 5 * 86400]
    return Loader(list(jobs)).trace(trace.source, lambda at: trace.begin + timedelta(seconds=at))


def trainings(sessions: Trace) -> Trace:
    """Every training as a job of its own, which holds its GPUs for as long as it computes."""
    jobs = [
        TraceJob("", one.submit + begin, end - begin, gpus, one.team, one.user)
        for one in sessions.jobs
        for begin, end, gpus in one.activity or ()
        if gpus
    ]
    return Loader(jobs).trace(sessions.source)


def scores(folder: Path) -> Iterator[tuple[str, Score]]:
    philly = readers.read([folder / "philly.csv"])
    for weeks in (WEEKS, BETWEEN):
        total = Score()
        for begin in weeks:
            some = week(philly, begin)
            total += (score := asked(some, every=10))
            yield f"Philly, {begin:%d %B %Y}, {len(some.jobs)} jobs", score
        yield f"Philly, all {len(weeks)} weeks", total
    yield "Philly, the busiest five days", asked(week(philly, BUSIEST), every=10)
    sessions = readers.read([folder / "interactive_sessions.csv", folder / "interactive_trainings.csv"])
    yield (
        "sessions, culled after 2 h, 32 GPUs",
        asked(sessions, 1, ["idle.window_seconds=7200", "teams.sessions.quota.gpu=32"]),
    )
    for gpus in (16, 24):
        yield f"trainings as jobs, {gpus} GPUs", asked(trainings(sessions), 1, [f"teams.sessions.quota.gpu={gpus}"])


def main(given: Sequence[str]) -> None:
    for title, score in scores(Path(given[0])):
        print(f"estimates, {title}: {score}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
