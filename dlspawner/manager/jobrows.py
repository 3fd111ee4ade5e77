"""The rows of jobs and of their events: how a record is written down and read, and pages of jobs for people.

A page is found by its place, a submit time and an id (*keyset*), and not by counting: jobs that are submitted while
somebody turns pages push none of the others onto the next one. A job that asks for more than before has a new submit
time and is in front again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, literal, select, tuple_

from dlspawner.core.jobs import Job, State
from dlspawner.manager import approvalrows
from dlspawner.manager.access import Viewer
from dlspawner.manager.approvals import Request
from dlspawner.manager.kept import Event, Filter, Kept, Place
from dlspawner.manager.records import (
    OF_POD,
    Entry,
    Record,
    Stop,
    read_charge,
    read_pods,
    read_special,
    write_charge,
    write_pods,
    write_special,
)
from dlspawner.manager.schema import UtcDateTime, job_events, jobs

_MOST = 2**63 - 1
MOST_EVENTS = 1000  # of one job that are told


_COLUMNS = [
    *(jobs.c.job, jobs.c.user_name, jobs.c.server_name, jobs.c.team, jobs.c.template, jobs.c.priority),
    *(jobs.c.preemptible, jobs.c.requeue, jobs.c.state, jobs.c.reason, jobs.c.gpu_type, jobs.c.gpus_milli),
    *(jobs.c.cpu_milli, jobs.c.memory_bytes, jobs.c.nodes, jobs.c.submitted, jobs.c.started, jobs.c.ended),
    *(jobs.c.notice, jobs.c.stop_reason, jobs.c.stop_sentence),
]


def page(connection: Connection, viewer: Viewer, wanted: Filter, after: Place | None, limit: int) -> list[Kept]:
    """At most so many of the jobs that somebody may see and wants, the newest first, from a place on."""
    query = select(*_COLUMNS).where(*_seen_by(viewer), *_conditions(wanted)).limit(limit)
    if after is not None:
        there = tuple_(literal(after.submitted, UtcDateTime), literal(after.job))
        query = query.where(tuple_(jobs.c.submitted, jobs.c.job) < there)
    return _kept(connection, query.order_by(jobs.c.submitted.desc(), jobs.c.job.desc()))


def find(connection: Connection, job: str) -> Kept | None:
    """One job, with the names of its pods; pods that are no job's are none."""
    query = select(*_COLUMNS, jobs.c.pods).where(jobs.c.job == job, ~jobs.c.job.startswith(OF_POD))
    return next(iter(_kept(connection, query)), None)


def some(connection: Connection, ids: Collection[str]) -> list[Kept]:
    """These jobs, in no order."""
    return _kept(connection, select(*_COLUMNS).where(jobs.c.job.in_(sorted(ids)))) if ids else []


def events(connection: Connection, job: str) -> list[Event]:
    """What became of a job, in its order; of a very long life the latest part."""
    query = select(job_events).where(job_events.c.job == job).order_by(job_events.c.id.desc()).limit(MOST_EVENTS)
    found = [Event(row.at, State(row.state), row.reason, row.detail) for row in connection.execute(query)]
    return found[::-1]


def _seen_by(viewer: Viewer) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [~jobs.c.job.startswith(OF_POD)]
    if not viewer.all:
        own = jobs.c.user_name == viewer.name
        found.append(own | jobs.c.team.in_(sorted(viewer.teams)) if viewer.teams else own)
    return found


def _conditions(wanted: Filter) -> list[ColumnElement[bool]]:
    columns = {
        "user": jobs.c.user_name,
        "server": jobs.c.server_name,
        "team": jobs.c.team,
        "template": jobs.c.template,
        "preemptible": jobs.c.preemptible,
    }
    given = [(column, getattr(wanted, name)) for name, column in columns.items()]
    found = [column == value for column, value in given if value is not None]
    if wanted.gpu_type is not None:
        found.append(jobs.c.gpu_type == (wanted.gpu_type or None))
    if wanted.states:
        found.append(jobs.c.state.in_(sorted(state.value for state in wanted.states)))
    if wanted.since is not None:
        found.append(jobs.c.submitted >= wanted.since)
    if wanted.until is not None:
        found.append(jobs.c.submitted < wanted.until)
    return found


