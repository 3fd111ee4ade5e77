"""The rows of jobs and of their events: records are written and read, and pages of jobs for users.

A page is found by its place, a submit time and an id (*keyset*), and not by counting: jobs that are submitted while
a user reads the pages push no other job onto the next page. A job that asks for more than before has a new submit
time and is in front again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, Row, Select, bindparam, func, select, tuple_

from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.estimates import RunTime
from dlspawner.manager.db import approvals as db_approvals
from dlspawner.manager.db.tables import UtcDateTime, job_events, jobs
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.approval_request import ApprovalRequest
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import JobCursor, JobFilter, JobHistory, JobTransition
from dlspawner.manager.model.records import (
    EXTERNAL_POD_PREFIX,
    JobEvent,
    JobRecord,
    StopReason,
    read_pods,
    read_ports,
    read_request,
    read_special,
    write_pods,
    write_request,
    write_special,
)

_MOST = 2**63 - 1
_STARTS = 20  # that tell how long a start takes
MOST_EVENTS = 1000  # of one job that are told
_STATES = {state.value: state for state in JobState}
_REASONS = {reason.value: reason for reason in EventReason}

_COLUMNS = [
    *(jobs.c.job, jobs.c.user_name, jobs.c.server_name, jobs.c.team, jobs.c.template, jobs.c.priority),
    *(jobs.c.preemptible, jobs.c.requeue, jobs.c.state, jobs.c.reason, jobs.c.gpu_type, jobs.c.gpus_milli),
    *(jobs.c.cpu_milli, jobs.c.memory_bytes, jobs.c.nodes, jobs.c.submitted, jobs.c.started, jobs.c.ended),
    *(jobs.c.notice, jobs.c.stop_reason, jobs.c.stop_sentence),
    # Few jobs ever ask for an approval: only those are looked for there.
    db_approvals.has_asked(jobs.c.job).label("has_asked"),
]
_JOBS_OWN = ~jobs.c.job.startswith(EXTERNAL_POD_PREFIX)  # pods that are no job's are none
# What a page can be asked for, by the name of its parameter.
_CONDITIONS: Mapping[str, ColumnElement[bool]] = {
    "own": jobs.c.user_name == bindparam("own"),
    "own or teams": (jobs.c.user_name == bindparam("own")) | jobs.c.team.in_(bindparam("teams", expanding=True)),
    "user": jobs.c.user_name == bindparam("user"),
    "server": jobs.c.server_name == bindparam("server"),
    "team": jobs.c.team == bindparam("team"),
    "template": jobs.c.template == bindparam("template"),
    "preemptible": jobs.c.preemptible == bindparam("preemptible"),
    "gpu_type": jobs.c.gpu_type == bindparam("gpu_type"),
    "no gpus": jobs.c.gpu_type.is_(None),
    "states": jobs.c.state.in_(bindparam("states", expanding=True)),
    "since": jobs.c.submitted >= bindparam("since"),
    "until": jobs.c.submitted < bindparam("until"),
    "after": tuple_(jobs.c.submitted, jobs.c.job)
    < tuple_(bindparam("submitted", type_=UtcDateTime), bindparam("after")),
}
_ONE = select(*_COLUMNS, jobs.c.pods, jobs.c.request).where(jobs.c.job == bindparam("id"), _JOBS_OWN)
_SOME = select(*_COLUMNS).where(jobs.c.job.in_(bindparam("ids", expanding=True)))


@lru_cache(maxsize=256)
def _page(conditions: frozenset[str]) -> Select[Any]:
    """The statement of a page, made once: to put it together costs as much as to run it."""
    where = [_CONDITIONS[name] for name in sorted(conditions)]
    query = select(*_COLUMNS).where(_JOBS_OWN, *where).order_by(jobs.c.submitted.desc(), jobs.c.job.desc())
    return query.limit(bindparam("limit", type_=Integer))


def read_page(
    connection: Connection, viewer: Viewer, wanted: JobFilter, after: JobCursor | None, limit: int
) -> list[JobHistory]:
    """Returns at most `limit` jobs that the viewer may see and the filter takes, newest first, from a cursor on."""
    conditions, values = _asked(viewer, wanted)
    if after is not None:
        conditions.add("after")
        values |= {"submitted": after.submitted, "after": after.job}
    return _kept(connection, _page(frozenset(conditions)), {**values, "limit": limit})


def find_job(connection: Connection, job: str) -> JobHistory | None:
    """One job, with its extended resources and the names of its pods; pods that are no job's are none."""
    return next(iter(_kept(connection, _ONE, {"id": job}, whole=True)), None)


