"""``dlspawner simulate``: reads traces and files, replays, and writes the report.

The report goes to standard output, or to files; progress and problems go to standard error. Exit codes: 0 success,
1 a trace or file is wrong, 130 interrupted, after what is known so far was printed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from random import Random

from dlspawner.simulate import page, readers, report, sweep
from dlspawner.simulate.engine import Replay
from dlspawner.simulate.report import Report
from dlspawner.simulate.scenario import Scenario, WrongScenario, make
from dlspawner.simulate.sweep import Point, Setting
from dlspawner.simulate.trace import InvalidTrace, Load, Trace, anonymous, team_numbers, with_borrowers

INTERRUPTED = 130
DB_URL = "DLSPAWNER_MANAGER_DB_URL"
History = Callable[[str], Trace]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of = parser.add_argument_group("what is replayed")
    of.add_argument("--trace", type=Path, nargs="+", default=[], metavar="FILE", help="traces in CSV")
    of.add_argument(
        "--history",
        metavar="URL",
        nargs="?",
        const="",
        help=f"the Manager's own database, which is only read (default: {DB_URL} of the environment, for passwords)",
    )
    of.add_argument("--synthetic", metavar="KEY=VALUE,…", help=f"a generated load: {_KEYS} (or: default)")
    of.add_argument("--anonymise", action="store_true", help="numbers instead of the names of people and teams")
    of.add_argument(
        "--preemptible", type=float, default=0.0, metavar="SHARE", help="this share of the jobs borrows, drawn"
    )
    of.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    on = parser.add_argument_group("what it is replayed on")
    on.add_argument("--cluster", type=Path, metavar="FILE", help="cluster.yaml (default: the GPU types of the trace)")
    on.add_argument("--teams", type=Path, metavar="FILE", help="teams.yaml (default: quotas by the load, see --load)")
    on.add_argument(
        "--load", type=float, default=0.7, metavar="SHARE", help="quotas that so much would be in use of (0.7)"
    )
    on.add_argument(
        "--nodes", action="append", default=[], metavar="TYPE=42x8", help="nodes of a type (default: by quota)"
    )
    on.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key, teams.NAME.… in teams"
    )
    on.add_argument("--pool", action="store_true", help="without quotas: all teams share all GPUs")
    on.add_argument("--compare", type=Path, metavar="FILE", help="replay on this other cluster.yaml as well")
    out = parser.add_argument_group("output")
    out.add_argument(
        "--no-excess", action="store_true", help="leave out the comparison with clusters of each team's own"
    )
    out.add_argument("--sweep", action="store_true", help="sweep idle windows: reclaimed GPU-hours and unwanted stops")
    out.add_argument("--advise", action="store_true", help="sweep windows, notice, minimum run time and borrow limits")
    out.add_argument("--json", action="store_true", help="the report as JSON")
    out.add_argument("--csv", type=Path, metavar="DIR", help="tables of teams, jobs, use and settings, and the trace")
    out.add_argument("--html", type=Path, metavar="FILE", help="the report as one page with charts")


_MOST = {"jobs": 5_000_000, "teams": 1000, "days": 10_000, "median": 10_000_000, "sigma": 10}
_KEYS = ", ".join(f"{one.name}={one.default:g}" for one in fields(Load))


def main(given: argparse.Namespace, history: History) -> int:
    try:
        return _run(given, history)
    except KeyboardInterrupt:
        print("Interrupted before anything was replayed.", file=sys.stderr)
        return INTERRUPTED
    except (InvalidTrace, WrongScenario) as problem:
        print(problem, file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"{problem.filename}: {problem.strerror}.", file=sys.stderr)
        return 1


def _run(given: argparse.Namespace, history: History) -> int:
    if not 0.0 <= given.preemptible <= 1.0 or not 0.0 < given.load <= 1.0:
        raise WrongScenario("--preemptible must be between 0 and 1, and --load above 0 and at most 1.")
    if given.html and given.html.is_dir():
        raise WrongScenario(f"--html {given.html}: this is a directory.")
    if given.html and not given.html.parent.is_dir():
        raise WrongScenario(f"--html {given.html}: there is no directory {given.html.parent}.")
    if given.csv:
        given.csv.mkdir(parents=True, exist_ok=True)
    trace = _trace(given, history)
    cases = [("as configured" if given.cluster else "replay", given.cluster)]
    cases += [(str(given.compare), given.compare)] if given.compare else []
    scenarios = [
        (name, replace(make(trace, (file, given.teams), given.set, given.nodes, given.load), pool=given.pool))
        for name, file in cases
    ]
    if given.anonymise:
        names = team_numbers(trace, (team.name for _, one in scenarios for team in one.teams.teams))
        trace = anonymous(trace, names)
        scenarios = [(name, one.renamed(names)) for name, one in scenarios]
    found: list[tuple[str, Report]] = []
    points: list[Point] = []
    replay, interrupted = None, False
    try:
        for name, scenario in scenarios:
            replay = scenario.replay(trace)
            found.append((name, _replay(name, replay, scenario, given)))
        if given.sweep or given.advise:
            settings = sweep.candidates(trace) if given.advise else [Setting(), *sweep.windows()]
            for point in sweep.play_all(scenarios[0][1], trace, settings, _Progress("settings", len(settings))):
                points.append(point)
    except KeyboardInterrupt:
        interrupted = True
        if len(found) < len(scenarios) and replay is not None:
            name, scenario = scenarios[len(found)]
            found.append((name, report.summarize(replay, scenario, complete=False)))
    _write(given, found, points, replay, trace)
    return INTERRUPTED if interrupted else 0


def _trace(given: argparse.Namespace, history: History) -> Trace:
    asked = [bool(given.trace), given.history is not None, given.synthetic is not None]
    if sum(asked) != 1:
        raise WrongScenario("Name what is replayed: --trace FILE…, --history URL or --synthetic KEY=VALUE,…")
    random = Random(given.seed)  # noqa: S311 - the same each time
    if given.synthetic is not None:
        trace = _load(given.synthetic).trace(random)
    else:
        url = given.history or os.environ.get(DB_URL, "")
        if not given.trace and not url:
            raise WrongScenario(f"--history: name the database, or set {DB_URL} in the environment.")
        trace = readers.read(given.trace) if given.trace else history(url)
    return with_borrowers(trace, given.preemptible, random)


def _load(text: str) -> Load:
    known: Mapping[str, type] = {one.name: type(one.default) for one in fields(Load)}
    values = {}
    for part in text.split(",") if text not in {"", "default"} else ():
        key, _, value = part.partition("=")
        try:
            values[key] = known[key](value)
        except (KeyError, ValueError):
            raise WrongScenario(f"--synthetic {part}: must be one of {_KEYS}.") from None
        if not 0 < values[key] <= _MOST[key]:
            raise WrongScenario(f"--synthetic {part}: must be above 0 and at most {_MOST[key]:,}.")
    return Load(**values)


def _replay(name: str, replay: Replay, scenario: Scenario, given: argparse.Namespace) -> Report:
    replay.run(_Progress(f"{name}: jobs", len(replay.trace.jobs)))
    if given.no_excess:
        return report.summarize(replay, scenario)
    told = _Progress(f"{name}: private clusters of teams", len(scenario.teams.teams))
    alone = report.private_waits(scenario, replay.trace, lambda _: told(told.done + 1))
    return report.summarize(replay, scenario, alone)


class _Progress:
    """A line on a terminal that says how far it is."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self.done = what, total, 0

    def __call__(self, done: int) -> None:
        self.done = done
        if sys.stderr.isatty():
            bar = "#" * round(30 * done / max(1, self._total))
            end = "\n" if done >= self._total else ""
            print(f"\r[{bar:30}] {self._what}: {done:,} of {self._total:,} ", end=end, file=sys.stderr, flush=True)


