"""The turns of approvals: a job asks, somebody approves or denies, and what has become needless is withdrawn.

`settle` puts a job that waits where it belongs: to those that wait for an approval as long as it needs one, to the
queue otherwise. It is done whenever one is asked for, and in every pass over the queue for all that wait: files are
changed, and what somebody's other jobs hold comes and goes. Requests are on the disk with the state of their job, or
neither is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from dlspawner.core import limits
from dlspawner.core.approval import ApprovalKind, RequiredApproval
from dlspawner.core.jobs import Job, JobState
from dlspawner.manager import hopeless, notices
from dlspawner.manager.approval import words
from dlspawner.manager.approvals import (
    LONGEST_REASON,
    ApprovalRequest,
    ApprovalState,
    Decision,
    new_request,
    withdraw_requests,
)
from dlspawner.manager.book import Transaction
from dlspawner.manager.notices import Recipient, clean
from dlspawner.manager.records import JobRecord, as_ended, as_queued

ASKED, NOT_NEEDED = "approval", "approval-not-needed"  # events; the others are a standing's value
log = logging.getLogger("dlspawner.manager")


def reevaluate_all(turn: Transaction) -> None:
    """Everything that waits is where it belongs, and nobody reads for ever that something was denied."""
    capped = {team.name for team in turn.cluster_state.teams.teams if team.user_caps.soft is not None}
    for name in tuple(turn.store.pending.values()):
        record = turn.record(name)
        if record is not None and _may_move(record.job, capped):
            reevaluate(turn, record)
    for notice in turn.store.notices.overdue(notices.NoticeKind.DENIED, turn.now):
        notices.withdraw(turn, notice.job, notices.NoticeKind.DENIED)


def _may_move(job: Job, capped: Collection[str]) -> bool:
    """A first look at a job that waits, for thousands wait: most are of teams that cap nobody."""
    if job.state is JobState.QUEUED:
        return job.special is not None or job.team in capped
    return job.state is JobState.PENDING_APPROVAL


def reevaluate(turn: Transaction, record: JobRecord) -> JobRecord:
    """One job that waits, or is new; the record as it is then."""
    needs = limits.missing_approvals(record.job, turn.cluster_state)
    if not needs and record.job.state is not JobState.PENDING_APPROVAL:
        return record
    known = turn.store.requests.get(record.job.id, ())
    if not needs:
        record = as_queued(record)
        turn.write(record, NOT_NEEDED)
    elif {need.kind for need in needs} != {one.kind for one in known if one.is_pending}:
        record = as_queued(record, JobState.PENDING_APPROVAL)
        _ask(turn, record, needs, known)
    else:
        return record
    hopeless.tell_one(turn, record.job)
    return record


def decide(turn: Transaction, request: ApprovalRequest, word: Decision) -> bool:
    """Somebody's word about it; False when it was decided already, or nobody asks for it any more."""
    waits = turn.store.requests.get(request.job, ())
    record = turn.record(request.job)
    if record is None or all(one.id != request.id for one in waits):
        return False
    standing = ApprovalState.APPROVED if word.approved else ApprovalState.DENIED
    said = replace(request, standing=standing, at=turn.now, by=word.by, reason=clean(word.reason, LONGEST_REASON))
    if word.approved:
        _approve(turn, record, said, more=len(waits) > 1)
    else:
        turn.write(as_ended(record), standing.value, words.decision_sentence(said), (said,))
        notices.post(turn, record.job, notices.NoticeKind.DENIED, words.denied_sentence(said), cause=said.id)
    log.info(
        "approval kind=%s team=%s job=%s user=%s gpus=%g decision=%s by=%s",
        *(said.kind.value, said.team, said.job, said.user, said.gpus / 1000, standing.value, said.by),
    )
    return True


def _approve(turn: Transaction, record: JobRecord, said: ApprovalRequest, *, more: bool) -> None:
    """``more``: the job waits for another word besides."""
    job = _granted(record.job, said.kind)
    record = as_queued(replace(record, job=job), JobState.PENDING_APPROVAL if more else JobState.QUEUED)
    turn.write(record, ApprovalState.APPROVED.value, words.decision_sentence(said), (said,))
    if not more:
        notices.post(turn, record.job, notices.NoticeKind.APPROVED, words.approved_sentence(said), cause=said.id)
        turn.store.capacity_changed.set()


def forget_denial(turn: Transaction, user: str, server: str) -> None:
    """The person asks for this server again."""
    for notice in turn.store.notices.read(Recipient(user, server), turn.now):
        if notice.kind is notices.NoticeKind.DENIED and notice.server == server:
            notices.withdraw(turn, notice.job, notices.NoticeKind.DENIED)


def _ask(
    turn: Transaction, record: JobRecord, needs: Sequence[RequiredApproval], known: Sequence[ApprovalRequest]
) -> None:
    """The job waits for these from now on; what waits already is not asked for again."""
    wanted, open_ = {need.kind for need in needs}, {one.kind for one in known}
    new = tuple(new_request(record.job, need, turn.now) for need in needs if need.kind not in open_)
    old = withdraw_requests((one for one in known if one.kind not in wanted), turn.now, NOT_NEEDED)
    turn.write(record, ASKED, ",".join(sorted(kind.value for kind in wanted)), (*new, *old))


def _granted(job: Job, kind: ApprovalKind) -> Job:
    """The job with what was approved."""
    match kind:
        case ApprovalKind.SOFT_CAP:
            return replace(job, approved=True)
        case ApprovalKind.SPECIAL:
            return replace(job, special=None if job.special is None else replace(job.special, approved=True))
