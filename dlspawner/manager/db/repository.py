"""Jobs, their events and the lease in the database.

Several Managers may run on one database; one of them acts. It holds the lease, which expires unless it is renewed, and
every Manager that acquires it increases its term, also the same Manager after a restart. Every write of jobs looks at
the term in its own transaction, so one that was stopped for a while and does not know that it has been replaced changes
nothing (`NotLeader`), and neither does a write that was pending when its Manager restarted. The clock of the
lease is the database's where it has one of its own, because two machines' clocks differ; a lease that ends later than
any lease may last was written by a clock that has been set back since, and is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from dlspawner.core.job import JobState
from dlspawner.core.scheduling.cluster_state import DecayedUsage
from dlspawner.manager.db import approvals, notices, outbox
from dlspawner.manager.db import jobs as db_jobs
from dlspawner.manager.db import pod_events as pod_event_rows
from dlspawner.manager.db.jobs import LastEnd
from dlspawner.manager.db.store import Database, DatabaseRejected
from dlspawner.manager.db.tables import job_events, jobs, leases, team_usage
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.approval_request import ApprovalRequest
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import JobCursor, JobFilter, JobHistory, JobTransition, has_detail
from dlspawner.manager.model.notice import NoticeChange
from dlspawner.manager.model.records import JobEvent, JobRecord

T = TypeVar("T")

_LEASE = leases.c.name == "manager"
LONGEST_LEASE = 60.0  # seconds
# The statements of every admission, made once: to put one together costs more than to run it.
_TERM = select(leases.c.term).where(_LEASE).with_for_update(read=True)
_KNOWN = select(jobs.c.job).where(jobs.c.job.in_(bindparam("ids", expanding=True)))
_NEW_JOBS, _NEW_EVENTS = insert(jobs), insert(job_events)


class NotLeader(Exception):
    """Another Manager acts by now; nothing was written."""


class DuplicateJob(Exception):
    """Jobs that were thought to be new have been here before, whether they have ended or not; nothing was written."""

    def __init__(self, jobs: Collection[str]) -> None:
        super().__init__(", ".join(sorted(jobs)))
        self.jobs = jobs


class JobRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def url(self) -> str:
        """The database's URL with its password."""
        return self._database.url

    async def acquire(self, holder: str, seconds: float) -> int | None:
        """Takes the lease for a new term; None while another Manager holds it."""
        return await self._database.write(lambda connection: _acquire(connection, holder, seconds))

    async def renew(self, term: int, seconds: float) -> bool:
        """Keep the lease of this term; False when a later one has begun."""

        def renew(connection: Connection) -> bool:
            until = _now(connection) + timedelta(seconds=seconds)
            mine = _LEASE & (leases.c.term == term)
            return connection.execute(update(leases).where(mine).values(expires=until)).rowcount == 1

        return await self._database.write(renew)

    async def release(self, holder: str) -> None:
        """Let the next one take over at once."""
        mine = _LEASE & (leases.c.identity == holder)

        def expire(connection: Connection) -> None:
            connection.execute(update(leases).where(mine).values(expires=_now(connection)))

        await self._database.write(expire)

    async def ensure_leader(self, term: int) -> None:
        """NotLeader when a later term has begun: before what no database can refuse."""
        await self._database.read(lambda connection: _check(connection, term))

    async def load(self) -> list[JobRecord]:
        """Every job that has not ended."""
        query = select(jobs).where(jobs.c.state != JobState.ENDED.value)
        return await self._database.read(
            lambda connection: [db_jobs.from_row(row) for row in connection.execute(query)]
        )

    async def find(self, job: str) -> JobRecord | None:
        """A job, ended ones too."""
        row = await self._database.read(
            lambda connection: connection.execute(select(jobs).where(jobs.c.job == job)).first()
        )
        return None if row is None else db_jobs.from_row(row)

    async def events(self, job: str) -> list[tuple[datetime, JobState, str]]:
        query = select(job_events).where(job_events.c.job == job).order_by(job_events.c.id)

        def read(connection: Connection) -> list[tuple[datetime, JobState, str]]:
            return [(row.at, JobState(row.state), row.reason) for row in connection.execute(query)]

        return await self._database.read(read)

    async def page(self, viewer: Viewer, wanted: JobFilter, after: JobCursor | None, limit: int) -> list[JobHistory]:
        """Returns the jobs that the viewer may see and the filter takes, ended ones too, newest first."""
        return await self._database.read(lambda connection: db_jobs.read_page(connection, viewer, wanted, after, limit))

    async def job_history(self, job: str) -> JobHistory | None:
        """Returns what users read about a job, ended ones too."""
        return await self._database.read(lambda connection: db_jobs.find_job(connection, job))

    async def visible_job(self, viewer: Viewer, job: str) -> JobHistory | None:
        """Returns what this viewer may read about a job; a hidden job is treated as one that does not exist."""
        kept = await self.job_history(job)
        return kept if kept is not None and viewer.reaches(kept.user, kept.team) else None

    async def find_many(self, ids: Collection[str]) -> list[JobHistory]:
        """Returns what users read about these jobs, in no order."""
        return await self._database.read(lambda connection: db_jobs.read_jobs(connection, ids))

    async def history(self, job: str, most: int = db_jobs.MOST_EVENTS) -> list[JobTransition]:
        """Returns the events of a job with their details; the latest ones of too many."""
        return await self._database.read(lambda connection: db_jobs.read_events(connection, job, most))

    async def latest_pod_events(self, ids: Iterable[str]) -> dict[str, str]:
        """The latest sentence about the pods of each of these jobs, as far as there is one."""
        found = [*ids]
        return (
            await self._database.read(lambda connection: pod_event_rows.read_latest_pod_events(connection, found))
            if found
            else {}
        )

    async def end_details(self, found: Iterable[JobHistory]) -> dict[str, str]:
        """Returns the details of the ends of these jobs, where their sentence has details, in at most one statement."""
        ids = [kept.id for kept in found if kept.state is JobState.ENDED and has_detail(kept.reason, kept.stop)]
        return await self._database.read(lambda connection: db_jobs.last_details(connection, ids)) if ids else {}

    async def last_ends(self, user: str) -> dict[str, LastEnd]:
        """Returns the end of the last job of each server of a user."""
        return await self._database.read(lambda connection: db_jobs.read_last_ends(connection, user))

    async def servers(self, user: str) -> frozenset[str]:
        """A person's servers that ever had a job."""
        query = select(jobs.c.server_name).where(jobs.c.user_name == user).distinct()
        return frozenset(await self._database.read(lambda connection: connection.scalars(query).all()))

    async def requests(self, wanted: approvals.ApprovalQuery) -> list[ApprovalRequest]:
        """Requests for an approval, the newest first."""
        return await self._database.read(lambda connection: approvals.find_requests(connection, wanted))

    async def last_event(self, user: str, server: str) -> tuple[str, str] | None:
        """Reason and detail of the last event of a server's last job; None for a server that never had one.

        Of one that was cancelled when it may have had a pod, it is the cancel and not what became of the pod.
        """
        mine = (jobs.c.user_name == user) & (jobs.c.server_name == server)
        query = (
            select(job_events.c.reason, job_events.c.detail, jobs.c.stop_reason)
            .join(jobs, jobs.c.job == job_events.c.job)
            .where(mine)
            .order_by(job_events.c.id.desc())
            .limit(1)
        )
        row = await self._database.read(lambda connection: connection.execute(query).first())
        if row is None or row.stop_reason != EventReason.CANCELLED:
            return None if row is None else (row.reason, row.detail)
        return EventReason.CANCELLED.value, ""

    async def write(
        self,
        term: int,
        entries: Sequence[JobEvent],
        told: Sequence[NoticeChange] = (),
        usage: Mapping[str, DecayedUsage] | None = None,
        claimed: Collection[str] = (),
    ) -> None:
        """All of it or nothing; NotLeader when a later term has begun, DuplicateJob when a ``claimed`` id is in use.

        ``usage``: all teams', where it is to be kept.
        """

        # Of a claimed job that is written down its own row tells; only the others are looked for first.
        unwritten = set(claimed).difference(entry.record.job.id for entry in entries)

        def write(connection: Connection) -> None:
            _check(connection, term)
            known = _known(connection, unwritten)
            if known:
                raise DuplicateJob(known)
            if usage is not None:
                _write_usage(connection, usage)
            if entries:
                _write(connection, entries, claimed)
            outbox.write_messages(connection, entries, told)
            notices.write_notices(connection, told)

        try:
            await self._database.write(write)
        except DatabaseRejected:
            known = await self._database.read(lambda connection: _known(connection, claimed))
            if known:
                raise DuplicateJob(known) from None
            raise

    async def read(self, query: Callable[[Connection], T]) -> T:
        return await self._database.read(query)

    async def write_as_any(self, change: Callable[[Connection], T]) -> T:
        """A change that is right whichever Manager acts."""
        return await self._database.write(change)

    async def write_as_leader(self, term: int, change: Callable[[Connection], T]) -> T:
        """Makes a change in a transaction of the leader; raises NotLeader if a later term has begun."""

        def checked(connection: Connection) -> T:
            _check(connection, term)
            return change(connection)

        return await self._database.write(checked)


