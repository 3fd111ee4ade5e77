"""GPU-hours in the database: counted for good once a job's life is over, worked out anew until then.

`aggregate` adds the GPU-hours of ended jobs to `gpu_days` and marks the jobs in the same transaction, so that each is
counted once, and a report over years reads few rows. Jobs that are not folded yet are read with their events, some at
a time: after an upgrade that may be all there ever were, and PostgreSQL ends a transaction that thinks for too long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, or_, select, text, true, update
from sqlalchemy.dialects import postgresql, sqlite

from dlspawner.core.accounting import MISSED, NONE, GpuTime, JobTimeline, Step, final_gpu_time, gpu_time_by_day
from dlspawner.core.job import JobState
from dlspawner.manager.db.tables import gpu_days, gpu_free, gpu_use, job_events, jobs, metadata
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.gpu_hours import AMOUNTS, FREE, GpuHoursQuery, GroupBy
from dlspawner.manager.model.records import read_request

IDLE = EventReason.IDLE.value  # jobs that were stopped for it: their GPUs are reclaimed
Hours = dict[tuple[date, str], GpuTime]  # by day, and by team, person or GPU type
_KEYS = {GroupBy.TEAM: "team", GroupBy.USER: "user_name", GroupBy.GPU_TYPE: "gpu_type"}
_OF_JOBS = ("job", "team", "user_name", "gpu_type", "gpus_milli")
_TOLD = [jobs.c[name] for name in (*_OF_JOBS, "stop_reason", "folded_until")]
_TOGETHER = 1000  # jobs that are read and thought about before the next statement


@dataclass(frozen=True, slots=True)
class HoursOwner:
    """The key by which the hours of a job are summed up."""

    team: str
    user_name: str
    gpu_type: str


def read_gpu_hours(connection: Connection, question: GpuHoursQuery, viewer: Viewer, now: datetime) -> Hours:
    """Returns the GPU-hours of these days that the viewer may see: the sums of aggregated days and of all other jobs
    are of one moment of the database, that of the first statement; running jobs count until `now`.
    """
    _at_one_moment(connection)
    key = gpu_days.c[_KEYS[question.by]]
    sums = [func.sum(gpu_days.c[name]).label(name) for name in AMOUNTS]
    days = gpu_days.c.day.between(question.since, question.until) & _seen(gpu_days, viewer)
    found: Hours = {}
    for row in connection.execute(select(gpu_days.c.day, key, *sums).where(days).group_by(gpu_days.c.day, key)):
        found[row[0], row[1]] = GpuTime(*(int(amount) for amount in row[2:]))
    unfolded = jobs.c.folded.is_(False) & _seen(jobs, viewer)
    for day, owner, amount in _hours(connection, unfolded, lambda life: gpu_time_by_day(life, now)):
        if question.since <= day <= question.until:
            name = (day, str(getattr(owner, _KEYS[question.by])))
            found[name] = found.get(name, NONE) + amount
    return found


def read_free_gpus(connection: Connection, question: GpuHoursQuery) -> dict[tuple[date, str], Mapping[str, int]]:
    """Milli-GPU-seconds of GPUs, all and free ones, by day and type."""
    query = select(gpu_free).where(gpu_free.c.day.between(question.since, question.until))
    return {(row.day, row.gpu_type): {name: getattr(row, name) for name in FREE} for row in connection.execute(query)}


@dataclass(frozen=True, slots=True)
class PastJob:
    """The GPUs of a job over time; of its nodes the last ones are known, each with the milli-GPUs there."""

    life: JobTimeline
    gpu_type: str
    nodes: tuple[tuple[str, int], ...]


def read_past_jobs(connection: Connection, since: datetime) -> list[PastJob]:
    """Returns the jobs that had not ended by then, of all users."""
    there = jobs.c.ended.is_(None) | (jobs.c.ended >= since)
    columns = [jobs.c[name] for name in (*_OF_JOBS, "nodes", "request")]
    found = []
    for rows in connection.execute(
        select(*columns).where(there), execution_options={"yield_per": _TOGETHER}
    ).partitions():
        steps = _steps(connection, [row.job for row in rows])
        for row in rows:
            known = tuple(step for step, _ in steps.get(row.job, ()))
            pods = zip(json.loads(row.nodes), read_request(row.request).pods, strict=False)
            nodes = tuple((node, pod.gpus) for node, pod in pods if node and pod.gpus)
            found.append(PastJob(JobTimeline(row.gpus_milli, known), row.gpu_type or "", nodes))
    return found


def add_free_gpus(connection: Connection, sampled: Mapping[tuple[date, str], Mapping[str, int]]) -> None:
    """This much more of each type on each day."""
    rows = [{"day": day, "gpu_type": kind, **amount} for (day, kind), amount in sampled.items()]
    _add(connection, gpu_free, ("day", "gpu_type"), rows)


def add_gpu_use(connection: Connection, sampled: Mapping[tuple[str, date], GpuTime]) -> None:
    """Adds the GPU time that each job's GPUs computed; unknown jobs are skipped."""
    known = set(connection.scalars(select(jobs.c.job).where(jobs.c.job.in_({job for job, _ in sampled}))))
    rows = [
        {"job": job, "day": day, "measured": amount.measured, "used": amount.used}
        for (job, day), amount in sampled.items()
        if job in known
    ]
    _add(connection, gpu_use, ("job", "day"), rows)


