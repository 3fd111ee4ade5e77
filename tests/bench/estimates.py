"""How good estimated starts are: `python -m tests.bench.estimates TRACE.csv…`, a table as of ElasticFlow's artifacts.

A trace has `timestamp`, `duration`, `num_gpus` and `cluster`; every virtual cluster is a team. It is replayed with the
decisions themselves: one GPU type, a quota for each team of so many nodes as let its jobs wait now and then, all jobs
guaranteed. While jobs wait, estimates are asked for every `EVERY`, from the jobs that have ended until then, and
compared with when the job then started.

The spread is chosen on what was asked in the first half of the time, and judged by what was asked in the second, which
had no part in the choice. Estimates change nothing of the replay, so all spreads are asked at the same moments of one.

Nothing of the trace is kept. Printed is how often a job that waited had an estimate, how often it started within the
range, and how far from its middle.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush
from math import ceil
from pathlib import Path
from random import Random
from statistics import median

from dlspawner.core.decisions import Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.admission import schedule
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.estimates import (
    SPREAD,
    Estimate,
    KnownEnds,
    RunTime,
    RunTimes,
    estimate_starts,
    first_in_queue,
    similar,
    simulate,
)
from tests.unit.core.factories import NOW, ask, node, team, wants, world

EVERY, PLAYS = timedelta(hours=4), 12
_BEFORE = timedelta(days=1.5)  # until then only short jobs can have ended
_DAYS = 5  # of the trace, from its busiest beginning on
_LOAD = 0.9  # what a team's jobs ask of its nodes, on average over the days
_MOST_WAIT = 100  # of the queue that are looked at, and of a lane
_LARGEST = 8
SPREADS = (1.0, 0.85, 0.6, 0.45, SPREAD, 0.2)
HALVES = ("first half", "second half")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of the trace."""

    at: datetime
    team: str
    gpus: int
    seconds: float


@dataclass(slots=True)
class Score:
    """How good the estimates were."""

    asked: int = 0
    inside: int = 0
    errors: list[float] = field(default_factory=list)  # seconds between the start and the middle of the range
    waits: list[float] = field(default_factory=list)  # seconds that were still to be waited

    def add(self, found: Estimate, asked: datetime, started: datetime) -> None:
        middle = found.earliest + (found.latest - found.earliest) / 2
        slack = timedelta(minutes=1)  # an estimate is read to the minute
        self.inside += found.earliest - slack <= started <= found.latest + slack
        self.errors.append(abs((started - middle).total_seconds()))
        self.waits.append((started - asked).total_seconds())

    def lines(self) -> Iterator[str]:
        known = len(self.errors)
        yield f"asked {self.asked}, not known {100 * (1 - known / max(1, self.asked)):.0f} %"
        if known:
            yield f"started within the range {100 * self.inside / known:.0f} %"
            yield f"median error {median(self.errors) / 60:.0f} min, median wait {median(self.waits) / 60:.0f} min"


