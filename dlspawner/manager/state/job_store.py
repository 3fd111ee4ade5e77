"""The cluster state as the leader knows it, and the only way to change it.

Every change is a *transaction*: a plain function that reads the state and writes records; it runs alone. Transactions
that wait together are committed to the database in one, and no caller gets a result before the commit. If the commit
fails, the state is read again from the database before the next transaction: what was not written has not happened.

Stored times are UTC; a deadline that another Manager has written holds as it is.

Refused: a database transaction per decision that reads all it needs with locks. It would be right without fencing too,
and costs a scan of everything that is held for every job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from dlspawner.core.config import ClusterConfig, TeamsConfig
from dlspawner.core.decisions import EngineAdmits, EngineVerdict
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import Node
from dlspawner.core.scheduling.cluster_state import ClusterState, DecayedUsage, Snapshot
from dlspawner.manager.db.approvals import read_pending_requests
from dlspawner.manager.db.notices import read_notices
from dlspawner.manager.db.repository import DuplicateJob, JobRepository, NotLeader, read_usage
from dlspawner.manager.db.store import DatabaseRejected, DatabaseUnavailable
from dlspawner.manager.model.approval_request import ApprovalRequest, withdraw_requests
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import Notice, NoticeChange, NoticeKey, NoticeKind, Recipient
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, GatedPod, JobEvent, JobRecord
from dlspawner.settings import Settings

T = TypeVar("T")
Operation = Callable[["Transaction"], Any]
_Submitted = tuple[Operation, asyncio.Future[Any]]

OVER = "this Manager is no longer the leader"
_TOGETHER = 100  # transactions in one commit
_REMEMBERED = 10_000  # jobs that have ended in this term
_LONGEST_SECONDS = 0.05  # for which transactions run while every other task of this process waits
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Transaction:
    """The cluster state during one transaction, and what the transaction has written so far."""

    store: JobStore
    now: datetime
    events: list[JobEvent] = field(default_factory=list)
    notice_changes: list[NoticeChange] = field(default_factory=list)
    new_ids: list[str] = field(default_factory=list)
    persists_usage: bool = False

    @property
    def cluster_state(self) -> ClusterState:
        return self.store.cluster_state

    def record(self, job: str) -> JobRecord | None:
        return self.store.records.get(job)

    def persist_usage(self) -> None:
        """Advances the decayed usage of the teams to this moment, and writes it."""
        self.cluster_state.tick(self.now)
        self.persists_usage = True

    def expect_new(self, job: str) -> None:
        """Marks a job as new. If the database has it, the transaction runs again and ``recently_ended`` is true.

        The check is part of the commit, so that a new job costs no further database transaction.
        """
        self.new_ids.append(job)

    def write(
        self, record: JobRecord, reason: EventReason, detail: str = "", requests: Sequence[ApprovalRequest] = ()
    ) -> None:
        """Changes a job's record, with the event that explains it; for `lifecycle` alone.

        ``requests``: the job's requests for approvals that are new or decided. A job that leaves *pending-approval* has
        no pending request any more.
        """
        job = record.job
        old, where = self.store.records.get(job.id), (job.user, job.server)
        new = old is None
        if old is not None and (
            job.state is JobState.ENDED or (old.job.holds and not (job.holds and job.nodes == old.job.nodes))
        ):
            self.store.capacity_changed.set()
        if record.is_pending:
            self.store.pending[where] = job.id
        elif self.store.pending.get(where) == job.id:
            del self.store.pending[where]
        changed = self.store.update_approval_requests(record.job, requests, self.now, reason.value)
        self.events.append(JobEvent(record, self.now, reason, detail, new, changed))
        self.cluster_state.put(job)
        self.store.there.put(job)
        if job.state is JobState.ENDED:
            self.store.records.pop(job.id, None)
            self.store.note_recently_ended(job.id)
            withdraw(self, job.id)
        else:
            self.store.records[job.id] = record
        log.info(
            "job=%s user=%s server=%s team=%s gpus=%g state=%s reason=%s%s: %s",
            job.id,
            job.user,
            job.server,
            job.team,
            job.request.gpus / 1000,
            job.state.value,
            reason.value,
            f" {detail}" if detail else "",
            reason.operator_text,
        )

    def change_notice(self, change: NoticeChange) -> None:
        """Changes a notice; for `notify` alone."""
        self.notice_changes.append(change)
        self.store.notices.apply(change)


class CapacitySignal:
    """Set when capacity may have become free since the last scheduling cycle; ``wake`` wakes the scheduler's queue."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self._set = False

    def set(self) -> None:
        self._set = True
        self.wake.set()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set


