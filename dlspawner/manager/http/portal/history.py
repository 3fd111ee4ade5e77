"""The page of GPU-hours: /services/jobs/history. What it shows is the REST resource's answer, in tables.

A chart is drawn by the browser from the table beside it (`chart.html`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from urllib.parse import urlencode

from dlspawner.core import accounting
from dlspawner.core.scheduling import usage_report
from dlspawner.manager.db import gpu_hours
from dlspawner.manager.db.gpu_hours import PastJob
from dlspawner.manager.history.profile import Maxima
from dlspawner.manager.http.api.history import (
    UNITS,
    GpuHoursReport,
    Row,
    TimeRange,
    in_report_thread,
    read_job_usage,
    read_query,
    report,
)
from dlspawner.manager.http.api.models.requests import UsageQuery
from dlspawner.manager.http.api.models.responses import SeriesModel
from dlspawner.manager.http.handlers import HttpProblem
from dlspawner.manager.http.portal.base import PortalPage, notices_for
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.gpu_hours import AMOUNTS, GpuHoursQuery, GroupBy, gpu_hours_query

COLUMN_TITLES = {GroupBy.TEAM: "Team", GroupBy.USER: "Person", GroupBy.GPU_TYPE: "GPU type"}
NO_VALUE = "(none)"
PLOTTED = ("requested", "allocated", "used", "reclaimed")
SERIES = 6  # in a chart; what is more is one series, "others"
OTHERS = "others"
MOST_ROWS = 100  # of sums, before one of the others; the CSV has all
_HOUR, _HOURS = timedelta(hours=1), 7 * 24  # of the cluster's history
_HISTORY_EVERY_SECONDS = 300  # between two looks of a page that is open: days change slowly


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A name and a number for each row of the table; ``None`` for what is not known."""

    name: str
    values: tuple[float | None, ...]

    @property
    def total(self) -> float:
        return sum(value or 0.0 for value in self.values)


@dataclass(frozen=True, slots=True)
class HistoryPlot:
    """A table that is drawn as well: of days, as bars, or of hours; ``name`` is one of a kind on the page."""

    name: str
    heading: str
    title: str
    times: tuple[str, ...]
    series: tuple[ChartSeries, ...]
    unit: str = "GPU-hours"
    days: bool = True

    @property
    def empty(self) -> bool:
        return not any(one.total for one in self.series)


class HistoryPage(PortalPage):
    """GPU-hours by day, of the viewer or of more users."""

    async def get(self) -> None:
        self.person()
        self.leader()
        problem = ""
        try:
            question = read_query(self)
        except HttpProblem as wrong:
            usual, problem = gpu_hours_query(GroupBy.TEAM, None, None, self.manager.now()), _of_the_form(wrong.detail)
            assert isinstance(usual, GpuHoursQuery)  # noqa: S101 - the usual days can be asked
            question = usual
        viewer = self.viewer(AccessRight.SEE)
        told = await report(self.manager, question, viewer)
        query = {"by": question.by.value, "since": question.since, "until": question.until}
        names = self._names(question.by)
        plots = await in_report_thread(_plots, told, names)
        most = len(told.totals) if len(told.totals) <= MOST_ROWS + 1 else MOST_ROWS  # one alone is no others
        self.show(
            "history.html",
            422 if problem else 200,
            problem=problem,
            question=question,
            ways=[(one.value, COLUMN_TITLES[one]) for one in GroupBy],
            title=COLUMN_TITLES[question.by],
            rows=[{**row, "name": _name(row[question.by.value], names)} for row in told.totals[:most]],
            others=_sum(told.totals[most:]),
            count=len(told.totals),
            total=_sum(told.totals),
            plots=plots,
            free=_free(told, names),
            csv=f"{self.manager.service.prefix}api/history/gpu-hours.csv?{urlencode(query)}",
            whose="all users"
            if viewer.all
            else "yours, and those of the teams you look after"
            if viewer.teams
            else "yours",
            now=self.manager.now(),
            every=_HISTORY_EVERY_SECONDS,
            told=notices_for(self),
        )

    def _names(self, by: GroupBy) -> Mapping[str, str]:
        """Returns the titles of rows that differ from their names."""
        settings = self.leader().settings
        types = {kind.name: kind.title or kind.name for kind in settings.cluster.gpu_types}
        return {GroupBy.TEAM: settings.teams.titles, GroupBy.GPU_TYPE: types}.get(by, {})


def _name(key: object, names: Mapping[str, str]) -> str:
    return names.get(str(key), str(key)) or NO_VALUE


def _sum(rows: Sequence[Row]) -> dict[str, float]:
    return {name: sum(_number(row[name]) for row in rows) for name in AMOUNTS}