def read_jobs(connection: Connection, ids: Collection[str]) -> list[JobHistory]:
    """These jobs, in no order."""
    return _kept(connection, _SOME, {"ids": sorted(ids)}) if ids else []


def read_events(connection: Connection, job: str, most: int = MOST_EVENTS) -> list[JobTransition]:
    """Returns the events of a job in their order; of a very long life the latest ones."""
    query = select(job_events).where(job_events.c.job == job).order_by(job_events.c.id.desc()).limit(most)
    found = [JobTransition(row.at, JobState(row.state), row.reason, row.detail) for row in connection.execute(query)]
    return found[::-1]


def last_details(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """The details of the last event of each of these jobs."""
    last = select(func.max(job_events.c.id)).where(job_events.c.job.in_(ids)).group_by(job_events.c.job)
    query = select(job_events.c.job, job_events.c.detail).where(job_events.c.id.in_(last))
    return {row.job: row.detail for row in connection.execute(query)}


def _asked(viewer: Viewer, wanted: JobFilter) -> tuple[set[str], dict[str, Any]]:
    """Which conditions hold for what this viewer may see and wants, and their values."""
    values: dict[str, Any] = {
        name: getattr(wanted, name)
        for name in ("user", "server", "team", "template", "preemptible", "gpu_type", "since", "until")
        if getattr(wanted, name) is not None
    }
    if wanted.states:
        values["states"] = sorted(state.value for state in wanted.states)
    conditions = set(values)
    if wanted.gpu_type == "":
        del values["gpu_type"]
        conditions ^= {"gpu_type", "no gpus"}
    if not viewer.all:
        conditions.add("own or teams" if viewer.teams else "own")
        values |= {"own": viewer.name, **({"teams": sorted(viewer.teams)} if viewer.teams else {})}
    return conditions, values


def _kept(
    connection: Connection, query: Select[Any], values: Mapping[str, Any], *, whole: bool = False
) -> list[JobHistory]:
    rows = connection.execute(query, values).all()
    stopped = _stopped(connection, [row.job for row in rows if row.stop_reason])
    approvals = db_approvals.latest_requests(connection, [row.job for row in rows if row.has_asked])
    found = [_of_row(row, stopped.get((row.job, row.stop_reason)), approvals.get(row.job)) for row in rows]
    if not whole:
        return found
    return [
        replace(kept, pods=_pods(row), extended=read_request(row.request).extended)
        for kept, row in zip(found, rows, strict=True)
    ]


def _pods(row: Row[Any]) -> tuple[str, ...]:
    return tuple(pod.name for pod in read_pods(row.pods) if pod)


@lru_cache(maxsize=4096)
def _nodes(text: str) -> tuple[str, ...]:
    """Most jobs are on no node or on one of few."""
    return tuple(json.loads(text))


def _stopped(connection: Connection, ids: Collection[str]) -> Mapping[tuple[str, str], datetime]:
    """When these jobs were last stopped for each reason."""
    if not ids:
        return {}
    one = job_events
    query = (
        select(one.c.job, one.c.reason, func.max(one.c.at, type_=UtcDateTime).label("at"))
        .where(one.c.job.in_(ids), one.c.state == JobState.STOPPING.value)
        .group_by(one.c.job, one.c.reason)
    )
    return {(row.job, row.reason): row.at for row in connection.execute(query)}


def _of_row(row: Row[Any], stopped: datetime | None, approval: ApprovalRequest | None) -> JobHistory:
    """The first columns are in the order of `JobHistory`: by position they are read twice as fast as by name."""
    values: tuple[Any, ...] = tuple(row)
    state, reason, *amounts, nodes = values[8:15]
    *times, stop_reason, stop_sentence = values[15:21]
    stop = StopReason(_REASONS[stop_reason], stop_sentence or "") if stop_reason else None
    known: list[Any] = [*values[:8], _STATES[state], reason, *amounts, _nodes(nodes), *times]
    known += stop, stopped, (), approval
    return JobHistory(*known)


def to_row(entry: JobEvent) -> dict[str, Any]:
    """A record as the database has it from now on."""
    record, job = entry.record, entry.record.job
    return {
        "job": job.id,
        "user_name": job.user,
        "server_name": job.server,
        "team": job.team,
        "template": job.template,
        "priority": job.priority,
        "preemptible": job.preemptible,
        "state": job.state.value,
        "reason": entry.reason.value,
        "gpu_type": job.request.gpu_type,
        "gpus_milli": job.request.gpus,
        "cpu_milli": min(_MOST, sum(pod.cpu_milli for pod in job.request.pods)),
        "memory_bytes": min(_MOST, sum(pod.memory_bytes for pod in job.request.pods)),
        "request": write_request(job.request),
        "nodes": json.dumps(job.nodes),
        "submitted": job.submitted,
        "deadline": record.deadline,
        "request_seconds": record.request_seconds,
        "started": job.started,
        "ended": entry.at if job.state is JobState.ENDED else None,
        "pod_uid": record.pod_uid,
        "pod_name": record.pod_name,
        "notice": job.notice,
        "demote_at": record.demote_at,
        "requeue": job.requeue,
        "exempt_from_quota": job.exempt_from_quota,
        "approved": job.approved,
        "special": write_special(job.special),
        "stop_reason": record.stop.code.value if record.stop else None,
        "stop_sentence": record.stop.message if record.stop else None,
        "pods": write_pods(record.pods),
        "ports": json.dumps(job.ports),
        "awaiting_start": record.awaiting_start,
        "start_attempts": record.start_attempts,
        "failures": record.failures,
        "nonce": record.nonce,
        "options": record.options,
        "folded": False,
    }


def from_row(row: Row[Any]) -> JobRecord:
    job = Job(
        id=row.job,
        user=row.user_name,
        team=row.team,
        submitted=row.submitted,
        request=read_request(row.request),
        server=row.server_name,
        template=row.template,
        priority=row.priority,
        preemptible=row.preemptible,
        state=JobState(row.state),
        started=row.started,
        nodes=tuple(json.loads(row.nodes)),
        notice=row.notice,
        requeue=row.requeue,
        approved=row.approved,
        special=read_special(row.special),
        exempt_from_quota=row.exempt_from_quota,
        ports=read_ports(row.ports),
    )
    stop = StopReason(_REASONS[row.stop_reason], row.stop_sentence or "") if row.stop_reason else None
    found = JobRecord(job, row.deadline, row.request_seconds, read_pods(row.pods), stop, row.demote_at)
    return replace(
        found,
        awaiting_start=row.awaiting_start,
        start_attempts=row.start_attempts,
        failures=row.failures,
        nonce=row.nonce,
        options=row.options,
    )


def read_run_times(connection: Connection, since: datetime, most: int) -> list[RunTime]:
    """The newest ones that ended since then, the newest first; those that never ran are left out."""
    ran = (jobs.c.state == JobState.ENDED.value) & jobs.c.started.is_not(None) & (jobs.c.ended >= since)
    columns = (jobs.c.team, jobs.c.template, jobs.c.started, jobs.c.ended)
    found = connection.execute(select(*columns).where(ran).order_by(jobs.c.ended.desc()).limit(most))
    return [RunTime(row.team, row.template, max(0.0, (row.ended - row.started).total_seconds())) for row in found]


def read_start_seconds(connection: Connection, template: str) -> list[float]:
    """Returns how long the latest starts of a template took, from the admission until the pod ran."""
    admitted = select(func.max(job_events.c.at)).where(
        (job_events.c.job == jobs.c.job) & (job_events.c.state == JobState.STARTING.value)
    )
    columns = (jobs.c.started, admitted.scalar_subquery().label("admitted"))
    ran = (jobs.c.template == template) & jobs.c.started.is_not(None)
    found = connection.execute(select(*columns).where(ran).order_by(jobs.c.started.desc()).limit(_STARTS))
    return [max(0.0, (row.started - row.admitted).total_seconds()) for row in found if row.admitted is not None]


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
            StopReason(_REASONS[row.stop_reason], row.stop_sentence or "") if row.stop_reason else None,
            row.pod_uid is not None,
        )
        for row in connection.execute(query)
    }
