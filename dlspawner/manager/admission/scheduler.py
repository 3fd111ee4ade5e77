"""The scheduling cycle: which pending jobs start now. The order and the decision are the core's.

A cycle runs after every change that may have freed capacity, before a new job is admitted, and every few seconds,
because time alone lets jobs start too. The nodes of a scheduled job are reserved in the same transaction, and the
dispatcher asks the Hub for the start. At most ``max_concurrent_starts`` starts are in flight, from the cycle until the
pods are observed, so that the Hub gets no more requests than it takes, and no reservation expires before its start was
requested; what a node does after that, such as pulling a large image, delays no other job. A cycle also ends early when
it has made enough reservations for victims' nodes: every other task of this process waits for it, and the next cycle
follows at once.

A job that cannot be decided by a fault of the program is logged and skipped; the next cycle decides it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from dlspawner.core.decisions import Admit, Preempt
from dlspawner.core.job import Job
from dlspawner.core.resources import ResourceRequest
from dlspawner.core.scheduling import admission
from dlspawner.core.scheduling.cluster_state import queue_key
from dlspawner.core.scheduling.queue import order_key
from dlspawner.manager.admission import approvals
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction

_EVERY_SECONDS = 3.0
_CUT_SECONDS = 1.0  # after a cycle that ended early
_MAX_PREEMPTIONS = 20  # in one cycle
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Scheduler:
    """A controller that schedules the jobs of one store; ``preempt`` issues preemptions, as the cycle decides them."""

    store: JobStore
    max_concurrent_starts: int
    preempt: Callable[[Transaction, JobRecord, Preempt], None]
    work_available: asyncio.Event = field(default_factory=asyncio.Event)  # a job awaits its start
    truncated: bool = False  # True if the last cycle ended early
    # Servers with a start request under way, and the job of each.
    starts_in_flight: dict[tuple[str, str], str] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)  # the number of the scheduled start, by job
    # Jobs that the Hub has refused to start: how often files had been read then, and when it was. Until files change
    # no other job has to leave for them.
    refused: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    _scheduled: int = 0
    _cycle_at: float = 0.0  # of the last cycle, in the loop's time
    _not_before: dict[str, datetime] = field(default_factory=dict)

    def due(self) -> list[str]:
        """Returns a key if capacity may have become free, or after some seconds."""
        pause = _CUT_SECONDS if self.truncated else _EVERY_SECONDS
        late = asyncio.get_running_loop().time() >= self._cycle_at + pause
        return ["cycle"] if late or self.store.capacity_changed.is_set() else []

    async def reconcile(self, _: str) -> float:
        await self.store.transact(self.schedule)
        self._cycle_at = asyncio.get_running_loop().time()
        return 0.0

    def schedule(self, transaction: Transaction) -> None:
        self.store.capacity_changed.clear()
        self.truncated = False
        approvals.reevaluate_all(transaction)
        state, now = transaction.cluster_state, transaction.now
        if not (state.queues or self.store.gated):
            return
        state.tick(now)
        room, preemptions = (
            self.max_concurrent_starts - sum(one.is_dispatched for one in self.store.records.values()),
            _MAX_PREEMPTIONS,
        )
        for job, found in admission.schedule(state, now, _log_failure):
            record = transaction.record(job.id)
            if record is None or now < self._not_before.get(job.id, now):
                continue
            if not isinstance(found, Preempt):
                room -= 1
                if room < 0:
                    self.truncated = True
                    break
                self._start(transaction, record, found)
            elif self.refused.get(job.id, (-1, now))[0] != self.store.files:
                preemptions -= 1
                if preemptions < 0:
                    self.truncated = True
                    self.store.capacity_changed.set()  # the next cycle follows at once
                    break
                self.preempt(transaction, record, found)
        if not self.truncated:
            self._grow(transaction)

    def _grow(self, transaction: Transaction) -> None:
        """Running jobs of several pods get further ones, after all that wait: the first in the order of the queue."""
        found = ((pod, transaction.record(pod.job)) for pod in self.store.gated.values())
        wait = [(pod, record) for pod, record in found if record is not None and pod.ref.uid not in record.uids]
        wait.sort(key=lambda one: (len(one[0].ref.name), one[0].ref.name))  # worker-2 comes before worker-10
        wait.sort(key=lambda one: order_key(one[1].job, transaction.cluster_state, transaction.now))
        vain = set[tuple[str, ResourceRequest]]()
        for pod, _ in wait:
            record = transaction.store.records[pod.job]
            larger: Job | str = ""
            if (pod.job, pod.request) not in vain:
                larger = admission.grow(record.job, pod.request, transaction.cluster_state, transaction.now)
            if isinstance(larger, str):
                vain.add((pod.job, pod.request))
            else:
                lifecycle.grow(transaction, record, larger, pod.ref)

    def _start(self, transaction: Transaction, record: JobRecord, found: Admit) -> None:
        lifecycle.schedule(transaction, record, found.nodes)
        self._scheduled += 1
        records = self.store.records
        self.order = {one: n for one, n in self.order.items() if one in records and records[one].awaiting_start}
        self.order[record.job.id] = self._scheduled
        self.work_available.set()

    def behind_earlier_jobs(self, job: Job) -> bool:
        """True if earlier jobs of the same queue were not scheduled yet, although capacity may be free."""
        return self.truncated and queue_key(job) in self.store.cluster_state.queues

    def backoff(self, job: str, until: datetime) -> None:
        """Schedules this job not before then; forgotten when this process ends."""
        self._not_before = {one: then for one, then in self._not_before.items() if one in self.store.records}
        self._not_before[job] = until


def _log_failure(job: Job, error: Exception) -> None:
    log.error("job=%s user=%s server=%s reason=scheduling-failed", job.id, job.user, job.server, exc_info=error)
