"""Approvals: requests are approved, denied, or withdrawn when they are not needed any more; and their texts.

`lifecycle.reevaluate` moves a pending job between *pending-approval* and *queued*. It runs for every admission request,
and in every scheduling cycle for all pending jobs, because the configuration changes, and so does what the user's other
jobs hold. Requests are written with the state of their job in one transaction.

The notice to approvers (`pending_notice`) is made when it is read, from the pending requests and their present
approvers, so that none has to be withdrawn after a decision or a change of `teams.yaml`. Administrators of
the Hub are notified of requests that no other user may decide.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import assert_never

from dlspawner.core.config import Team, TeamsConfig
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.limits import ApprovalKind, approver_sentence, approvers, holding_text
from dlspawner.core.units import counted, shown
from dlspawner.manager.model import notice as notice_model
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.approval_request import LONGEST_REASON, ApprovalRequest, ApprovalState, Decision
from dlspawner.manager.model.notice import Notice, Recipient, clean
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import job_store, lifecycle, notify
from dlspawner.manager.state.job_store import JobStore, Transaction

log = logging.getLogger("dlspawner.manager")


def reevaluate_all(transaction: Transaction) -> None:
    """Reevaluates every pending job, and withdraws notices of denials after some days."""
    capped = {team.name for team in transaction.cluster_state.teams.teams if team.user_caps.soft is not None}
    for name in tuple(transaction.store.pending.values()):
        record = transaction.record(name)
        if record is not None and _may_move(record.job, capped):
            lifecycle.reevaluate(transaction, record)
    for notice in transaction.store.notices.overdue(notice_model.NoticeKind.DENIED, transaction.now):
        job_store.withdraw(transaction, notice.job, notice_model.NoticeKind.DENIED)


def _may_move(job: Job, capped: Collection[str]) -> bool:
    """A cheap check of a pending job, for thousands may be pending: most teams have no soft cap."""
    if job.state is JobState.QUEUED:
        return job.special is not None or job.team in capped
    return job.state is JobState.PENDING_APPROVAL


def decide(transaction: Transaction, request: ApprovalRequest, word: Decision) -> bool:
    """Decides a request; False when it was decided or withdrawn already."""
    waits = transaction.store.requests.get(request.job, ())
    record = transaction.record(request.job)
    if record is None or all(one.id != request.id for one in waits):
        return False
    standing = ApprovalState.APPROVED if word.approved else ApprovalState.DENIED
    said = replace(
        request, standing=standing, at=transaction.now, by=word.by, reason=clean(word.reason, LONGEST_REASON)
    )
    by_whom = decision_sentence(said)
    if word.approved:
        _approve(transaction, record, said, by_whom, more=len(waits) > 1)
    else:
        lifecycle.deny(transaction, record, said, by_whom)
        text = f"Denied: {said.what}. The request has ended. It was denied {_ended(by_whom)}"
        notify.post(transaction, record.job, notice_model.NoticeKind.DENIED, text, cause=said.id)
    log.info(
        "approval kind=%s team=%s job=%s user=%s gpus=%g decision=%s by=%s",
        *(said.kind.value, said.team, said.job, said.user, said.gpus / 1000, standing.value, said.by),
    )
    return True


def _approve(transaction: Transaction, record: JobRecord, said: ApprovalRequest, by_whom: str, *, more: bool) -> None:
    """``more``: another request of the job is pending."""
    job = _granted(record.job, said.kind)
    record = lifecycle.approve(transaction, replace(record, job=job), said, by_whom, more=more)
    if not more:
        text = f"Approved: {said.what}. It was approved {_ended(by_whom)}"
        notify.post(transaction, record.job, notice_model.NoticeKind.APPROVED, text, cause=said.id)


def forget_denial(transaction: Transaction, user: str, server: str) -> None:
    """Withdraws the notice of a denial when the user requests the server again."""
    for notice in transaction.store.notices.read(Recipient(user, server), transaction.now):
        if notice.kind is notice_model.NoticeKind.DENIED and notice.server == server:
            job_store.withdraw(transaction, notice.job, notice_model.NoticeKind.DENIED)


def _granted(job: Job, kind: ApprovalKind) -> Job:
    match kind:
        case ApprovalKind.SOFT_CAP:
            return replace(job, approved=True)
        case ApprovalKind.SPECIAL:
            return replace(job, special=None if job.special is None else replace(job.special, approved=True))


_ID = "0" * 16  # the id of no posted notice


def pending_notice(store: JobStore, name: str, *, admin: bool) -> tuple[Notice, ...]:
    """Returns the notice of requests that this user may decide, if there are any."""
    teams = store.cluster_state.teams
    found = [one for some in store.requests.values() for one in some if _concerns(one, teams, name, admin=admin)]
    if not found:
        return ()
    posted = min(one.requested for one in found)
    return (Notice(_ID, notice_model.NoticeKind.APPROVALS, "", your_decision_sentence(len(found)), posted),)


def _concerns(request: ApprovalRequest, teams: TeamsConfig, name: str, *, admin: bool) -> bool:
    if request.kind is ApprovalKind.SPECIAL:
        return admin
    able = approvers(teams.paying_team(request.team) or Team(request.team), request.user)
    return name in able or (admin and not able)


NOT_WAITING = "This job waits for no approval."
OWN = "Your own request is for another admin of the team to decide, or for an administrator of the Hub."
ONLY_HUB = "Only an administrator of the Hub decides about special permissions."
NOT_ADMIN = "Only an admin of team {team} decides about this, or an administrator of the Hub."
CHANGED = "It has been changed since you looked: look again at what is asked for now."


def may_decide(viewer: Viewer, request: ApprovalRequest) -> str | None:
    """Returns ``None`` if the viewer may decide the request, else the sentence why not.

    Administrators of the Hub decide every request; a service that may act on all jobs decides no special permission.
    """
    if viewer.all and (viewer.name or request.kind is not ApprovalKind.SPECIAL):
        return None
    match request.kind:
        case ApprovalKind.SPECIAL:
            return ONLY_HUB
        case ApprovalKind.SOFT_CAP:
            if request.user == viewer.name:
                return OWN
            return None if viewer.administers(request.team) else NOT_ADMIN.format(team=request.team)
        case _:
            assert_never(request.kind)


def decision_sentence(request: ApprovalRequest) -> str:
    """Returns the approver and the reason: ``by vera: The deadline is near.``"""
    return f"by {request.by}" + (f": {request.reason}" if request.reason else "")


def outcome_sentence(request: ApprovalRequest) -> str:
    """Returns the outcome of a request, for another approver."""
    match request.standing:
        case ApprovalState.WAITING:
            return "It waits."
        case ApprovalState.APPROVED | ApprovalState.DENIED:
            return f"It was {request.standing.value} already, {_ended(decision_sentence(request))}"
        case ApprovalState.WITHDRAWN:
            return "It was withdrawn, so there is nothing to decide."
        case _:
            assert_never(request.standing)


def pending_sentence(request: ApprovalRequest, team: Team) -> str:
    match request.kind:
        case ApprovalKind.SPECIAL:
            return ONLY_HUB
        case ApprovalKind.SOFT_CAP:
            return approver_sentence(team, request.user)
        case _:
            assert_never(request.kind)


def usage_sentence(request: ApprovalRequest, state: ClusterState) -> str:
    """Returns the usage of the user and the team, for the approver; without what ``why`` says already."""
    team = state.team(request.team)
    title, kind = (team.title or team.name) if team else request.team, request.gpu_type
    held = state.held_by(request.team, request.user) - state.reserved_by_user(request.team, request.user)
    holds = f"{request.user} holds {counted(held)} for team {title} now"
    if kind is None:
        return f"{holds}."
    used = state.guaranteed(request.team, kind) - state.reserved(request.team, kind)
    borrowed = state.borrowed(request.team, kind)
    lent = f" and has borrowed {shown(borrowed)}" if borrowed else ""
    quota = state.quota(request.team, kind)
    uses = f"team uses {shown(used)} of its {counted(quota)} of type {kind}{lent}."
    return f"The {uses}" if request.why.endswith(f"; {holding_text(request.user, held)}.") else f"{holds}; the {uses}"


def your_decision_sentence(count: int) -> str:
    return "1 request waits for your approval." if count == 1 else f"{count} requests wait for your approval."


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
