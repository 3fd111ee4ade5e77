"""GPU-hours for programs and spreadsheets, under /services/jobs/api/.

    GET  history/gpu-hours?by=team|user|gpu_type&since=&until=       as JSON
    GET  history/gpu-hours.csv?…                                     the same as CSV

Days are UTC's, both included; thirty days until today unless they are given. People see their own hours, and those of
the teams that they administer; the Hub's administrators all. What is free belongs to nobody, and is told by GPU type.

An answer may have a row for each of thousands of people and a thousand days. It is put together and written in a
thread, and row by row: one call of json or sort for all of it would keep the Manager from all else, in a thread too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import TypeVar

from dlspawner.core.gpu_hours import NONE, PER_HOUR, GpuTime
from dlspawner.manager.access import AccessRight, Viewer
from dlspawner.manager.history import hoursrows
from dlspawner.manager.history.hoursrows import Hours
from dlspawner.manager.history.questions import GpuHoursQuery, GroupBy, read_gpu_hours_query, write_csv
from dlspawner.manager.jobs_api import NOT_LEADER
from dlspawner.manager.web import ApiHandler, HttpProblem, IdentityHandler, ManagerContext, Routes

AMOUNTS = ("asked", "held", "measured", "used", "reclaimed")
FREE = ("total", "free", "closed", "fragmented")
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
    """What takes long, in a thread; one at a time, so that reports take nobody else's threads."""
    return await asyncio.get_running_loop().run_in_executor(_ASIDE, work, *given)


def read_query(handler: IdentityHandler) -> GpuHoursQuery:
    """What the address asks for; 422 with a sentence where that is nothing that can be answered."""
    by, since, until = (handler.get_query_argument(name, "") for name in ("by", "since", "until"))
    found = read_gpu_hours_query(by, since, until, handler.manager.now())
    if isinstance(found, str):
        raise HttpProblem(422, found)
    return found


async def report(manager: ManagerContext, question: GpuHoursQuery, viewer: Viewer) -> GpuHoursReport:
    """The answer for whoever asks; 501 on a Manager that counts nothing."""
    if manager.leader is None:
        raise HttpProblem(501, NOT_LEADER)
    now = manager.now()
    hours = await manager.store.read(lambda connection: hoursrows.read_gpu_hours(connection, question, viewer, now))
    free = await manager.store.read(lambda connection: hoursrows.read_free_gpus(connection, question))
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
    """The answer for programs."""
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
        self.check_parameters()
        found = await report(self.manager, read_query(self), self.viewer(AccessRight.SEE))
        body = await in_report_thread(as_json, found)
        self.tell_presence()
        self.set_header("Content-Type", "application/json")
        self.finish(body)


class GpuHoursCsvHandler(ApiHandler):
    """As CSV."""

    async def get(self) -> None:
        self.check_parameters()
        question = read_query(self)
        found = await report(self.manager, question, self.viewer(AccessRight.SEE))
        body = await in_report_thread(as_csv, found)
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        file = f"gpu-hours-{question.by.value}-{question.since}-{question.until}.csv"
        self.set_header("Content-Disposition", f'attachment; filename="{file}"')
        self.finish(body)


HISTORY_ROUTES: Routes = (
    ("api/history/gpu-hours", GpuHoursHandler),
    (r"api/history/gpu-hours\.csv", GpuHoursCsvHandler),
)
