"""The events of jobs' pods in the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, exists, func, insert, select, update

from dlspawner.manager.db.tables import job_events, jobs, pod_events
from dlspawner.manager.model.job_history import PodEventMessage
from dlspawner.manager.model.records import WAITING

MOST = 200  # of one job
# The job has waited since: that happened to a pod of an earlier start.
_WAITED_SINCE = exists().where(
    job_events.c.job == pod_events.c.job,
    job_events.c.state.in_([state.value for state in WAITING]),
    job_events.c.at > pod_events.c.at,
)


def read_pod_events(connection: Connection, job: str) -> list[PodEventMessage]:
    """Returns the events of a job's pods in their order."""
    query = select(pod_events).where(pod_events.c.job == job).order_by(pod_events.c.at, pod_events.c.id)
    return [
        PodEventMessage(row.key, row.at, row.reason, row.sentence, row._mapping["count"])
        for row in connection.execute(query)
    ]


def read_latest_pod_events(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """The latest sentence about the pods of each of these jobs since it last waited."""
    place = func.row_number().over(
        partition_by=pod_events.c.job, order_by=(pod_events.c.at.desc(), pod_events.c.id.desc())
    )
    found = select(pod_events.c.job, pod_events.c.sentence, place.label("place"))
    found = found.where(pod_events.c.job.in_(ids), ~_WAITED_SINCE)
    told = found.subquery()
    query = select(told.c.job, told.c.sentence).where(told.c.place == 1)
    return {row.job: row.sentence for row in connection.execute(query)}


def write_pod_events(connection: Connection, told: Sequence[tuple[str, PodEventMessage]]) -> None:
    """Stores pod events, once each; events of unknown jobs, and too many events of one job, are skipped."""
    known = set(connection.scalars(select(jobs.c.job).where(jobs.c.job.in_({job for job, _ in told}))))
    for job, one in told:
        if job in known:
            _put(connection, job, one)


def _put(connection: Connection, job: str, one: PodEventMessage) -> None:
    same = (pod_events.c.job == job) & (pod_events.c.key == one.key)
    values = {"reason": one.reason, "sentence": one.sentence, "count": one.count}
    # Every new watch reports the end of a container again: the first time is the right one.
    later = {"at": one.at} if one.count > 1 else {}
    if connection.execute(update(pod_events).where(same).values(**values, **later)).rowcount:
        return
    if (connection.scalar(select(func.count()).where(pod_events.c.job == job)) or 0) < MOST:
        connection.execute(insert(pod_events).values(job=job, key=one.key, at=one.at, **values))