def _plots(told: GpuHoursReport, names: Mapping[str, str]) -> list[HistoryPlot]:
    """Plots every amount by day. The largest owners of all amounts are apart, with the same colour in each plot."""
    key, days = told.question.by.value, _days(told.question)
    totals = sorted(told.totals, key=lambda row: -sum(_number(row[name]) for name in PLOTTED))
    shown = [_name(row[key], names) for row in totals]
    if len(shown) > SERIES + 1:  # one alone is no others
        shown[SERIES:] = [OTHERS]
    place = {row[key]: min(number, len(shown) - 1) for number, row in enumerate(totals)}
    at = {day: number for number, day in enumerate(days)}
    plots = []
    for name in PLOTTED:
        values = [[0.0] * len(days) for _ in shown]
        for row in told.days:
            values[place[row[key]]][at[str(row["day"])]] += _number(row[name])
        series = tuple(ChartSeries(one, tuple(of)) for one, of in zip(shown, values, strict=True))
        plots.append(HistoryPlot(name, name.capitalize(), f"GPU-hours {name} by day", days, series))
    return plots


def _free(told: GpuHoursReport, names: Mapping[str, str]) -> list[HistoryPlot]:
    """GPUs that were free and of use, and those of none: by type where the question is, or of all types."""
    apart, days = told.question.by is GroupBy.GPU_TYPE, _days(told.question)
    by_type: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in told.free:
        of, day = by_type.setdefault(str(row["gpu_type"]) if apart else "", {}), str(row["day"])
        closed, fragmented = _number(row["unschedulable"]), _number(row["fragmented"])
        usable, *useless = of.get(day, (0.0, 0.0, 0.0))
        of[day] = (usable + _number(row["free"]) - closed - fragmented, useless[0] + closed, useless[1] + fragmented)
    plots = []
    for number, (kind, of) in enumerate(by_type.items()):
        values = zip(*(of.get(day, (0.0, 0.0, 0.0)) for day in days), strict=True)
        series = tuple(
            ChartSeries(*one) for one in zip(("usable", "on closed nodes", "fragmented"), values, strict=True)
        )
        heading = _name(kind, names) if apart else "All types"
        title = f"Free GPU-hours by day, {heading}" if apart else "Free GPU-hours by day"
        plots.append(HistoryPlot(f"free-{number}", heading, title, days, series))
    return plots


def _days(question: GpuHoursQuery) -> tuple[str, ...]:
    return tuple(day.isoformat() for day in question.days)


class ClusterHistoryPage(PortalPage):
    """The use of GPU types and nodes, the queue and the waits, by hour."""

    async def get(self) -> None:
        self.person()
        now, nodes = self.manager.now(), usage_report.node_statuses(self.admission().store.cluster_state)
        begin = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - _HOURS * _HOUR
        jobs = await self.manager.database.read(lambda connection: gpu_hours.read_past_jobs(connection, begin))
        titles = {kind.name: kind.title or kind.name for kind in self.leader().settings.cluster.gpu_types}
        plots = await in_report_thread(_load, jobs, nodes, titles, begin)
        self.show_page("cluster_history.html", plots=plots, every=_HISTORY_EVERY_SECONDS)