def _write(
    given: argparse.Namespace,
    found: Sequence[tuple[str, Report]],
    points: Sequence[Point],
    replay: Replay | None,
    trace: Trace,
) -> None:
    if given.json:
        reports = {name: one.document() for name, one in found}
        document = {"reports": reports, "settings": [sweep.document(one) for one in points]}
        print(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        _print(found, points, advises=given.advise)
    if given.html:
        given.html.write_text(page.page("Simulation of a policy", found, points), encoding="utf-8")
    if given.csv:
        _table(given.csv / "trace.csv", readers.rows_of(trace))
        _table(given.csv / "settings.csv", (sweep.document(one) for one in points))
        _table(given.csv / "teams.csv", ({"replay": name, **asdict(row)} for name, one in found for row in one.rows))
        heads = ("hours", "held", "waiting")
        samples = (dict(zip(heads, sample, strict=True)) for _, one in found[:1] for sample in one.samples)
        _table(given.csv / "use.csv", samples)
        if replay is not None:
            jobs = (
                {"job": one.job.name, **{key: getattr(one, key) for key in _OF_JOB}} for one in replay.outcomes.values()
            )
            _table(given.csv / "jobs.csv", jobs)


_OF_JOB = ("started", "waited", "held", "active", "lost", "reclaimed", "preempted", "culled", "unwanted", "refused")


def _print(found: Sequence[tuple[str, Report]], points: Sequence[Point], *, advises: bool) -> None:
    for name, one in found:
        print(f"== {name} ==\n{report.text(one)}\n")
    if points:
        print(report.table(sweep.HEADS, map(sweep.cells, points)))
    if advises and points:
        print("\nThe best of these, with what each costs and brings beside the present settings:")
        now = points[0]
        for number, best in enumerate(sweep.best(points), 1):
            print(
                f"{number}. {best.setting.title}: {best.reclaimed - now.reclaimed:+,.0f} GPU-hours reclaimed, "
                f"{best.unwanted - now.unwanted:+d} unwanted stops, {best.lost - now.lost:+,.0f} GPU-hours lost, "
                f"{(best.wait_mean - now.wait_mean) / 60:+,.1f} min of mean wait."
            )


def _table(file: Path, rows: Iterable[Mapping[str, object]]) -> None:
    listed = list(rows)
    if not listed:
        return
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)