def _now(connection: Connection) -> datetime:
    if connection.dialect.name == "postgresql":
        found: datetime | None = connection.scalar(select(func.clock_timestamp()))
        if found is not None:
            return found.astimezone(UTC)
    return datetime.now(UTC)


def _acquire(connection: Connection, holder: str, seconds: float) -> int | None:
    now = _now(connection)
    until = now + timedelta(seconds=seconds)
    row = connection.execute(select(leases).where(_LEASE).with_for_update()).first()
    if row is None:
        connection.execute(insert(leases).values(name="manager", identity=holder, term=1, expires=until))
        return 1
    if row.identity != holder and now < row.expires <= now + timedelta(seconds=LONGEST_LEASE):
        return None
    connection.execute(update(leases).where(_LEASE).values(identity=holder, term=row.term + 1, expires=until))
    return int(row.term) + 1


def _check(connection: Connection, term: int) -> None:
    found = connection.scalar(_TERM)
    if found != term:
        raise NotLeader(f"term {term}, and the database is at {found}")


def read_usage(connection: Connection) -> dict[str, DecayedUsage]:
    """Returns the recent usage of each team as last stored."""
    return {row.team: DecayedUsage(row.amount, row.since, row.rate) for row in connection.execute(select(team_usage))}


def _write_usage(connection: Connection, usage: Mapping[str, DecayedUsage]) -> None:
    connection.execute(delete(team_usage))
    rows = [{"team": team, "amount": one.amount, "since": one.since, "rate": one.rate} for team, one in usage.items()]
    if rows:
        connection.execute(insert(team_usage), rows)


def _known(connection: Connection, ids: Collection[str]) -> set[str]:
    """Returns those of these jobs that the database has."""
    return set(connection.scalars(_KNOWN, {"ids": [*ids]})) if ids else set()


def _write(connection: Connection, entries: Sequence[JobEvent], claimed: Collection[str]) -> None:
    latest = {entry.record.job.id: entry for entry in entries}
    new = {entry.record.job.id for entry in entries if entry.new}
    new -= _known(connection, new.difference(claimed))  # one that had ended, and is there after all
    inserted = [db_jobs.to_row(latest[job]) for job in new]
    if inserted:
        connection.execute(_NEW_JOBS, inserted)
    for job, entry in latest.items():
        if job not in new:
            connection.execute(update(jobs).where(jobs.c.job == job).values(db_jobs.to_row(entry)))
    events = [
        {
            "job": entry.record.job.id,
            "at": entry.at,
            "state": entry.record.job.state.value,
            "reason": entry.reason.value,
            "detail": entry.detail,
            "gpus_milli": entry.record.job.request.gpus,
        }
        for entry in entries
    ]
    connection.execute(_NEW_EVENTS, events)
    approvals.write_requests(connection, [one for entry in entries for one in entry.requests])
