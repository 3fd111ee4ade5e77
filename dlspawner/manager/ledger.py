"""Jobs, their events and the lease in the database.

Several Managers may run on one database; one of them acts. It holds the lease, which expires unless it is renewed, and
whoever takes it over counts its epoch up. Every write of jobs looks at the epoch in its own transaction, so one that
was stopped for a while and does not know that it has been replaced changes nothing (`Fenced`). The clock of the lease
is the database's where it has one of its own, because two machines' clocks differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from dlspawner.core.jobs import Job, State
from dlspawner.manager import noticerows
from dlspawner.manager.notices import Change, Notice
from dlspawner.manager.records import Entry, Record, Stop, read_charge, write_charge
from dlspawner.manager.schema import job_events, jobs, leases
from dlspawner.manager.store import Store

_LEASE = leases.c.name == "manager"
_MOST = 2**63 - 1


class Fenced(Exception):
    """Another Manager acts by now; nothing was written."""


class Ledger:
    """The jobs of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def lease(self, holder: str, seconds: float) -> int | None:
        """Take or renew the lease: its epoch, or None while somebody else has it."""
        return await self._store.write(lambda connection: _lease(connection, holder, seconds))

    async def give_up(self, holder: str) -> None:
        """Let the next one take over at once."""
        mine = _LEASE & (leases.c.holder == holder)

        def expire(connection: Connection) -> None:
            connection.execute(update(leases).where(mine).values(expires=_now(connection)))

        await self._store.write(expire)

    async def load(self) -> list[Record]:
        """Every job that has not ended."""
        query = select(jobs).where(jobs.c.state != State.ENDED.value)
        return await self._store.read(lambda connection: [_record(row) for row in connection.execute(query)])

    async def find(self, job: str) -> Record | None:
        """A job, ended ones too."""
        row = await self._store.read(
            lambda connection: connection.execute(select(jobs).where(jobs.c.job == job)).first()
        )
        return None if row is None else _record(row)

    async def has_admitted(self) -> bool:
        """Whether the Hub has ever asked and been told yes."""
        query = select(jobs.c.job).where(jobs.c.deadline.is_not(None)).limit(1)
        return await self._store.read(lambda connection: connection.scalar(query) is not None)

    async def events(self, job: str) -> list[tuple[datetime, State, str]]:
        """What became of a job, in its order."""
        query = select(job_events).where(job_events.c.job == job).order_by(job_events.c.id)

        def read(connection: Connection) -> list[tuple[datetime, State, str]]:
            return [(row.at, State(row.state), row.reason) for row in connection.execute(query)]

        return await self._store.read(read)

    async def notices(self) -> list[Notice]:
        """Every open notice."""
        return await self._store.read(noticerows.read)

    async def write(self, epoch: int, entries: Sequence[Entry], told: Sequence[Change] = ()) -> None:
        """All of it or nothing; Fenced when another Manager has taken over."""
        await self._store.write(lambda connection: _write(connection, epoch, entries, told))


def _now(connection: Connection) -> datetime:
    if connection.dialect.name == "postgresql":
        found: datetime | None = connection.scalar(select(func.clock_timestamp()))
        if found is not None:
            return found.astimezone(UTC)
    return datetime.now(UTC)


def _lease(connection: Connection, holder: str, seconds: float) -> int | None:
    now = _now(connection)
    until = now + timedelta(seconds=seconds)
    row = connection.execute(select(leases).where(_LEASE).with_for_update()).first()
    if row is None:
        connection.execute(insert(leases).values(name="manager", holder=holder, epoch=1, expires=until))
        return 1
    if row.holder == holder:
        connection.execute(update(leases).where(_LEASE).values(expires=until))
        return int(row.epoch)
    if row.expires > now:
        return None
    connection.execute(update(leases).where(_LEASE).values(holder=holder, epoch=row.epoch + 1, expires=until))
    return int(row.epoch) + 1


def _write(connection: Connection, epoch: int, entries: Sequence[Entry], told: Sequence[Change]) -> None:
    found = connection.scalar(select(leases.c.epoch).where(_LEASE).with_for_update(read=True))
    if found != epoch:
        raise Fenced(f"epoch {epoch}, and the database is at {found}")
    latest = {entry.record.job.id: entry for entry in entries}
    new = {entry.record.job.id for entry in entries if entry.new}
    inserted = [_row(latest[job]) for job in new]
    if inserted:
        connection.execute(insert(jobs), inserted)
    for job, entry in latest.items():
        if job not in new:
            connection.execute(update(jobs).where(jobs.c.job == job).values(_row(entry)))
    events = [
        {
            "job": entry.record.job.id,
            "at": entry.at,
            "state": entry.record.job.state.value,
            "reason": entry.reason,
            "detail": entry.detail,
        }
        for entry in entries
    ]
    if events:
        connection.execute(insert(job_events), events)
    noticerows.write(connection, told)


def _row(entry: Entry) -> dict[str, Any]:
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
        "stop_reason": record.stop.reason if record.stop else None,
        "stop_sentence": record.stop.sentence if record.stop else None,
    }


def _record(row: Row[Any]) -> Record:
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
    )
    stop = Stop(row.stop_reason, row.stop_sentence or "") if row.stop_reason else None
    return Record(job, row.deadline, row.request_seconds, row.pod_uid, row.pod_name, stop, row.yields)
