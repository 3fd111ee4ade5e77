"""Public traces through the simulator: `make simulations TRACES=DIRECTORY`, the figures of hub_config/POLICY.md.

The directory has `philly.csv`, `interactive_sessions.csv` and `interactive_trainings.csv`; nothing of them is kept.
Asserted: no team inside its quota waits longer than on a cluster of its own, and the idle windows' figures agree with a
count of the gaps in the files, which knows nothing of the simulator.

Times are of the CPU, user and system; memory is the peak of the process until then.
"""

from __future__ import annotations

import csv
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from dlspawner.simulate import readers, report, sweep
from dlspawner.simulate.scenario import Scenario, make
from dlspawner.simulate.trace import Load, Trace, with_borrowers
from tests.bench import estimates

LOADS, BORROWERS, SEED = (0.3, 0.5), 0.3, 1
DEFAULT_LOAD = 0.7  # of the command
EVENTS = (5_000, 50_000, 500_000)  # jobs: two events each


def cpu(of: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(of)
    return used.ru_utime + used.ru_stime


def memory() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"


def at_once(scenario: Scenario) -> Scenario:
    rules = replace(scenario.cluster.scheduling, notice=timedelta(0), min_run=timedelta(0))
    return replace(scenario, cluster=replace(scenario.cluster, scheduling=rules))


def replays(trace: Trace, load: float) -> None:
    lends = with_borrowers(trace, BORROWERS, Random(SEED))
    for title, some in (("all guaranteed", trace), (f"{BORROWERS:.0%} preemptible", lends)):
        scenario = make(some, (None, None), load=load)
        alone = report.private_waits(scenario, some)
        for name, one in (
            ("quotas", scenario),
            ("quotas, no notice", at_once(scenario)),
            ("one pool", replace(scenario, pool=True)),
        ):
            began = cpu()
            replay = one.replay(some)
            replay.run()
            seconds = cpu() - began
            row = report.summarize(replay, one, alone).rows[-1]
            cells = dict(zip(report.HEADS, report.cells(row), strict=True))
            told = ", ".join(f"{key} {cells[key]}" for key in ("wait_mean", "wait_median", "wait_p95", "wait_max"))
            print(
                f"load {load:g}, {title}, {name}: {row.quota} GPUs, {told}, excess {row.excess_mean:.1f} s, at most "
                f"{row.excess_max:.0f} s, anomalies {row.anomalies}, borrowers left within {row.leaving_max:.0f} s, "
                f"{row.preemptions} preemptions, {row.lost:.0f} "
                f"GPU-hours lost; {seconds:.1f} s CPU, {memory()}",
                flush=True,
            )
            rules = one.cluster.scheduling
            if not one.pool:
                assert row.leaving_max <= (rules.notice + rules.min_run).total_seconds(), "borrowers leave too late"
            if name == "quotas, no notice":
                assert row.excess_max is not None
                assert row.excess_max < 1e-3, "a team inside its quota waits longer than on a cluster of its own"


def rows(file: Path, *numbers: str) -> list[tuple[Any, ...]]:
    """The session of each row, and these numbers."""
    with file.open(encoding="utf-8") as opened:
        return [(row["session"], *(int(row[name]) for name in numbers)) for row in csv.DictReader(opened)]


def gaps(folder: Path) -> list[tuple[int, list[tuple[int, int]], int]]:
    """GPUs, spans of use and length of each session, in minutes, as the files have them."""
    trainings = rows(folder / "interactive_trainings.csv", "start_minute", "duration_minutes")
    sessions = rows(folder / "interactive_sessions.csv", "start_minute", "stop_minute", "gpus")
    return [
        (
            gpus,
            sorted((at - begin, at - begin + length) for name, at, length in trainings if name == session),
            end - begin,
        )
        for session, begin, end, gpus in sessions
    ]


def trained(folder: Path) -> float:
    """GPU-hours of all trainings, each until its session's end."""
    ends = dict(rows(folder / "interactive_sessions.csv", "stop_minute"))
    trainings = rows(folder / "interactive_trainings.csv", "start_minute", "duration_minutes", "gpus")
    return sum(gpus * max(0, min(length, ends[name] - begin)) / 60 for name, begin, length, gpus in trainings)


def sessions(folder: Path) -> None:
    trace = readers.read([folder / "interactive_sessions.csv", folder / "interactive_trainings.csv"])
    scenario, counted = make(trace, (None, None)), gaps(folder)
    replay = scenario.replay(trace)
    replay.run()
    row = report.summarize(replay, scenario).rows[-1]
    reserved, active = sum(gpus * length for gpus, _, length in counted) / 60, trained(folder)
    print(f"sessions: {row.held:.0f} GPU-hours reserved, {row.active:.0f} active ({row.active / row.held:.1%})")
    assert abs(row.held / reserved - 1) < 0.005
    assert abs(row.active / row.held - active / reserved) < 0.005
    for point in sweep.play_all(scenario, trace, sweep.windows()):
        assert point.setting.window is not None
        minutes, back, unwanted = point.setting.window / timedelta(minutes=1), 0.0, 0
        for gpus, used, length in counted:
            last = 0
            for begin, end in [*used, (length, length)]:
                if begin - last > minutes:
                    back += gpus * (begin - last - minutes) / 60
                    unwanted += begin < length
                last = max(last, end)
        share = back / reserved
        print(f"{', '.join(sweep.cells(point))}; counted {share:.1%}, {unwanted}", flush=True)
        assert abs(point.reclaimed_share - share) < 0.005
        assert point.unwanted == unwanted


def cost() -> None:
    for jobs in EVENTS:
        trace = Load(jobs=jobs, days=jobs / 4000, sigma=1.0).trace(Random(SEED))  # the same load, for longer
        scenario = make(trace, (None, None), load=0.5)
        replay, began = scenario.replay(trace), cpu()
        replay.run()
        each = (cpu() - began) / jobs / 2
        print(f"{2 * jobs} events: {each * 1e6:.0f} µs CPU each, {memory()}", flush=True)


def whole(philly: Trace) -> None:
    """The command's replay of Philly with its default load, and the sweep of two settings on two cores."""
    scenario = make(philly, (None, None), load=DEFAULT_LOAD)
    began = cpu()
    scenario.replay(philly).run()
    print(f"Philly whole, load {DEFAULT_LOAD:g}: {cpu() - began:.1f} s CPU, {memory()}", flush=True)
    light, began, clock = make(philly, (None, None), load=LOADS[0]), cpu(resource.RUSAGE_CHILDREN), time.monotonic()
    points = list(sweep.play_all(light, philly, [sweep.Setting(), sweep.windows()[0]]))
    used, took = cpu(resource.RUSAGE_CHILDREN) - began, time.monotonic() - clock
    print(f"sweep of {len(points)} settings: {used:.1f} s CPU of {os.cpu_count()} cores in {took:.1f} s", flush=True)


def main(given: Sequence[str]) -> None:
    folder = Path(given[0])
    sessions(folder)
    philly = readers.read([folder / "philly.csv"])
    whole(philly)
    cost()
    estimates.main(given)
    for load in LOADS:
        replays(philly, load)


if __name__ == "__main__":
    main(sys.argv[1:])