class JobStore:
    """The state of one term; `run` is its writer, every other task submits transactions."""

    def __init__(
        self,
        repository: JobRepository,
        term: int,
        settings: Settings,
        now: Callable[[], datetime],
        reservation: timedelta,
    ) -> None:
        self._repository, self.term, self.now, self.reservation = repository, term, now, reservation
        self._waiting: asyncio.Queue[tuple[Operation, asyncio.Future[Any]]] = asyncio.Queue()
        self._stale = self._over = False
        self._alone = 0  # how many of the next transactions are committed one by one
        self._usage: Mapping[str, DecayedUsage] | None = (
            None  # as read when the term began; later the cluster state has it
        )
        self.capacity_changed = CapacitySignal()
        self.files = 0  # how often the configuration was reloaded
        self.asked = False  # whether the Hub has sent an admission request in this term, since there are limits
        self.nodes: dict[str, Node] = {}
        self.records: dict[str, JobRecord] = {}
        self.pending: dict[tuple[str, str], str] = {}  # by user and server: the job that waits there
        self.requests: dict[str, tuple[ApprovalRequest, ...]] = {}  # pending approval requests, by job
        self.there = ServerIndex()
        self.gated: dict[str, GatedPod] = {}  # the pods that running jobs may grow by, by uid; never written
        self._ended: dict[str, None] = {}  # in their order
        self._awaited: dict[str, asyncio.Event] = {}  # verdicts, by job
        self.cluster_state = ClusterState(settings.cluster, settings.teams)
        self.notices = NoticeStore()
        self.subscribers: list[
            Callable[[Sequence[JobEvent]], None]
        ] = []  # of entries on the disk; none: of nodes, files

    async def load(self) -> None:
        if self._usage is None:
            self._usage = self.cluster_state.usage = await self._repository.read(read_usage)
        found, notices = await self._repository.load(), await self._repository.read(read_notices)
        requests = await self._repository.read(read_pending_requests)
        old = self.cluster_state
        self.records = {record.job.id: record for record in found}
        self.there = ServerIndex(record.job for record in found)
        in_line = sorted((record.job for record in found if record.is_pending), key=lambda job: job.submitted)
        self.pending = {(job.user, job.server): job.id for job in in_line}
        self.capacity_changed.set()
        jobs = tuple(record.job for record in found)
        usage = tuple(old.usage.items())
        self.cluster_state = ClusterState.of(Snapshot(old.cluster, old.teams, tuple(self.nodes.values()), jobs, usage))
        self.cluster_state.verdicts = old.verdicts
        self.requests = {}
        for one in requests:
            self.requests[one.job] = (*self.requests.get(one.job, ()), one)
        self.notices.load(notices)
        self._stale = False

    def mark_idle(self, job: str, idle: bool) -> None:
        """Marks a job as idle, for the choice of victims; never written to the database, as nodes are not."""
        record = self.records.get(job)
        if record is not None and record.job.idle != idle:
            self._mark(replace(record, job=replace(record.job, idle=idle)))

    def mark_inadmissible(self, job: str, refused: str) -> None:
        """Marks a pending job as refused by the Hub, with the reason; "": it may be dispatched again. Never written."""
        record = self.records.get(job)
        if record is not None and record.job.inadmissible != refused:
            self._mark(replace(record, job=replace(record.job, inadmissible=refused)))

    def put_verdict(self, job: str, verdict: EngineVerdict | None) -> None:
        """Sets the engine's verdict on a job; ``None`` removes it. Never written: the engine has it."""
        verdicts = self.cluster_state.verdicts
        if verdicts.get(job) == verdict:
            return
        if verdict is not None and job in self._awaited:
            self._awaited[job].set()
        if verdict is None:
            del verdicts[job]
        else:
            verdicts[job] = verdict
        if isinstance(verdict, EngineAdmits):
            self.capacity_changed.set()
        for notify in self.subscribers:
            notify(())

    async def until_verdict(self, job: str, seconds: float) -> None:
        """Returns when the engine has said something of a job, or when the time is over."""
        if job not in self.cluster_state.verdicts:
            event = self._awaited.setdefault(job, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)
            self._awaited.pop(job, None)

    def _mark(self, marked: JobRecord) -> None:
        self.records[marked.job.id] = marked
        self.cluster_state.put(marked.job)
        self.there.put(marked.job)

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """Returns the result of `work` after its commit; DatabaseUnavailable or NotLeader: it has no effect."""
        if self._over:
            raise NotLeader(OVER)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((work, future))
        return await future

    async def ensure_leader(self) -> None:
        """Raises NotLeader if another Manager leads: called before requests to services that know no terms."""
        await self._repository.ensure_leader(self.term)

    def put_node(self, node: Node) -> None:
        """Adds or updates a node; nodes are never written to the database."""
        if self.nodes.get(node.name) != node:
            self.nodes[node.name] = node
            self.cluster_state.put_node(node)
            self._signal_capacity()

    def remove_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.cluster_state.remove_node(name)
        self._signal_capacity()

    def _signal_capacity(self) -> None:
        """Nodes or the configuration have changed, and no job."""
        self.capacity_changed.set()
        for notify in self.subscribers:
            notify(())

    def configure(self, cluster: ClusterConfig, teams: TeamsConfig) -> None:
        had = self.cluster_state.teams.has_limits(self.cluster_state.cluster)
        self.asked = self.asked and had and teams.has_limits(cluster)
        self.cluster_state.configure(cluster, teams)
        self.files += 1
        for job in [record.job.id for record in self.records.values() if record.job.inadmissible]:
            self.mark_inadmissible(job, "")
        self._signal_capacity()

    def pending_job(self, user: str, server: str) -> JobRecord | None:
        return self.records.get(self.pending.get((user, server), ""))

    def update_approval_requests(
        self, job: Job, changed: Sequence[ApprovalRequest], now: datetime, why: str
    ) -> tuple[ApprovalRequest, ...]:
        """Updates a job's approval requests with the job; returns those that change."""
        mine = {one.id: one for one in (*self.requests.get(job.id, ()), *changed)}
        if job.state is not JobState.PENDING_APPROVAL:
            changed = (*changed, *withdraw_requests(mine.values(), now, why))
            mine.clear()
        waits = tuple(one for one in mine.values() if one.is_pending)
        if waits:
            self.requests[job.id] = waits
        else:
            self.requests.pop(job.id, None)
        return tuple(changed)

    def note_recently_ended(self, job: str) -> None:
        """Remembers an ended job: a request with its id is no request for a new job."""
        self._ended[job] = None
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def recently_ended(self, job: str) -> bool:
        """True if the job ended in this term."""
        return job in self._ended and job not in self.records

    def on(self, user: str, server: str) -> list[Job]:
        """Returns the jobs of this server that have not ended, the newest first; without pods of no job."""
        return self.there.of(user, server)

    async def run(self) -> None:
        """Runs transactions until the term is over, then raises NotLeader."""
        taken: list[_Submitted] = []
        try:
            while True:
                if not taken:
                    taken = [await self._waiting.get()]
                while len(taken) < _TOGETHER and not self._waiting.empty():
                    taken.append(self._waiting.get_nowait())
                taken = await self._commit_batch(taken)
                await asyncio.sleep(0)  # other tasks of this process run between batches
        finally:
            self._over = True
            while not self._waiting.empty():
                taken.append(self._waiting.get_nowait())
            for _, future in taken:
                if not future.done():
                    future.set_exception(NotLeader(OVER))
                    future.exception()  # the caller may be gone

    async def _commit_batch(self, taken: list[_Submitted]) -> list[_Submitted]:
        """Commits as many transactions as fit together; returns the others."""
        try:
            if self._stale:
                await self.load()
        except DatabaseUnavailable as problem:
            _fail(taken, problem)
            return []
        transactions, answers = self._decide(taken)
        asked, left = taken[: len(answers)], taken[len(answers) :]
        entries = [entry for transaction in transactions for entry in transaction.events]
        told = [change for transaction in transactions for change in transaction.notice_changes]
        claimed = [job for transaction in transactions for job in transaction.new_ids]
        usage = (
            dict(self.cluster_state.usage) if any(transaction.persists_usage for transaction in transactions) else None
        )
        try:
            if entries or told or claimed or usage is not None:
                await self._repository.write(self.term, entries, told, usage, claimed)
        except DuplicateJob as problem:
            self._stale = True
            for job in problem.jobs:
                self.note_recently_ended(job)
            return taken
        except DatabaseRejected as problem:
            self._stale = True
            if len(asked) > 1:  # one of them is at fault: each is committed alone
                self._alone = len(asked)
                return taken
            log.exception("the database rejects a transaction; it has no effect")
            _fail(asked, problem)
            await self._reload()
            return left
        except DatabaseUnavailable as problem:
            self._stale = True
            _fail(asked, problem)
            return left
        self._publish(entries, told)
        for (_, future), answer in zip(asked, answers, strict=True):
            if not future.done():
                if isinstance(answer, _Broken):
                    future.set_exception(answer.error)
                else:
                    future.set_result(answer)
        await self._reload()
        return left

    def _publish(self, entries: Sequence[JobEvent], told: Sequence[NoticeChange]) -> None:
        """Notifies subscribers and readers after a commit; transactions that wrote nothing are no event."""
        self.notices.publish(told)
        for notify in self.subscribers if entries else ():
            notify(entries)

    async def _reload(self) -> None:
        """Drops at once what was not written, for readers outside transactions; or the next batch does."""
        if self._stale:
            with contextlib.suppress(DatabaseUnavailable):
                await self.load()

    def _decide(self, taken: list[_Submitted]) -> tuple[list[Transaction], list[Any]]:
        """Runs the first transactions; returns those that succeeded, and the result of each.

        Ends early when other tasks of the process have waited for long enough, and after a transaction that failed
        halfway: its changes are in memory and will not be written, so no other transaction may read them.
        """
        now, begun = self.now(), time.monotonic()
        transactions: list[Transaction] = []
        answers: list[Any] = []
        for work, future in taken:
            if answers and time.monotonic() - begun > _LONGEST_SECONDS:
                break
            if future.done():
                answers.append(None)  # its caller has given up
                continue
            transaction = Transaction(self, now)
            try:
                answer = work(transaction)
            except Exception as error:  # noqa: BLE001 - a transaction's own fault is raised at its caller
                answers.append(_Broken(error))
                if transaction.events or transaction.notice_changes:
                    self._stale = True
                    break
                continue
            transactions.append(transaction)
            answers.append(answer)
            if self._alone:
                break
        self._alone = max(0, self._alone - len(answers))
        return transactions, answers


