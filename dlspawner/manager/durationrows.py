"""How long jobs ran that have ended lately, as rows."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select

from dlspawner.core.durations import RunTime
from dlspawner.core.jobs import JobState
from dlspawner.manager.schema import jobs


def read_run_times(connection: Connection, since: datetime, most: int) -> list[RunTime]:
    """The newest ones that ended since then, the newest first; those that never ran are left out."""
    ran = (jobs.c.state == JobState.ENDED.value) & jobs.c.started.is_not(None) & (jobs.c.ended >= since)
    columns = (jobs.c.team, jobs.c.template, jobs.c.started, jobs.c.ended)
    found = connection.execute(select(*columns).where(ran).order_by(jobs.c.ended.desc()).limit(most))
    return [RunTime(row.team, row.template, max(0.0, (row.ended - row.started).total_seconds())) for row in found]
