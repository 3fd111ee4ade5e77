"""The queue at work: whose turn it is, over and over. The order and the decision are the core's.

A *pass* is made after every change that may have freed something, before anybody new is let in, and every few seconds,
because time alone lets jobs start, too. What a turn gives is reserved in the same transaction: the job is *due*, and
``starts`` tells the Hub. At most ``at_once`` such starts are under way at one time, from the turn until the pods are
there, so that a Hub is not asked for more than it takes and no reservation ends before its start was asked for; what a
node does after that, such as pulling a large image, is in nobody's way. A pass ends early, too, when it has made enough
promises: everybody else in this process waits for it, and the next one follows at once.

A job whose decision fails by a fault of the program is logged and skipped; the next cycle decides it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from dlspawner.core.decisions import Admit, Preempt
from dlspawner.core.job import Job
from dlspawner.core.scheduling import admission
from dlspawner.core.scheduling.cluster_state import queue_key
from dlspawner.manager.admission import approvals
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction

_EVERY_SECONDS = 3.0
_CUT_SECONDS = 1.0  # between passes that left turns to the next one, because enough starts were under way
_PROMISES = 20  # in one pass
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Scheduler:
    """Gives turns to the jobs of one book; ``preempt`` does what lets a turn come, nothing while it is ``None``."""

    book: JobStore
    max_concurrent_starts: int
    preempt: Callable[[Transaction, JobRecord, Preempt], None] | None = None
    work_available: asyncio.Event = field(default_factory=asyncio.Event)  # somebody is due
    truncated: bool = (
        False  # whether the last pass left turns for the next one, because enough jobs are due or promised
    )
    # Servers that the Hub is being told to start just now, and for which job.
    starts_in_flight: dict[tuple[str, str], str] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)  # the how-manieth turn of this process each due job was given
    _turns: int = 0
    _not_before: dict[str, datetime] = field(default_factory=dict)

    async def run(self) -> None:
        """Make passes until it is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CUT_SECONDS if self.truncated else _EVERY_SECONDS):
                    await self.book.capacity_changed.wait()
            try:
                await self.book.transact(self.schedule)
            except DatabaseUnavailable as problem:
                log.warning("the queue waits for the database: %s", problem.__cause__)
                await asyncio.sleep(1)

    def schedule(self, turn: Transaction) -> None:
        """One pass."""
        self.book.capacity_changed.clear()
        self.truncated = False
        approvals.reevaluate_all(turn)
        world, now = turn.cluster_state, turn.now
        if not world.queues:
            return
        world.tick(now)
        room, promises = (
            self.max_concurrent_starts - sum(one.is_dispatched for one in self.book.records.values()),
            _PROMISES,
        )
        for job, found in admission.schedule(world, now, _log_failure):
            record = turn.record(job.id)
            if record is None or now < self._not_before.get(job.id, now):
                continue
            if not isinstance(found, Preempt):
                room -= 1
                if room < 0:
                    self.truncated = True
                    break
                self._start(turn, record, found)
            elif self.preempt is not None:
                promises -= 1
                if promises < 0:
                    self.truncated = True
                    self.book.capacity_changed.set()  # the next pass need not wait for anything
                    break
                self.preempt(turn, record, found)

    def _start(self, turn: Transaction, record: JobRecord, found: Admit) -> None:
        lifecycle.schedule(turn, record, found.nodes)
        self._turns += 1
        records = self.book.records
        self.order = {one: n for one, n in self.order.items() if one in records and records[one].awaiting_start}
        self.order[record.job.id] = self._turns
        self.work_available.set()

    def behind_earlier_jobs(self, job: Job) -> bool:
        """Whether others that wait for the same have not got their turns yet, although there may be room."""
        return self.truncated and queue_key(job) in self.book.cluster_state.queues

    def backoff(self, job: str, until: datetime) -> None:
        """Give no turn to this job before then; forgotten when this process ends."""
        self._not_before = {one: then for one, then in self._not_before.items() if one in self.book.records}
        self._not_before[job] = until


def _log_failure(job: Job, error: Exception) -> None:
    log.error("job=%s user=%s server=%s reason=scheduling-failed", job.id, job.user, job.server, exc_info=error)