def read(path: Path) -> list[TraceJob]:
    """The jobs of a trace, in the order in which they came; those larger than a node ask for whole nodes."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["timestamp"]]
    found = [
        TraceJob(
            datetime.fromisoformat(row["timestamp"]).replace(tzinfo=NOW.tzinfo),
            row["cluster"],
            int(float(row["num_gpus"])),
            float(row["duration"]),
        )
        for row in rows
        if float(row["duration"]) > 0
    ]
    return sorted(found, key=lambda one: (one.at, one.team, one.seconds))


def busiest(jobs: Sequence[TraceJob]) -> list[TraceJob]:
    """The days in which most came."""
    best, begin = (0, jobs[0].at), 0
    for end, one in enumerate(jobs):
        while one.at - jobs[begin].at > timedelta(days=_DAYS):
            begin += 1
        best = max(best, (end - begin, jobs[begin].at))
    return [one for one in jobs if best[1] <= one.at <= best[1] + timedelta(days=_DAYS)]


def cluster(jobs: Sequence[TraceJob]) -> ClusterState:
    """Nodes of eight GPUs: of each team as many as its jobs keep busy for most of the time, the largest fits on."""
    span = (jobs[-1].at - jobs[0].at).total_seconds()
    nodes = {}
    for name in sorted({one.team for one in jobs}):
        mine = [one for one in jobs if one.team == name]
        busy = sum(one.gpus * min(one.seconds, span) for one in mine) / span / _LOAD
        nodes[name] = max(ceil(busy / _LARGEST), *(ceil(one.gpus / _LARGEST) for one in mine))
    many = sum(nodes.values())
    return world(
        *(team(name, _LARGEST * count) for name, count in nodes.items()),
        *(node(f"n{number:04}", cpu_milli=1_000_000) for number in range(many)),
    )


class Replay:
    """The trace, from beginning to end."""

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self.world = cluster(jobs)
        self.scores = {(spread, half): Score() for spread in SPREADS for half in HALVES}
        self._jobs = list(jobs)
        self._ends: list[tuple[datetime, str]] = []
        self._durations = RunTimes()
        self._seconds = {f"j{number:06}": one.seconds for number, one in enumerate(jobs)}
        self._open: dict[str, list[tuple[Score, datetime, Estimate]]] = {}
        begin = jobs[0].at + _BEFORE
        self._middle = begin + (jobs[-1].at - begin) / 2

    def run(self) -> dict[tuple[float, str], Score]:
        coming, asks = 0, self._jobs[0].at + EVERY
        while coming < len(self._jobs) or (self._open and self._ends):
            times = [self._jobs[coming].at] if coming < len(self._jobs) else []
            now = min(times + [one[0] for one in self._ends[:1]])
            while asks <= now:
                if coming < len(self._jobs):
                    self._ask(asks)
                asks += EVERY
            while self._ends and self._ends[0][0] <= now:
                self._end(heappop(self._ends)[1])
            while coming < len(self._jobs) and self._jobs[coming].at <= now:
                self._come(coming)
                coming += 1
            self._pass(now)
        return self.scores

    def _come(self, number: int) -> None:
        one = self._jobs[number]
        whole, rest = divmod(one.gpus, _LARGEST)
        charge = ask([_LARGEST] * whole + [rest] * bool(rest))
        job = wants(f"j{number:06}", one.team, charge=charge, user="u", template="t", state=JobState.QUEUED)
        self.world.put(replace(job, submitted=one.at))

    def _end(self, name: str) -> None:
        job = self.world.jobs[name]
        self.world.remove(name)
        self._durations.add(RunTime(job.team, job.template, self._seconds[name]))

    def _pass(self, now: datetime) -> None:
        self.world.tick(now)
        for job, found in schedule(self.world, now):
            assert not isinstance(found, Preempt), "nobody borrows here"
            self.world.put(replace(job, state=JobState.RUNNING, started=now, nodes=found.nodes))
            heappush(self._ends, (now + timedelta(seconds=self._seconds[job.id]), job.id))
            for score, asked, estimate in self._open.pop(job.id, ()):
                score.add(estimate, asked, now)

    def _ask(self, now: datetime) -> None:
        waiting = [job for job in self.world.jobs.values() if job.state is JobState.QUEUED]
        if not waiting:
            return
        for spread in SPREADS:
            self._estimate(waiting, now, spread)

    def _estimate(self, waiting: list[Job], now: datetime, spread: float) -> None:
        chance = Random(f"{now} {spread}").random
        snapshot = first_in_queue(self.world.snapshot(), now, _MOST_WAIT, _MOST_WAIT)
        known = KnownEnds(self._durations)
        plays = [simulate(snapshot, known, now, similar(chance, spread)) for _ in range(PLAYS)]
        found = estimate_starts(snapshot, plays, self._durations)
        score = self.scores[spread, HALVES[now > self._middle]]
        if now < self._jobs[0].at + _BEFORE:
            return
        score.asked += len(waiting)
        for job in waiting:
            if job.id in found:
                self._open.setdefault(job.id, []).append((score, now, found[job.id]))


def main() -> None:
    for name in sys.argv[1:]:
        jobs = busiest(read(Path(name)))
        replay = Replay(jobs)
        print(f"{Path(name).name}: {len(jobs)} jobs, {len(replay.world.rooms)} nodes", flush=True)
        for (spread, half), score in replay.run().items():
            print(f"  spread {spread:g}, {half}: {'; '.join(score.lines())}", flush=True)


if __name__ == "__main__":
    main()