def aggregate(connection: Connection, now: datetime, size: int) -> int:
    """Adds some ended jobs to the daily sums for good; returns their number."""
    over = (jobs.c.state == JobState.ENDED.value) & jobs.c.folded.is_(False)
    settled = jobs.c.stop_reason.is_(None) | (jobs.c.stop_reason != IDLE) | (jobs.c.ended <= now - MISSED)
    ids = list(connection.scalars(select(jobs.c.job).where(over & settled).limit(size).with_for_update()))
    if not ids:
        return 0
    sums: dict[tuple[date, HoursOwner], GpuTime] = {}
    for day, owner, amount in _hours(connection, jobs.c.job.in_(ids), final_gpu_time):
        sums[day, owner] = sums.get((day, owner), NONE) + amount
    rows = [{"day": day, **asdict(owner), **asdict(amount)} for (day, owner), amount in sums.items()]
    _add(connection, gpu_days, ("day", "team", "user_name", "gpu_type"), rows)
    connection.execute(delete(gpu_use).where(gpu_use.c.job.in_(ids)))
    connection.execute(update(jobs).where(jobs.c.job.in_(ids)).values(folded=True, folded_until=jobs.c.ended))
    return len(ids)


def prune_jobs(connection: Connection, before: datetime, size: int) -> int:
    """Forget some jobs that ended before then and are counted, with all that is kept of them; how many."""
    old = (jobs.c.state == JobState.ENDED.value) & jobs.c.folded.is_(True) & (jobs.c.ended < before)
    ids = list(connection.scalars(select(jobs.c.job).where(old).limit(size)))
    if ids:
        for table in reversed(metadata.sorted_tables):
            for foreign in table.foreign_keys:
                if foreign.column is jobs.c.job:
                    connection.execute(delete(table).where(foreign.parent.in_(ids)))
        connection.execute(delete(jobs).where(jobs.c.job.in_(ids)))
    return len(ids)


def prune_days(connection: Connection, before: date) -> None:
    """Forget GPU-hours of earlier days."""
    for table in (gpu_days, gpu_free):
        connection.execute(delete(table).where(table.c.day < before))


def _seen(table: Table, viewer: Viewer) -> ColumnElement[bool]:
    if viewer.all:
        return true()
    return or_(table.c.user_name == viewer.name, table.c.team.in_(sorted(viewer.teams)))


def _hours(
    connection: Connection, chosen: ColumnElement[bool], think: Callable[[JobTimeline], Mapping[date, GpuTime]]
) -> Iterator[tuple[date, HoursOwner, GpuTime]]:
    """Returns the sums of these jobs, at most a thousand jobs per statement."""
    query = select(*_TOLD, _again()).where(chosen & (jobs.c.gpus_milli > 0))
    for rows in connection.execute(query, execution_options={"yield_per": _TOGETHER}).partitions():
        steps = _steps(connection, [row.job for row in rows])
        for row in rows:
            for day, amount in think(_life(row, steps.get(row.job, ()))).items():
                yield day, _owner(row), amount
    yield from _used(connection, chosen)


def _used(connection: Connection, chosen: ColumnElement[bool]) -> Iterator[tuple[date, HoursOwner, GpuTime]]:
    """Returns the time that their GPUs computed, summed up for each owner and day."""
    by = (gpu_use.c.day, jobs.c.team, jobs.c.user_name, jobs.c.gpu_type)
    sums = (func.sum(gpu_use.c.measured).label("measured"), func.sum(gpu_use.c.used).label("used"))
    query = select(*by, *sums).join_from(gpu_use, jobs).where(chosen & (jobs.c.gpus_milli > 0)).group_by(*by)
    for row in connection.execute(query):
        yield row.day, _owner(row), GpuTime(measured=int(row.measured), used=int(row.used))


def _steps(connection: Connection, ids: Sequence[str]) -> dict[str, list[tuple[Step, int | None]]]:
    """Returns the steps of each job, with its milli-GPUs then."""
    of_event = (job_events.c.job, job_events.c.at, job_events.c.state, job_events.c.gpus_milli)
    steps: dict[str, list[tuple[Step, int | None]]] = {}
    for row in connection.execute(select(*of_event).where(job_events.c.job.in_(ids)).order_by(job_events.c.id)):
        steps.setdefault(row.job, []).append(((row.at, JobState(row.state)), row.gpus_milli))
    return steps


def _again() -> Any:
    """Returns the time of the next start of a server after its job was stopped as idle."""
    later = jobs.alias("later")
    same = (later.c.user_name == jobs.c.user_name) & (later.c.server_name == jobs.c.server_name)
    return (
        select(func.min(later.c.submitted))
        .where(same & (later.c.submitted >= jobs.c.ended))
        .scalar_subquery()
        .label("again")
    )


def _owner(row: Any) -> HoursOwner:
    return HoursOwner(row.team, row.user_name, row.gpu_type or "")


def _life(row: Any, steps: Sequence[tuple[Step, int | None]]) -> JobTimeline:
    known = tuple(step for step, _ in steps)
    sizes = tuple(row.gpus_milli if size is None else size for _, size in steps)
    return JobTimeline(row.gpus_milli, known, row.folded_until, row.stop_reason == IDLE, row.again, sizes)


def _add(connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add these amounts to the rows with these keys, or make them."""
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    more = {one.name: one + statement.excluded[one.name] for one in table.columns if one.name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=more), list(rows))


def _at_one_moment(connection: Connection) -> None:
    """Two statements see the same; on SQLite they do already. A job folded in between would be counted twice."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
