"""How the last job of each of a person's servers ended, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from dlspawner.core.jobs import State
from dlspawner.manager.records import Stop
from dlspawner.manager.schema import job_events, jobs


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job: when, its last event's reason, the decision where there was one, whether a pod was made."""

    job: str
    at: datetime
    reason: str
    detail: str
    stop: Stop | None
    has_run: bool = False


def read(connection: Connection, user: str) -> dict[str, Ended]:
    """By server; servers that never had a job that ended are left out."""
    mine = (jobs.c.user_name == user) & (jobs.c.state == State.ENDED.value)
    newest = select(jobs.c.server_name, func.max(jobs.c.ended).label("at")).where(mine).group_by(jobs.c.server_name)
    last = newest.subquery()
    event = select(func.max(job_events.c.id)).where(job_events.c.job == jobs.c.job).correlate(jobs).scalar_subquery()
    query = (
        select(jobs, job_events.c.detail)
        .join(last, (jobs.c.server_name == last.c.server_name) & (jobs.c.ended == last.c.at))
        .join(job_events, job_events.c.id == event)
        .where(mine)
    )
    return {
        row.server_name: Ended(
            row.job,
            row.ended,
            row.reason,
            row.detail,
            Stop(row.stop_reason, row.stop_sentence or "") if row.stop_reason else None,
            row.pod_uid is not None,
        )
        for row in connection.execute(query)
    }
