"""GPU-hours for programs and spreadsheets, under /services/jobs/api/.

Days are UTC's, both included; thirty days until today unless they are given. People see their own hours, and those of
the teams that they administer; the Hub's administrators all. Free GPUs have no owner, and are listed by GPU type.

An answer may have a row for each of thousands of people and a thousand days. It is put together and written in a
thread, and row by row: one call of json or sort for all of it would keep the Manager from all else, in a thread too.

Each point is what was measured in the step before it, a mean, so a step without a sample is not known, and no sample is
shown twice. A pod's name may have been another job's before: only the job's own life is asked for.

Times are within the job's life: its last six hours unless they are given.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TypeVar

from dlspawner.clients.prometheus import (
    MIB,
    GpuSample,
    MetricNames,
    MetricsUnavailable,
    PrometheusClient,
    is_ratio,
    selector,
)
from dlspawner.core.accounting import NONE, PER_HOUR, GpuTime
from dlspawner.manager.culling.evidence import NO_PROMETHEUS
from dlspawner.manager.db import gpu_hours
from dlspawner.manager.db.gpu_hours import Hours
from dlspawner.manager.history.profile import Maxima, read_maxima
from dlspawner.manager.http.api.base import JobApiHandler, leader_of
from dlspawner.manager.http.api.models.requests import PeriodQuery, UsageQuery
from dlspawner.manager.http.api.models.responses import MaximumModel, SeriesModel, UsageModel
from dlspawner.manager.http.handlers import (
    NOT_LEADER,
    NOT_YET,
    ApiHandler,
    HttpProblem,
    IdentityHandler,
    ManagerContext,
)
from dlspawner.manager.model.access import AccessRight, Viewer
from dlspawner.manager.model.gpu_hours import AMOUNTS, FREE, GpuHoursQuery, GroupBy, gpu_hours_query, write_csv
from dlspawner.manager.model.job_history import JobHistory

Row = dict[str, object]
Done = TypeVar("Done")

_ASIDE = ThreadPoolExecutor(1, "reports")


@dataclass(frozen=True, slots=True)
class GpuHoursReport:
    """The answer: hours by day and key, sums by key, and the free GPUs of each type by day."""

    question: GpuHoursQuery
    days: tuple[Row, ...]
    totals: tuple[Row, ...]
    free: tuple[Row, ...]


async def in_report_thread(work: Callable[..., Done], *given: object) -> Done:
    """Runs a long report in a thread; one at a time, so that reports leave the other threads free."""
    return await asyncio.get_running_loop().run_in_executor(_ASIDE, work, *given)


def read_query(handler: IdentityHandler) -> GpuHoursQuery:
    """Reads the query of the address; 422 with a sentence if it is invalid."""
    query = handler.read_query(PeriodQuery)
    found = gpu_hours_query(query.by, query.since, query.until, handler.manager.now())
    if isinstance(found, str):
        raise HttpProblem(422, found)
    return found


async def report(manager: ManagerContext, question: GpuHoursQuery, viewer: Viewer) -> GpuHoursReport:
    """Returns the report for a viewer; 501 on a Manager that counts nothing."""
    if manager.leader is None:
        raise HttpProblem(501, NOT_LEADER)
    now = manager.now()
    hours = await manager.database.read(lambda connection: gpu_hours.read_gpu_hours(connection, question, viewer, now))
    free = await manager.database.read(lambda connection: gpu_hours.read_free_gpus(connection, question))
    return await in_report_thread(_report, question, hours, free)


def _report(
    question: GpuHoursQuery, hours: Hours, free: Mapping[tuple[date, str], Mapping[str, int]]
) -> GpuHoursReport:
    name = question.by.value
    sums: dict[str, GpuTime] = {}
    keys: dict[date, list[str]] = {}
    for (day, key), amount in hours.items():
        sums[key] = sums.get(key, NONE) + amount
        keys.setdefault(day, []).append(key)
    return GpuHoursReport(
        question,
        tuple(
            {"day": day.isoformat(), name: key, **hours[day, key].hours()}
            for day in sorted(keys)
            for key in sorted(keys[day])
        ),
        tuple({name: key, **sums[key].hours()} for key in sorted(sums, key=lambda key: (-sums[key].allocated, key))),
        tuple(_free(day, kind, amount) for (day, kind), amount in sorted(free.items())),
    )


def _free(day: date, kind: str, amount: Mapping[str, int]) -> Row:
    return {"day": day.isoformat(), "gpu_type": kind, **{name: amount[name] / PER_HOUR for name in FREE}}


def as_json(told: GpuHoursReport) -> bytes:
    question = told.question
    head = {"by": question.by.value, "since": question.since.isoformat(), "until": question.until.isoformat()}
    lists = {"items": told.days, "totals": told.totals, "free": told.free}
    written = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
    written += [f'"{name}": [{", ".join(map(json.dumps, rows))}]' for name, rows in lists.items()]
    return f"{{{', '.join(written)}}}".encode()


def as_csv(told: GpuHoursReport) -> bytes:
    """The days for spreadsheets; by GPU type with what was free of it, too."""
    name, rows = told.question.by.value, told.days
    columns = ["day", name, *AMOUNTS]
    if told.question.by is GroupBy.GPU_TYPE:
        columns += FREE
        both: dict[tuple[str, str], Row] = {}
        for row in (*told.days, *told.free):
            key = (str(row["day"]), str(row["gpu_type"]))
            both[key] = {**both.get(key, {}), **row}
        rows = tuple(both[key] for key in sorted(both))
    return write_csv(columns, rows).encode()


class GpuHoursHandler(ApiHandler):
    """As JSON, in hours of one GPU."""

    async def get(self) -> None:
        viewer = self.viewer(AccessRight.SEE)
        found = await report(self.manager, read_query(self), viewer)
        body = await in_report_thread(as_json, found)
        self.tell_presence()
        self.set_header("Content-Type", "application/json")
        self.finish(body)


class GpuHoursCsvHandler(ApiHandler):
    async def get(self) -> None:
        viewer, question = self.viewer(AccessRight.SEE), read_query(self)
        found = await report(self.manager, question, viewer)
        body = await in_report_thread(as_csv, found)
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        file = f"gpu-hours-{question.by.value}-{question.since}-{question.until}.csv"
        self.set_header("Content-Disposition", f'attachment; filename="{file}"')
        self.finish(body)


POINTS = 200  # of a series without a given step
MOST_POINTS = 1000
SHORTEST = timedelta(seconds=15)
LONGEST = timedelta(days=31)
USUAL = timedelta(hours=6)  # before the end
_RATE = timedelta(minutes=2)  # of a counter that is read every half minute or so


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The points that are asked for: one every ``step``, the first one a step after ``since``."""

    since: datetime
    until: datetime
    step: timedelta

    @property
    def times(self) -> list[datetime]:
        return [self.since + number * self.step for number in range(1, (self.until - self.since) // self.step + 1)]


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    unit: str
    expression: str
    factor: float = 1.0


def read_time_range(query: UsageQuery, begin: datetime, end: datetime) -> TimeRange | str:
    """The points within a job's life, from ``begin`` to ``end``; or a sentence that says what cannot be asked."""
    first, last = max(query.since or end - USUAL, begin), min(query.until or end, end)
    if last - first > LONGEST:
        return f"At most {LONGEST.days} days can be asked for at once."
    if query.step is None:
        usual = math.ceil((last - first) / SHORTEST / POINTS) * SHORTEST
        return TimeRange(first, last, max(SHORTEST, usual))
    found = TimeRange(first, last, timedelta(seconds=query.step))
    if (last - first) // found.step > MOST_POINTS:
        return f"That would be more than {MOST_POINTS} points: ask for a longer step or less time."
    return found


def expressions(names: MetricNames, namespace: str, pods: Sequence[str], step: timedelta) -> tuple[_Wanted, ...]:
    """Returns the Prometheus queries about these pods, for points a step apart."""

    def over(metrics: Sequence[str], labels: tuple[str, str], more: str = "", window: timedelta = step) -> str:
        series = selector(metrics, labels, namespace, pods, more)
        return f"{series}[{max(1, int(window.total_seconds()))}s]"

    of_gpus, of_containers = (names.namespace_label, names.pod_label), ("namespace", "pod")
    real = ',container!="",container!="POD"'  # not the pod's own sum, which would count everything twice
    cpu = over(names.cpu, of_containers, real, max(step, _RATE))
    memory = over(names.host_memory, of_containers, real)
    ratios = [name for name in names.utilisation if is_ratio(name)]
    percents = [name for name in names.utilisation if name not in ratios]
    busy = [f"avg_over_time({over(percents, of_gpus)})"] if percents else []
    busy += [f"100 * avg_over_time({over(ratios, of_gpus)})"] if ratios else []
    once = "max by (pod, container) "  # the kubelet tells the same under /metrics/cadvisor and /metrics/resource
    return (
        _Wanted("gpu", "percent", f"avg({' or '.join(busy)})"),
        _Wanted("gpu_memory", "bytes", f"sum(avg_over_time({over(names.memory, of_gpus)}))", MIB),
        _Wanted("cpu", "cores", f"sum({once}(rate({cpu})))"),
        _Wanted("memory", "bytes", f"sum({once}(avg_over_time({memory})))"),
    )


async def read_usage(
    prometheus: PrometheusClient, namespace: str, pods: Sequence[str], span: TimeRange
) -> tuple[SeriesModel, ...]:
    """All series of a job; MetricsUnavailable."""
    wanted, times = expressions(prometheus.names, namespace, pods, span.step), span.times
    if not pods or not times:
        return tuple(SeriesModel(name=one.name, unit=one.unit, values=(None,) * len(times)) for one in wanted)
    asked = (prometheus.over_time(one.expression, times[0], times[-1], span.step) for one in wanted)
    found = await asyncio.gather(*asked)
    return tuple(
        SeriesModel(name=one.name, unit=one.unit, values=_at(times, samples, one.factor))
        for one, samples in zip(wanted, found, strict=True)
    )


def _at(times: Sequence[datetime], samples: Sequence[GpuSample], factor: float) -> tuple[float | None, ...]:
    known = {round(at.timestamp()): value * factor for at, value in samples}
    return tuple(known.get(round(at.timestamp())) for at in times)


UNITS = {
    **{"gpu": "percent", "gpu_memory": "bytes", "cpu": "cores", "memory": "bytes"},
    **{"network": "bytes per second", "disk": "bytes per second", "gpu_util": "percent", "gpu_mem_util": "percent"},
}


async def read_job_usage(
    handler: IdentityHandler, kept: JobHistory, query: UsageQuery
) -> tuple[TimeRange, tuple[SeriesModel, ...], dict[str, Maxima]]:
    """Returns the known usage, and the maxima of each pod in the job's life, of which the last 31 days count; 422 for
    an invalid query, 501 and 503 without a source.
    """
    leader = leader_of(handler.manager)
    if leader.culler is None:
        raise HttpProblem(503, NOT_YET)
    if leader.prometheus is None:
        raise HttpProblem(501, NO_PROMETHEUS)
    now = handler.manager.now()
    span = read_time_range(query, kept.started or now, kept.ended or now)
    if isinstance(span, str):
        raise HttpProblem(422, span)
    namespaces = leader.culler.evidence.namespaces
    record = await leader.repository.find(kept.id)
    pods = record.seen if record is not None else ()
    namespace = namespaces.from_key(pods[0].namespace) if pods else namespaces.ordinary
    try:
        begin, end, named = kept.started or now, kept.ended or now, [pod.name for pod in pods]
        most = read_maxima(leader.prometheus, namespace, named, max(begin, end - LONGEST), end)
        series, maxima = await asyncio.gather(read_usage(leader.prometheus, namespace, named, span), most)
    except MetricsUnavailable as problem:
        raise HttpProblem(503, str(problem)) from problem
    return span, series, maxima


class JobUsageHandler(JobApiHandler):
    async def get(self, job: str) -> None:
        kept = await self.seen(job, self.sees())
        span, found, maxima = await read_job_usage(self, kept, self.read_query(UsageQuery))
        self.reply(
            UsageModel(
                job=job,
                since=span.since,
                until=span.until,
                step_seconds=span.step.total_seconds(),
                times=span.times,
                series=list(found),
                maxima=[
                    MaximumModel(pod=pod, name=name, process=process, unit=UNITS[name], value=value)
                    for pod, values in maxima.items()
                    for (name, process), value in values.items()
                ],
            )
        )
