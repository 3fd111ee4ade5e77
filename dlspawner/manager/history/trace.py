"""The Manager's history as a trace for ``dlspawner simulate``: reads the database, and changes nothing in it.

The database keeps when a job asked, started and ended, and no spans of use: a job that ran is replayed as one that
computes all the time, so idle windows cannot be judged by history. A job that was stopped early, idle or preempted, is
as long as its last run was; one that still runs is as long as it has run.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from dlspawner.core.units import GPU
from dlspawner.manager.db.engine import DatabaseUnusable, open_to_read
from dlspawner.manager.db.tables import jobs
from dlspawner.simulate.trace import InvalidTrace, Loader, Trace, TraceJob

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


def read(url: str) -> Trace:
    """Returns the jobs with GPUs that ever ran, in one reading transaction; InvalidTrace with a sentence."""
    try:
        engine = open_to_read(url)
    except DatabaseUnusable as problem:
        raise InvalidTrace(str(problem).replace("Manager.db_url", "--history")) from None
    try:
        with engine.connect() as connection:
            trace = _read(connection, datetime.now(UTC))
    except DBAPIError as problem:
        raise InvalidTrace(
            f"--history: this is no database of the Manager, or it does not answer: {problem.orig}."
        ) from None
    finally:
        engine.dispose()
    if not trace.jobs:
        raise InvalidTrace("--history: no job with GPUs has ever run.")
    return trace


def _read(connection: Connection, now: datetime) -> Trace:
    loader = Loader()
    ran = jobs.c.started.is_not(None) & (jobs.c.gpus_milli > 0)
    for row in connection.execute(select(*(jobs.c[name] for name in _COLUMNS)).where(ran)):
        pods = tuple(pod["gpus"] // GPU for pod in json.loads(row.request)["pods"])
        loader.jobs.append(
            TraceJob(
                name=row.job,
                submit=row.submitted.timestamp(),
                seconds=max(0.0, ((row.ended or now) - row.started).total_seconds()),
                gpus=sum(pods),
                team=row.team,
                user=row.user_name,
                gpu_type=row.gpu_type or "",
                preemptible=row.preemptible,
                priority=str(row.priority),
                pods=pods,
            )
        )
    return loader.trace(SOURCE, lambda first: datetime.fromtimestamp(first, UTC))