def _kept(connection: Connection, query: Select[Any]) -> list[Kept]:
    result = connection.execute(query)
    has_pods, rows = "pods" in result.keys(), result.all()  # noqa: SIM118 - a result is no dictionary
    stopped = _stopped(connection, [row.job for row in rows if row.stop_reason])
    approvals = approvalrows.latest(connection, [row.job for row in rows])
    found = ((row, stopped.get((row.job, row.stop_reason)), approvals.get(row.job)) for row in rows)
    return [_of_row(row, _pods(row) if has_pods else (), at, approval) for row, at, approval in found]


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
        .where(one.c.job.in_(ids), one.c.state == State.STOPPING.value)
        .group_by(one.c.job, one.c.reason)
    )
    return {(row.job, row.reason): row.at for row in connection.execute(query)}


def _of_row(row: Row[Any], pods: tuple[str, ...], stopped: datetime | None, approval: Request | None) -> Kept:
    return Kept(
        id=row.job,
        user=row.user_name,
        server=row.server_name,
        team=row.team,
        template=row.template,
        priority=row.priority,
        preemptible=row.preemptible,
        requeue=row.requeue,
        state=State(row.state),
        reason=row.reason,
        gpu_type=row.gpu_type,
        gpus_milli=row.gpus_milli,
        cpu_milli=row.cpu_milli,
        memory_bytes=row.memory_bytes,
        nodes=_nodes(row.nodes),
        submitted=row.submitted,
        started=row.started,
        ended=row.ended,
        notice=row.notice,
        stop=Stop(row.stop_reason, row.stop_sentence or "") if row.stop_reason else None,
        stopped=stopped,
        pods=pods,
        approval=approval,
    )


def row(entry: Entry) -> dict[str, Any]:
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
        "reason": entry.reason,
        "gpu_type": job.charge.gpu_type,
        "gpus_milli": job.charge.gpus,
        "cpu_milli": min(_MOST, sum(pod.cpu_milli for pod in job.charge.pods)),
        "memory_bytes": min(_MOST, sum(pod.memory_bytes for pod in job.charge.pods)),
        "charge": write_charge(job.charge),
        "nodes": json.dumps(job.nodes),
        "submitted": job.submitted,
        "deadline": record.deadline,
        "request_seconds": record.request_seconds,
        "started": job.started,
        "ended": entry.at if job.state is State.ENDED else None,
        "pod_uid": record.pod_uid,
        "pod_name": record.pod_name,
        "notice": job.notice,
        "yields": record.yields,
        "requeue": job.requeue,
        "before_quota": job.before_quota,
        "approved": job.approved,
        "special": write_special(job.special),
        "stop_reason": record.stop.reason if record.stop else None,
        "stop_sentence": record.stop.sentence if record.stop else None,
        "pods": write_pods(record.pods),
        "due": record.due,
        "turns": record.turns,
        "folded": False,
    }


def record(row: Row[Any]) -> Record:
    """The record that ``row`` wrote."""
    job = Job(
        id=row.job,
        user=row.user_name,
        team=row.team,
        submitted=row.submitted,
        charge=read_charge(row.charge),
        server=row.server_name,
        template=row.template,
        priority=row.priority,
        preemptible=row.preemptible,
        state=State(row.state),
        started=row.started,
        nodes=tuple(json.loads(row.nodes)),
        notice=row.notice,
        requeue=row.requeue,
        approved=row.approved,
        special=read_special(row.special),
        before_quota=row.before_quota,
    )
    stop = Stop(row.stop_reason, row.stop_sentence or "") if row.stop_reason else None
    found = Record(job, row.deadline, row.request_seconds, read_pods(row.pods), stop, row.yields)
    return replace(found, due=row.due, turns=row.turns)
