"""The rows of `activities`: what `activity` remembers of jobs, in the database. Used by `ledger` alone."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert, select

from dlspawner.core.job import JobState
from dlspawner.manager.db.tables import activities, jobs
from dlspawner.manager.model.activity import ActivityRecord, read_facts, write_facts


def read_activities(connection: Connection) -> dict[str, ActivityRecord]:
    """Returns the activity of every job that has not ended."""
    live = select(jobs.c.job).where(jobs.c.state != JobState.ENDED.value)
    query = select(activities).where(activities.c.job.in_(live))
    return {row.job: read_facts(row.facts) for row in connection.execute(query)}


def write_activities(connection: Connection, facts: Mapping[str, ActivityRecord]) -> None:
    """Stores the activity of these jobs; unknown jobs are skipped."""
    known = set(connection.scalars(select(jobs.c.job).where(jobs.c.job.in_(facts))))
    if known:
        connection.execute(delete(activities).where(activities.c.job.in_(known)))
        connection.execute(insert(activities), [{"job": job, "facts": write_facts(facts[job])} for job in known])


def sweep_activities(connection: Connection) -> None:
    """Forget jobs that have ended."""
    live = select(jobs.c.job).where(jobs.c.state != JobState.ENDED.value)
    connection.execute(delete(activities).where(activities.c.job.not_in(live)))
