"""Requests for an approval in the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, delete, insert, or_, select

from dlspawner.core.scheduling.limits import ApprovalKind
from dlspawner.manager.db.tables import approvals
from dlspawner.manager.model.approval_request import ApprovalRequest, ApprovalState
from dlspawner.manager.model.job_history import JobCursor

_RENAMED = {"user": "user_name", "server": "server_name", "gpus": "gpus_milli", "by": "decided_by", "at": "decided"}
_COLUMNS = {field.name: _RENAMED.get(field.name, field.name) for field in fields(ApprovalRequest)}

# Of every page of jobs, made once: to put it together costs as much as to run it.
_OF_JOBS = (
    select(approvals)
    .where(approvals.c.job.in_(bindparam("jobs", expanding=True)))
    .order_by(approvals.c.requested, approvals.c.id)
)


@dataclass(frozen=True, slots=True)
class ApprovalQuery:
    """A page of the requests that match all fields, newest first.

    ``user`` and ``teams`` together limit the view: the user's own requests, and all requests of those teams; without
    either all requests. ``after`` is the last one of the page before.
    """

    user: str | None = None
    teams: Collection[str] | None = None
    standings: Collection[ApprovalState] = ()
    kinds: Collection[ApprovalKind] = ()
    team: str = ""
    of: str = ""  # the user
    job: str = ""
    id: str = ""
    after: JobCursor | None = None
    limit: int | None = 50


def has_asked(job: ColumnElement[str]) -> ColumnElement[bool]:
    """True if the job has ever made a request; a clause of another statement."""
    return select(approvals.c.id).where(approvals.c.job == job).exists()


def read_pending_requests(connection: Connection) -> list[ApprovalRequest]:
    query = select(approvals).where(approvals.c.standing == ApprovalState.WAITING.value)
    return [_read(row) for row in connection.execute(query)]


def find_requests(connection: Connection, wanted: ApprovalQuery) -> list[ApprovalRequest]:
    return [_read(row) for row in connection.execute(_query(wanted))]


def latest_requests(connection: Connection, jobs: Collection[str]) -> dict[str, ApprovalRequest]:
    """The latest request of each of these jobs that ever made one."""
    if not jobs:
        return {}
    return {row.job: _read(row) for row in connection.execute(_OF_JOBS, {"jobs": [*jobs]})}


def write_requests(connection: Connection, requests: Sequence[ApprovalRequest]) -> None:
    """Stores these requests in the caller's transaction."""
    latest = {one.id: one for one in requests}
    if latest:
        connection.execute(delete(approvals).where(approvals.c.id.in_(latest)))
        connection.execute(insert(approvals), [_row(one) for one in latest.values()])


def _query(wanted: ApprovalQuery) -> Select[Any]:
    columns, query = approvals.c, select(approvals)
    if wanted.user is not None or wanted.teams is not None:
        query = query.where(or_(columns.user_name == wanted.user, columns.team.in_(wanted.teams or ())))
    if wanted.standings:
        query = query.where(columns.standing.in_([one.value for one in wanted.standings]))
    if wanted.kinds:
        query = query.where(columns.kind.in_([one.value for one in wanted.kinds]))
    exact = {columns.id: wanted.id, columns.job: wanted.job, columns.team: wanted.team, columns.user_name: wanted.of}
    for column, value in exact.items():
        if value:
            query = query.where(column == value)
    if wanted.after is not None:
        at = wanted.after.submitted
        query = query.where(or_(columns.requested < at, and_(columns.requested == at, columns.id < wanted.after.job)))
    return query.order_by(columns.requested.desc(), columns.id.desc()).limit(wanted.limit)


def _row(request: ApprovalRequest) -> dict[str, Any]:
    row = {column: getattr(request, name) for name, column in _COLUMNS.items()}
    return {**row, "kind": request.kind.value, "standing": request.standing.value}


def _read(row: Row[Any]) -> ApprovalRequest:
    values = {name: getattr(row, column) for name, column in _COLUMNS.items()}
    return ApprovalRequest(**{**values, "kind": ApprovalKind(row.kind), "standing": ApprovalState(row.standing)})
