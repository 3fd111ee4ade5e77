"""The Manager's history as a trace for ``dlspawner simulate``: reads the database, and changes nothing in it.

A job that was idle for some minutes is a session that is used at all other times, on all its GPUs; any other job
computes all the time. A job that was stopped early, idle or preempted, is as long as its last run was, so that longer
idle windows than those of then bring no more than those; one that still runs is as long as it has run. A part of a GPU
counts as one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil

from sqlalchemy import Connection, desc, select
from sqlalchemy.exc import DBAPIError

from dlspawner.core.units import GPU
from dlspawner.manager.db.activity import IdlePeriod, read_idle_periods
from dlspawner.manager.db.engine import DatabaseUnusable, open_to_read
from dlspawner.manager.db.tables import jobs
from dlspawner.simulate.trace import InvalidTrace, Loader, Span, Trace, TraceJob

SOURCE = "the Manager's history"
_COLUMNS = (
    "job",
    "user_name",
    "team",
    "gpu_type",
    "request",
    "priority",
    "preemptible",
    "submitted",
    "started",
    "ended",
)


def read(url: str, most: int | None = None) -> Trace:
    """Returns the jobs with GPUs that ran, at most so many, the latest; one reading transaction; InvalidTrace."""
    try:
        engine = open_to_read(url)
    except DatabaseUnusable as problem:
        raise InvalidTrace(str(problem).replace("Manager.db_url", "--history")) from None
    try:
        with engine.connect() as connection:
            trace = _read(connection, datetime.now(UTC), most)
    except DBAPIError as problem:
        said = " ".join(str(problem.orig).split())
        raise InvalidTrace(
            f"The history cannot be read: this is no database of the Manager, or it does not answer: {said}"
        ) from None
    finally:
        engine.dispose()
    if not trace.jobs:
        raise InvalidTrace("No job with GPUs has ever run.")
    return trace


def _read(connection: Connection, now: datetime, most: int | None) -> Trace:
    loader = Loader()
    ran = jobs.c.started.is_not(None) & (jobs.c.gpus_milli > 0)
    query = select(*(jobs.c[name] for name in _COLUMNS)).where(ran).order_by(desc(jobs.c.submitted)).limit(most)
    rows = connection.execute(query).all()
    idle = read_idle_periods(connection, min((row.submitted for row in rows), default=now))
    for row in rows:
        pods, end = tuple(ceil(pod["gpus"] / GPU) for pod in json.loads(row.request)["pods"]), row.ended or now
        loader.jobs.append(
            TraceJob(
                name=row.job,
                submit=row.submitted.timestamp(),
                seconds=max(0.0, (end - row.started).total_seconds()),
                gpus=sum(pods),
                team=row.team,
                user=row.user_name,
                gpu_type=row.gpu_type or "",
                preemptible=row.preemptible,
                priority=str(row.priority),
                pods=pods,
                activity=_activity(row.started, end, sum(pods), idle.get(row.job, ())),
            )
        )
    return loader.trace(SOURCE, lambda first: datetime.fromtimestamp(first, UTC))


def _activity(started: datetime, end: datetime, gpus: int, idle: Sequence[IdlePeriod]) -> tuple[Span, ...] | None:
    """Spans between the idle periods of the last run; ``None`` where there is no such period."""
    last = [(since, min(until or end, end)) for since, until in idle if started <= since < end]
    if not last:
        return None
    begins, ends = (started, *(until for _, until in last)), (*(since for since, _ in last), end)
    return tuple(
        ((begin - started).total_seconds(), (stop - started).total_seconds(), gpus)
        for begin, stop in zip(begins, ends, strict=True)
        if begin < stop
    )