@dataclass(frozen=True, slots=True)
class _Broken:
    error: Exception


def _fail(taken: list[_Submitted], problem: Exception) -> None:
    for _, future in taken:
        if not future.done():
            future.set_exception(problem)
            future.exception()


def withdraw(transaction: Transaction, job: str, *kinds: NoticeKind) -> None:
    """Withdraws the notices of a job, of these kinds or all; job "": those to administrators."""
    for kind in kinds or tuple(NoticeKind):
        known = transaction.store.notices.pending((job, kind))
        if known is not None:
            transaction.change_notice(NoticeChange(known, gone=True))


class NoticeStoreClosed(Exception):
    """This Manager is no longer the leader: another one has the notices."""


@dataclass(slots=True)
class NoticeStore:
    """Every open notice. ``pending`` is for transactions, everything else for readers."""

    _pending: dict[NoticeKey, Notice] = field(default_factory=dict)
    _shown: dict[str, dict[NoticeKey, Notice]] = field(default_factory=dict)  # by user, "" for administrators
    _readers: dict[str | None, set[asyncio.Event]] = field(default_factory=dict)  # by user, None for all
    _closed: bool = False
    # Called with committed changes.
    subscribers: list[Callable[[Sequence[NoticeChange]], None]] = field(default_factory=list)

    def load(self, notices: Iterable[Notice]) -> None:
        self._pending = {notice.key: notice for notice in notices}
        self._shown = {}
        for key, notice in self._pending.items():
            self._shown.setdefault(notice.user, {})[key] = notice
        self._wake(set(self._readers))

    def pending(self, key: NoticeKey) -> Notice | None:
        """Returns the open notice under this key, also one that is not committed yet."""
        return self._pending.get(key)

    def apply(self, change: NoticeChange) -> None:
        """Applies the change of a transaction that is not committed yet."""
        _put(self._pending, change)

    def publish(self, changes: Sequence[NoticeChange]) -> None:
        """Shows committed changes to readers."""
        for notify in self.subscribers:
            notify(changes)
        users: set[str | None] = set()
        for change in changes:
            user = change.notice.user
            mine = self._shown.setdefault(user, {})
            _put(mine, change)
            if not mine:
                del self._shown[user]
            users |= {user, None}
        self._wake(users)

    def read(self, audience: Recipient, now: datetime) -> tuple[Notice, ...]:
        """Returns the open notices of this recipient, oldest first."""
        of: Iterable[Mapping[NoticeKey, Notice]] = (
            self._shown.values()
            if audience.everything
            else (self._shown.get(user, {}) for user in {audience.user, ""} if user or audience.admin)
        )
        found = (notice for mine in of for notice in mine.values() if audience.reads(notice) and not notice.over(now))
        return tuple(sorted(found, key=lambda notice: (notice.posted, notice.id)))

    def overdue(self, kind: NoticeKind, now: datetime) -> list[Notice]:
        """Returns the notices of a kind that have expired; for transactions, which withdraw them."""
        return [one for one in self._pending.values() if one.kind is kind and one.over(now)]

    async def changed(self, audience: Recipient, seconds: float) -> None:
        """Waits for a change for this audience, or so many seconds; NoticeStoreClosed when the term is over."""
        if self._closed:
            raise NoticeStoreClosed
        event = asyncio.Event()
        places: set[str | None] = {None} if audience.everything else {audience.user}
        if audience.admin:
            places.add("")
        for place in places:
            self._readers.setdefault(place, set()).add(event)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)
        finally:
            for place in places:
                waiting = self._readers[place]
                waiting.discard(event)
                if not waiting:
                    del self._readers[place]
        if self._closed:
            raise NoticeStoreClosed

    def close(self) -> None:
        self._closed = True
        self._wake(set(self._readers))

    def _wake(self, places: Iterable[str | None]) -> None:
        for place in places:
            for event in self._readers.get(place, ()):
                event.set()


def _put(notices: dict[NoticeKey, Notice], change: NoticeChange) -> None:
    if change.gone:
        notices.pop(change.notice.key, None)
    else:
        notices[change.notice.key] = change.notice


class ServerIndex:
    """Jobs by their user and server, which never change; pods that are no job's are left out."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._jobs: dict[tuple[str, str], dict[str, Job]] = {}
        for job in jobs:
            self.put(job)

    def put(self, job: Job) -> None:
        """The job as it is from now on; one that has ended is there no longer."""
        if job.id.startswith(EXTERNAL_POD_PREFIX):
            return
        there = self._jobs.setdefault((job.user, job.server), {})
        if job.state is JobState.ENDED:
            there.pop(job.id, None)
        else:
            there[job.id] = job
        if not there:
            del self._jobs[job.user, job.server]

    def of(self, user: str, server: str) -> list[Job]:
        """The jobs on this server, the newest first."""
        return sorted(
            self._jobs.get((user, server), {}).values(), key=lambda job: (job.submitted, job.id), reverse=True
        )
