"""Preemption: notice and reservation in one transaction, then the stop of the victims, or its cancellation.

* `issue_preemption` carries out a scheduling cycle's ``Preempt``: every victim gets its notice, which begins when the
  victim has run for the minimum time, and the nodes are reserved for the pending job.
* `reconcile_preemptions` runs again and again: it releases reservations that cannot be had any more, cancels the
  preemption of victims that are not needed, and stops victims with an expired notice. No victim is stopped for a job
  that is not pending any more. Whether the Hub would start the job is known when it is dispatched, not before.
* Guaranteed jobs beyond a lowered quota turn preemptible when their notice expires, and continue. Until then they are
  no victims, so that nothing is planned with what they hold. When the quota covers them again they are guaranteed
  again.

All of it is in the database before it is acted on: the next leader continues where this one was.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dlspawner.core.decisions import EngineEvicts, Preempt
from dlspawner.core.job import Job
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.placement import find_free_nodes
from dlspawner.core.scheduling.preemption import Step, due_steps, over_quota_jobs, restorable, stop_time
from dlspawner.core.text import WHEN
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import JobStore, Transaction
from dlspawner.manager.state.notify import post

_EVERY_SECONDS = 1.0
_UNCHANGED = "unchanged"  # present as long as a reconciliation has changed nothing: changes may have consequences
_REVIEWED = "reviewed"  # in the cluster state's cache, which every change clears: the next time to reconcile

CONTINUES = "Its GPUs are not needed any more: the job goes on."
KEEPS = "Your team has enough quota for it again: the job stays guaranteed."
AGAIN = "Your team has enough quota for it again: the job is guaranteed again."


def issue_preemption(transaction: Transaction, record: JobRecord, found: Preempt) -> None:
    """Gives the victims notice, and reserves their nodes for the pending job."""
    idle = _idle_elsewhere(record.job, transaction.cluster_state)
    for name in found.victims:
        victim = transaction.store.records[name]
        until = stop_time(victim.job, transaction.cluster_state, transaction.now)
        lifecycle.give_notice(transaction, victim, until, record.job.id)
        if victim.job.user:
            text = _notice_text(victim, record.job, transaction.cluster_state, idle)
            post(transaction, victim.job, NoticeKind.PREEMPTED, text, cause=record.job.id, until=until)
    lifecycle.reserve_nodes(transaction, record, tuple(found.nodes), found.victims)


def reconcile_preemptions(transaction: Transaction) -> None:
    """One step of the consequences of changes or time; to be repeated until nothing changes."""
    by = transaction.now
    transaction.cluster_state.memo[_UNCHANGED] = True
    _restore(transaction)
    for step, job, later in due_steps(transaction.cluster_state, by):
        record = transaction.store.records[job.id]
        match step:
            case Step.RELEASE:
                lifecycle.release_nodes(transaction, record)
            case Step.SPARE:
                lifecycle.cancel_preemption(transaction, record)
                if job.user:
                    post(transaction, job, NoticeKind.PREEMPTION_CANCELLED, CONTINUES)
            case Step.STOP:
                lifecycle.stop(
                    transaction, job.id, EventReason.PREEMPTED, _stop_text(record, transaction.cluster_state)
                )
            case Step.DEFER if later is not None:
                lifecycle.move_notice(transaction, record, later)
                _move(transaction, job, NoticeKind.PREEMPTED, later)
    _reclaim(transaction)
    if _UNCHANGED not in transaction.cluster_state.memo:
        return
    times = [record.job.notice or record.demote_at for record in transaction.store.records.values()]
    transaction.cluster_state.memo[_REVIEWED] = min(
        (one for one in times if one is not None and one > by), default=None
    )


def _move(transaction: Transaction, job: Job, kind: NoticeKind, until: datetime) -> None:
    """Changes the time of a notice that was posted already."""
    known = transaction.store.notices.pending((job.id, kind))
    if known is not None:
        post(transaction, job, kind, known.text, cause=known.cause, until=until)


def _reclaim(transaction: Transaction) -> None:
    """Demotes jobs that exceed a lowered quota; cancels that when the quota was raised."""
    beyond = {job.id for job in over_quota_jobs(transaction.cluster_state)}
    for record in tuple(transaction.store.records.values()):
        job = record.job
        if job.id in beyond and record.demote_at is None:
            until = transaction.now + transaction.cluster_state.cluster.scheduling.notice
            lifecycle.announce_demotion(transaction, record, until)
            if job.user:
                lost = _lost(job, transaction.cluster_state)
                text = f"Your {lost}: the job keeps running and becomes preemptible {WHEN}."
                post(transaction, job, NoticeKind.QUOTA_LOWERED, text, until=until)
        elif job.id in beyond and record.demote_at is not None and record.demote_at <= transaction.now:
            lifecycle.demote(transaction, record)
            if job.user:
                text = f"Your {_lost(job, transaction.cluster_state)}: the job is preemptible now."
                post(transaction, job, NoticeKind.QUOTA_LOWERED, text)
        elif record.demote_at is not None and not job.preemptible and job.id not in beyond and job.holds:
            lifecycle.cancel_demotion(transaction, record)
            if job.user and not job.terminating:
                post(transaction, job, NoticeKind.PREEMPTION_CANCELLED, KEEPS)


def _restore(transaction: Transaction) -> None:
    """Restores the guarantee of jobs that turned preemptible, where the quota covers them again."""
    turned = [
        one.job for one in transaction.store.records.values() if one.demote_at is not None and one.job.preemptible
    ]
    for job in restorable(turned, transaction.cluster_state):
        lifecycle.restore_guarantee(transaction, transaction.store.records[job.id])
        if job.user:
            post(transaction, job, NoticeKind.PREEMPTION_CANCELLED, AGAIN)


def _notice_text(victim: JobRecord, waiting: Job, state: ClusterState, idle: str) -> str:
    team = state.team(waiting.team)
    title = (team.title or team.name) if team else waiting.team
    if victim.job.preemptible:
        this = _preemptible(victim, state)
        why = f"Team {title} needs these GPUs for a guaranteed job: this {this} will be stopped {WHEN}. {idle}".rstrip()
    else:
        why = f"A job of your team with a higher priority needs these GPUs: this one will be stopped {WHEN}."
    return f"{why} {lifecycle.what_follows(victim.job)}"


def _idle_elsewhere(waiting: Job, state: ClusterState) -> str:
    """Returns why GPUs that are idle elsewhere are not used; empty if the job could use none."""
    share = state.quota_by_team(waiting.request.gpu_type or "").get(waiting.team, {})
    if find_free_nodes(waiting, state, frozenset(state.node_infos).difference(share)) is not None:
        return _KEPT_TOGETHER
    return _KEPT_FOR_OTHERS if find_free_nodes(waiting, state, frozenset()) is not None else ""


_KEPT_TOGETHER = "That team's idle GPUs on other nodes stay together, for larger jobs of it."
_KEPT_FOR_OTHERS = (
    "Idle GPUs elsewhere are kept for other teams: a job that may not be preempted would be in their way there."
)


def engine_sentence(record: JobRecord, verdict: EngineEvicts) -> str:
    """Returns the owner's sentence about the end of a job that an engine has evicted."""
    return f"{verdict.sentence} {lifecycle.what_follows(record.job)}"


