"""How the last job of each of a person's servers ended, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from dlspawner.core.jobs import JobState
from dlspawner.manager.records import StopReason
from dlspawner.manager.schema import job_events, jobs


@dataclass(frozen=True, slots=True)
class LastEnd:
    """The end of a job: when, its last event's reason, the decision where there was one, whether a pod was made."""

    job: str
    at: datetime
    reason: str
    detail: str
    stop: StopReason | None
    has_run: bool = False


def read_last_ends(connection: Connection, user: str) -> dict[str, LastEnd]:
    """By server; servers that never had a job that ended are left out.

    However long their history is: from one server's name to the next, and to the newest job of each, leads an index.
    """
    names = select(func.min(jobs.c.server_name).label("name")).where(jobs.c.user_name == user)
    servers = names.cte("servers", recursive=True)
    later, other = jobs.alias("later"), jobs.alias("other")
    following = select(func.min(later.c.server_name)).where(
        later.c.user_name == user, later.c.server_name > servers.c.name
    )
    servers = servers.union_all(select(following.scalar_subquery()).where(servers.c.name.is_not(None)))
    newest = (
        select(other.c.job)
        .where(other.c.user_name == user, other.c.server_name == servers.c.name, other.c.state == JobState.ENDED.value)
        .order_by(other.c.submitted.desc())
        .limit(1)
        .correlate(servers)
        .scalar_subquery()
    )
    event = select(func.max(job_events.c.id)).where(job_events.c.job == jobs.c.job).correlate(jobs).scalar_subquery()
    query = (
        select(jobs, job_events.c.detail)
        .join_from(servers, jobs, jobs.c.job == newest)
        .join(job_events, job_events.c.id == event)
    )
    return {
        row.server_name: LastEnd(
            row.job,
            row.ended,
            row.reason,
            row.detail,
            StopReason(row.stop_reason, row.stop_sentence or "") if row.stop_reason else None,
            row.pod_uid is not None,
        )
        for row in connection.execute(query)
    }
