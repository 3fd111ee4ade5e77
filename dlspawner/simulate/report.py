"""What a replay says, per team and in all: waits, excess waits, use, what preemption and culling cost and bring.

*Excess wait* is HiveD's measure (OSDI '20): by how much a guaranteed job of a team waits longer than on a cluster of
the team's own, made of the nodes of its quota. A wait that is longer by no more than notice and minimum run time of
borrowers is no anomaly, and is counted apart from those that are (``anomalies``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import fmean, median

from dlspawner.simulate.engine import Outcome, Replay
from dlspawner.simulate.scenario import Scenario, quota_gpus
from dlspawner.simulate.trace import Trace

ALL = "all"


@dataclass(frozen=True, slots=True)
class TeamRow:
    """Of one team, or of all; seconds and GPU-hours. ``None``: there is nothing that it could be of."""

    team: str
    quota: float
    jobs: int
    started: int
    refused: int
    wait_mean: float | None
    wait_median: float | None
    wait_p95: float | None
    wait_max: float | None
    excess_mean: float | None
    excess_max: float | None
    anomalies: int | None
    leaving_max: float  # the longest time from the reservation of a job's place until borrowers had left it
    utilisation: float | None
    preemptions: int
    lost: float
    held: float
    active: float
    reclaimed: float
    sessions: int
    culls: int
    unwanted: int


@dataclass(frozen=True, slots=True)
class Report:
    """``fragmentation``: the mean share of all GPUs that are free and hold no pod of a job that waits."""

    source: str
    complete: bool
    gpus: float
    days: float
    busy: float
    fragmentation: float
    queue: float
    refusals: tuple[str, ...]
    rows: tuple[TeamRow, ...]
    samples: tuple[tuple[float, float, int], ...]  # hours, share of GPUs held, jobs that wait

    def document(self) -> dict[str, object]:
        return asdict(self)


Waits = Mapping[str, float]  # by job, on the cluster of its team alone


def private_waits(scenario: Scenario, trace: Trace, told: Callable[[str], None] = lambda _: None) -> dict[str, float]:
    """Plays every team alone on its quota; where each job waits how long."""
    found: dict[str, float] = {}
    for team in scenario.teams.teams:
        alone = scenario.private(team, trace)
        if alone is not None:
            told(team.name)
            alone.run()
            found |= {name: one.waited for name, one in alone.outcomes.items() if one.started is not None}
    return found


def summarize(replay: Replay, scenario: Scenario, alone: Waits | None = None, *, complete: bool = True) -> Report:
    """Returns the report; ``alone`` are the private clusters' waits, where they are known."""
    outcomes = list(replay.outcomes.values())
    span = min(replay.now, replay.trace.span)
    rules = scenario.cluster.scheduling
    lends = any(one.preemptible for one in replay.trace.jobs)
    allowed = (rules.notice + rules.min_run).total_seconds() if lends else 0.0
    gpus = sum(milli for node in scenario.nodes for _, milli in node.gpus) / 1000
    by_team: dict[str, list[Outcome]] = {team.name: [] for team in scenario.teams.teams}
    for one in outcomes:
        by_team.setdefault(one.job.team, []).append(one)
    rows = [
        _row(name, quota_gpus(scenario.teams.named(name)), some, span, _excess(some, alone), allowed)
        for name, some in by_team.items()
        if some
    ]
    rows.append(_row(ALL, gpus, outcomes, span, _excess(outcomes, alone), allowed))
    samples = [one for one in replay.samples if one.total]
    reasons = dict.fromkeys(one.refused for one in outcomes if one.refused)
    return Report(
        source=replay.trace.source,
        complete=complete,
        gpus=gpus,
        days=span / 86400,
        busy=fmean(1 - one.free / one.total for one in samples) if samples else 0.0,
        fragmentation=fmean(one.fragmented / one.total for one in samples) if samples else 0.0,
        queue=fmean(one.waiting for one in samples) if samples else 0.0,
        refusals=tuple(reasons)[:5],
        rows=tuple(rows),
        samples=tuple((one.at / 3600, 1 - one.free / one.total, one.waiting) for one in samples),
    )


def _excess(some: Iterable[Outcome], alone: Waits | None) -> list[float]:
    known = alone or {}
    return [
        max(0.0, one.waited - known[one.job.name]) for one in some if one.started is not None and one.job.name in known
    ]


def _row(  # noqa: PLR0913, PLR0917 - a row of a table
    name: str, quota: float, some: Sequence[Outcome], span: float, excess: Sequence[float], allowed: float
) -> TeamRow:
    waits = sorted(one.waited for one in some if one.started is not None)
    hours = {key: sum(getattr(one, key) for one in some) / 3600 for key in ("lost", "held", "active", "reclaimed")}
    inside = sum(one.inside for one in some)
    return TeamRow(
        team=name,
        quota=quota,
        jobs=len(some),
        started=len(waits),
        refused=sum(bool(one.refused) for one in some),
        wait_mean=fmean(waits) if waits else None,
        wait_median=median(waits) if waits else None,
        wait_p95=waits[ceil(0.95 * len(waits)) - 1] if waits else None,
        wait_max=waits[-1] if waits else None,
        excess_mean=fmean(excess) if excess else None,
        excess_max=max(excess, default=None),
        anomalies=sum(one > allowed + 1.0 for one in excess) if excess else None,
        leaving_max=max((one.leaving for one in some), default=0.0),
        utilisation=inside / (quota * span) if quota and span else None,
        preemptions=sum(one.preempted for one in some),
        sessions=sum(one.job.activity is not None for one in some),
        culls=sum(one.culled for one in some),
        unwanted=sum(one.unwanted for one in some),
        **hours,
    )


HEADS = {
    "team": "team",
    "quota": "GPUs",
    "jobs": "jobs",
    "wait_mean": "wait",
    "wait_median": "median",
    "wait_p95": "p95",
    "wait_max": "max",
    "excess_mean": "excess",
    "anomalies": "anomal.",
    "utilisation": "use",
    "preemptions": "preempt.",
    "lost": "lost",
    "held": "held",
    "active": "active",
    "reclaimed": "reclaim.",
    "culls": "culls",
    "unwanted": "unwanted",
}
_SPANS = ("wait_mean", "wait_median", "wait_p95", "wait_max", "excess_mean")


def cells(row: TeamRow) -> list[str]:
    """The row as people read it: times in minutes or hours, GPU-hours, percent."""
    found = []
    for key in HEADS:
        value = getattr(row, key)
        if value is None:
            found.append("–")
        elif key in _SPANS:
            found.append(span_text(value))
        elif key == "utilisation":
            found.append(f"{100 * value:.0f} %")
        else:
            found.append(f"{value:,.0f}" if isinstance(value, float) else f"{value}")
    return found


def span_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of text; the first one to the left, the others to the right."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def text(report: Report) -> str:
    """The report for a terminal."""
    lines = [f"Trace: {report.source}." if report.source else "Trace: jobs in dlspawner's format."]
    if not report.complete:
        lines.append("Interrupted: what is known so far.")
    lines.append(
        f"{report.gpus:.0f} GPUs over {report.days:.1f} days: {100 * report.busy:.0f} % held, "
        f"{100 * report.fragmentation:.1f} % free and of no use to jobs that waited; "
        f"{report.queue:.1f} jobs waited on average."
    )
    lines.append("")
    lines.append(table(list(HEADS.values()), map(cells, report.rows)))
    if report.refusals:
        lines += ["", "Refused, for example:", *(f"  {one}" for one in report.refusals)]
    return "\n".join(lines)