def _stop_text(record: JobRecord, state: ClusterState) -> str:
    verdict = state.verdicts.get(record.job.id)
    if isinstance(verdict, EngineEvicts):
        return engine_sentence(record, verdict)
    if record.job.preemptible:
        why = f"This {_preemptible(record, state)} was stopped after notice, because a team needed its GPUs back"
    else:
        why = "This job was stopped after notice, for one of your team with a higher priority"
    return f"{why}. {lifecycle.what_follows(record.job)}"


def _preemptible(record: JobRecord, state: ClusterState) -> str:
    """Returns what a preemptible job is called, with the reason if its owner had not requested that."""
    if record.demote_at is None:
        return "preemptible job"
    return f"job, which is preemptible since your {_lost(record.job, state)},"


def _lost(job: Job, state: ClusterState) -> str:
    """Returns why the team's quota is not enough for the job any more."""
    return "team's quota was lowered" if state.team(job.team) else f"team “{job.team}” was removed"


@dataclass(slots=True)
class Preemptor:
    """A controller that reconciles the preemptions of one store."""

    store: JobStore

    def due(self) -> list[str]:
        """Returns a key if something has changed since the last time, or a notice has expired.

        A pass over the queue that is due comes first: it may need victims that would be spared otherwise.
        """
        if self.store.capacity_changed.is_set():
            return []
        memo = self.store.cluster_state.memo
        if _REVIEWED not in memo:
            return ["preemptions"]
        until: datetime | None = memo[_REVIEWED]
        return ["preemptions"] if until is not None and until <= self.store.now() else []

    async def reconcile(self, _: str) -> float:
        await self.store.transact(reconcile_preemptions)
        return _EVERY_SECONDS
