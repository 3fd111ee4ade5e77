"""Maintenance of nodes: cordon, uncordon, and the drain of a node at an announced time.

The node itself has it all, in two annotations beside Kubernetes' own mark: every Manager reads the same, a restart
forgets nothing, and `kubectl uncordon` ends a drain as well as the portal does. Jobs are stopped and not evicted:
requeue, grace period, and the sentence that people read are those of every other stop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from dlspawner.clients.kubernetes import NODES, KubernetesClient
from dlspawner.core.job import JobState
from dlspawner.core.nodes import DRAIN_ANNOTATION, REASON_ANNOTATION, Node
from dlspawner.core.text import WHEN
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import Notice, NoticeKind, clean
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction, withdraw
from dlspawner.manager.state.notify import post

LONGEST_REASON = 200
CALLED_OFF = "The drain of its node was cancelled: the job keeps running."
_EVERY_SECONDS = 1.0
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class NodeMaintenance:
    """Cordons nodes, and a controller: `due` and `reconcile` bring the jobs of drained nodes to their end."""

    store: JobStore
    cluster: KubernetesClient

    async def cordon(self, node: str, reason: str, who: str, drain_at: datetime | None = None) -> None:
        """Nothing new starts on the node, and what runs there is stopped at ``drain_at``; KubernetesError."""
        when = None if drain_at is None else drain_at.isoformat()
        await self._patch(node, True, clean(reason, LONGEST_REASON), when)
        log.info("node=%s cordoned by=%s drain_at=%s reason=%s", node, who, when or "-", clean(reason, LONGEST_REASON))

    async def uncordon(self, node: str, who: str) -> None:
        """The node takes jobs again, and is not drained any more; KubernetesError."""
        await self._patch(node, False, None, None)
        log.info("node=%s uncordoned by=%s", node, who)

    async def _patch(self, node: str, cordoned: bool, reason: str | None, drain_at: str | None) -> None:
        annotations = {REASON_ANNOTATION: reason, DRAIN_ANNOTATION: drain_at}
        await self.cluster.patch(
            NODES, node, {"metadata": {"annotations": annotations}, "spec": {"unschedulable": cordoned or None}}
        )

    def due(self) -> list[str]:
        """Returns nodes whose drain ended by another's uncordon, and "" if notices or stops are due."""
        forgotten = [one.name for one in self.store.nodes.values() if one.drain_at is not None and not one.cordoned]
        return [*([""] if any(_steps(self.store, self.store.now())) else []), *forgotten]

    async def reconcile(self, node: str) -> float:
        if node:
            await self._patch(node, False, None, None)  # or the next cordon would drain it at once
        else:
            await self.store.transact(_reconcile)
        return _EVERY_SECONDS


def _steps(store: JobStore, now: datetime) -> Iterator[tuple[JobRecord, Node | None, Notice | None]]:
    """Yields the jobs to be told or stopped, with the node that is drained first; without one the drain is over."""
    times = {one.name: one.drain_at for one in store.nodes.values() if one.cordoned and one.drain_at is not None}
    for record in store.records.values():
        job, notice = record.job, store.notices.pending((record.job.id, NoticeKind.MAINTENANCE))
        mine = [one for one in job.nodes if one in times] if job.holds and job.user else []
        if mine and job.state is not JobState.STOPPING:
            node = store.nodes[min(mine, key=lambda one: times[one])]
            told = notice is not None and notice.cause == _cause(node)
            if not told or (times[node.name] <= now and not (record.reserved and not record.seen)):
                yield record, node, notice
        elif not mine and notice is not None:
            yield record, None, notice


def _reconcile(transaction: Transaction) -> None:
    for record, node, notice in list(_steps(transaction.store, transaction.now)):
        job, again = record.job, lifecycle.what_follows(record.job)
        if node is None:
            withdraw(transaction, job.id, NoticeKind.MAINTENANCE)
            if job.state is JobState.RUNNING:
                post(transaction, job, NoticeKind.PREEMPTION_CANCELLED, CALLED_OFF)
            continue
        why = f"Node {node.name} goes into maintenance"
        reason = f": {node.reason.rstrip('.')}." if node.reason else "."
        if notice is None or notice.cause != _cause(node):
            text = f"{why} {WHEN}{reason} This job will be stopped then. {again}"
            post(transaction, job, NoticeKind.MAINTENANCE, text, cause=_cause(node), until=node.drain_at)
        if node.drain_at is not None and node.drain_at <= transaction.now:
            sentence = f"It was stopped because node {node.name} goes into maintenance{reason} {again}"
            lifecycle.stop(transaction, job.id, EventReason.MAINTENANCE, sentence)


def _cause(node: Node) -> str:
    return clean(f"{node.name} {node.drain_at} {node.reason}", LONGEST_REASON)