def _load(
    jobs: Sequence[PastJob], nodes: Sequence[usage_report.NodeStatus], titles: Mapping[str, str], begin: datetime
) -> list[HistoryPlot]:
    """Use in percent of the GPUs that there are now."""
    end, hours = begin + _HOURS * _HOUR, [begin + number * _HOUR for number in range(_HOURS)]
    held = [(job, amount, span) for job in jobs for amount, span in accounting.allocated(job.life, end)]
    types = accounting.means(((job.gpu_type, amount, span) for job, amount, span in held), begin, _HOUR, _HOURS)
    places = ((node, gpus, span) for job, _, span in held for node, gpus in job.nodes)
    busy = accounting.means(places, begin, _HOUR, _HOURS)
    there = {node.name: sum(one.total for one in node.gpus) for node in nodes if node.gpus}
    totals = {kind: sum(one.total for node in nodes for one in node.gpus if one.gpu_type == kind) for kind in titles}
    shown = sorted(there, key=lambda name: (-sum(busy.get(name, ())), name))[: SERIES + 1]
    queue = accounting.means(
        (("", 1, span) for job in jobs for span in accounting.queued(job.life, end)), begin, _HOUR, _HOURS
    )
    waited: list[list[float]] = [[] for _ in hours]
    for job in jobs:
        for at, length in accounting.waits(job.life, end):
            if begin <= at < end:
                waited[(at - begin) // _HOUR].append(length.total_seconds() / 60)

    def percent(name: str, title: str, total: int, of: Mapping[str, Sequence[float]]) -> ChartSeries:
        return ChartSeries(title, tuple(100 * value / total for value in of.get(name, (0.0,) * _HOURS)))

    by_type = [percent(name, title, totals[name], types) for name, title in titles.items() if totals[name]][
        : SERIES + 1
    ]
    by_node = [percent(name, name, there[name], busy) for name in shown]
    most = f"the {len(shown)} busiest of {len(there)} nodes" if len(shown) < len(there) else "all nodes"
    waiting = (ChartSeries("Jobs", tuple(queue.get("", [0.0] * _HOURS))),)
    lengths = tuple(
        ChartSeries(name, tuple(of(one) if one else None for one in waited))
        for name, of in (("Median", median), ("Longest", max))
    )
    times = tuple(f"{at:%Y-%m-%dT%H:%MZ}" for at in hours)
    return [
        HistoryPlot("types", "GPUs in use by type", "GPUs in use by type", times, tuple(by_type), "%", days=False),
        HistoryPlot(
            "nodes", "GPUs in use by node", f"GPUs in use by node, {most}", times, tuple(by_node), "%", days=False
        ),
        HistoryPlot("queue", "Queue length", "Jobs in the queue", times, waiting, "jobs", days=False),
        HistoryPlot("waits", "Wait time", "Wait until admission", times, lengths, "minutes", days=False),
    ]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _of_the_form(problem: str) -> str:
    """The sentence with the fields of the form in place of the query's parameters."""
    titles = {"since": "“From”", "until": "“To”", "by": "“By”"}
    return re.sub(r"'(since|until|by)'|\b(since|until)\b", lambda one: titles[one[1] or one[2]], problem)


TITLES = {
    "gpu": "GPUs, percent busy",
    "gpu_memory": "Memory of the GPUs, GiB",
    "cpu": "Processor, cores",
    "memory": "Memory, GiB",
}
MAXIMA = {
    "gpu": "Busiest GPU, percent",
    "gpu_memory": "Memory of the fullest GPU, GiB",
    "cpu": "Processor, cores",
    "memory": "Memory, GiB",
    "network": "Network, MB/s",
    "disk": "Disk, MB/s",
    "gpu_util": "GPU, percent",
    "gpu_mem_util": "GPU memory, percent",
}
NOTHING_YET = "It has not run yet."
_GIB = 2**30
_USAGE_EVERY_SECONDS = 60  # between two looks of a page that is open
_UNITS = {"percent": "%", "bytes": "GiB", "cores": "cores"}


@dataclass(frozen=True, slots=True)
class UsageLine:
    title: str
    unit: str
    last: str
    most: str
    values: tuple[str, ...]


class UsagePage(PortalPage):
    async def get(self, job: str) -> None:
        self.person()
        kept = await self.kept(job)
        problem, span = "", None
        found: tuple[SeriesModel, ...] = ()
        maxima: dict[str, Maxima] = {}
        try:
            span, found, maxima = await read_job_usage(self, kept, UsageQuery())
        except HttpProblem as no:
            problem = no.detail
        known = [one for one in found if any(value is not None for value in one.values)]
        self.show(
            "usage.html",
            job=kept,
            mine=kept.user == self.caller.name,
            trouble=problem,
            times=list(zip(span.times, moments(span), strict=True)) if span else [],
            shown=time_range_text(span) if span and known else "",
            lines=[_line(one) for one in known],
            maxima=[(pod, list(_most(maxima[pod]))) for pod in sorted(maxima)],
            nothing=NOTHING_YET if kept.started is None else "Nothing was measured in this time.",
            now=self.manager.now(),
            every=_USAGE_EVERY_SECONDS,
            told=(),
        )


def _most(maxima: Maxima) -> Iterator[tuple[str, str]]:
    """Yields the measured amounts with their maxima."""
    factors = {"bytes": 1 / _GIB, "bytes per second": 1e-6}
    for name, title in MAXIMA.items():
        for (measured, process), value in sorted(maxima.items()):
            if measured == name:
                shown = f"{value * factors.get(UNITS[name], 1):.1f}"
                yield (f"Process {process.rpartition('_')[2]}: {title}" if process else title), shown


def moments(span: TimeRange) -> list[str]:
    """The times of its points in UTC, each a text of its own: with seconds where a minute has several."""
    form = "%Y-%m-%d %H:%M" if span.step.total_seconds() % 60 == 0 else "%Y-%m-%d %H:%M:%S"
    return [at.astimezone(UTC).strftime(form) for at in span.times]


def time_range_text(span: TimeRange) -> str:
    begin, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" for at in (span.since, span.until))
    return f"From {begin} to {end} UTC, a mean for every {span.step.total_seconds():g} seconds."


def _line(series: SeriesModel) -> UsageLine:
    factor = _GIB if series.unit == "bytes" else 1
    values = [None if value is None else value / factor for value in series.values]
    known = [value for value in values if value is not None]
    return UsageLine(
        TITLES[series.name],
        _UNITS[series.unit],
        f"{known[-1]:.1f}",
        f"{max(known):.1f}",
        tuple("" if value is None else f"{value:.1f}" for value in values),
    )
