"""The rows of `activities` and `idle_periods`: the known use of jobs (`model.activity`), and the times without use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from dlspawner.core.job import JobState
from dlspawner.manager.db.tables import activities, idle_periods, jobs
from dlspawner.manager.model.activity import ActivityRecord, read_facts, write_facts

_ROWS = 500  # in one statement
IdlePeriod = tuple[datetime, datetime | None]  # since, until; None: it lasts, or the job has ended so


def read_activities(connection: Connection) -> dict[str, ActivityRecord]:
    """Returns the activity of every job that has not ended."""
    live = select(jobs.c.job).where(jobs.c.state != JobState.ENDED.value)
    query = select(activities).where(activities.c.job.in_(live))
    return {row.job: read_facts(row.facts) for row in connection.execute(query)}


def write_activities(connection: Connection, facts: Mapping[str, ActivityRecord]) -> None:
    """Stores the activity of these jobs, and forgets jobs that have ended; unknown jobs are skipped."""
    names = sorted(facts)
    for some in (names[at : at + _ROWS] for at in range(0, len(names), _ROWS)):
        known = set(connection.scalars(select(jobs.c.job).where(jobs.c.job.in_(some))))
        if known:
            connection.execute(delete(activities).where(activities.c.job.in_(known)))
            connection.execute(insert(activities), [{"job": job, "facts": write_facts(facts[job])} for job in known])
    live = select(jobs.c.job).where(jobs.c.state != JobState.ENDED.value)
    connection.execute(delete(activities).where(activities.c.job.not_in(live)))


def read_open_idle_periods(connection: Connection) -> dict[str, datetime]:
    """Returns since when each job that has not ended is idle."""
    live = select(jobs.c.job).where(jobs.c.state != JobState.ENDED.value)
    query = select(idle_periods).where(idle_periods.c.until.is_(None), idle_periods.c.job.in_(live))
    return {row.job: row.since for row in connection.execute(query.order_by(idle_periods.c.since))}


def read_idle_periods(connection: Connection, submitted: datetime) -> dict[str, list[IdlePeriod]]:
    """Returns the periods of jobs that were submitted since then, in their order."""
    found: dict[str, list[IdlePeriod]] = {}
    query = select(idle_periods).join(jobs).where(jobs.c.submitted >= submitted)
    for row in connection.execute(query.order_by(idle_periods.c.since)):
        found.setdefault(row.job, []).append((row.since, row.until))
    return found


def write_idle_periods(
    connection: Connection, ended: Mapping[str, tuple[datetime, datetime]], begun: Mapping[str, datetime]
) -> None:
    """Ends periods (job: since, until), and begins others (job: since); unknown jobs are skipped."""
    for job, (since, until) in ended.items():
        here = (idle_periods.c.job == job) & (idle_periods.c.since == since)
        connection.execute(update(idle_periods).where(here).values(until=until))
    known = set(connection.scalars(select(jobs.c.job).where(jobs.c.job.in_(begun))))
    for job in known:  # a policy that counts less as use may know the same period again
        connection.execute(delete(idle_periods).where(idle_periods.c.job == job, idle_periods.c.since == begun[job]))
    if known:
        connection.execute(insert(idle_periods), [{"job": job, "since": begun[job]} for job in known])
