"""Who may decide a request, and what people read about it. PURE."""

from __future__ import annotations

from typing import assert_never

from dlspawner.core.amounts import counted, shown
from dlspawner.core.approval import ApprovalKind, approver_sentence, holding_text
from dlspawner.core.model import Team
from dlspawner.core.world import ClusterState
from dlspawner.manager.access import Viewer
from dlspawner.manager.approvals import ApprovalRequest, ApprovalState

NOT_WAITING = "This job waits for no approval."
OWN = "Nobody approves or denies their own request: another admin of the team can, or an administrator of the Hub."
ONLY_HUB = "Only an administrator of the Hub decides about special permissions."
NOT_ADMIN = "Only an admin of team {team} decides about this, or an administrator of the Hub."
CHANGED = "It has been changed since you looked: look again at what is asked for now."


def may_decide(viewer: Viewer, request: ApprovalRequest) -> str | None:
    """``None`` for who may decide it; for everybody else a sentence. Administrators of the Hub decide everything.

    A service that may act on all jobs is nobody who could answer for a special permission.
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
    """Who has decided, and what they said: ``by vera: The deadline is near.``"""
    return f"by {request.by}" + (f": {request.reason}" if request.reason else "")


def outcome_sentence(request: ApprovalRequest) -> str:
    """What has become of a request, for somebody who would decide it, too."""
    match request.standing:
        case ApprovalState.WAITING:
            return "It waits."
        case ApprovalState.APPROVED | ApprovalState.DENIED:
            return f"It was {request.standing.value} already, {_ended(decision_sentence(request))}"
        case ApprovalState.WITHDRAWN:
            return "Nobody has to decide it any more: it was withdrawn."
        case _:
            assert_never(request.standing)


def approved_sentence(request: ApprovalRequest) -> str:
    """For its person: who approved it, and what they said. The job may run by the time this is read."""
    return f"Approved: {request.what}. It was approved {_ended(decision_sentence(request))}"


def denied_sentence(request: ApprovalRequest) -> str:
    """For its person: who denied it, and why."""
    return f"Denied: {request.what}. The request has ended. It was denied {_ended(decision_sentence(request))}"


def pending_sentence(request: ApprovalRequest, team: Team) -> str:
    """Who decides, for whoever can not."""
    match request.kind:
        case ApprovalKind.SPECIAL:
            return ONLY_HUB
        case ApprovalKind.SOFT_CAP:
            return approver_sentence(team, request.user)
        case _:
            assert_never(request.kind)


def usage_sentence(request: ApprovalRequest, world: ClusterState) -> str:
    """What the person and the team have now, for who decides; not what ``why`` says already."""
    team = world.team(request.team)
    title, kind = (team.title or team.name) if team else request.team, request.gpu_type
    held = world.held_by(request.team, request.user) - world.reserved_by_user(request.team, request.user)
    holds = f"{request.user} holds {counted(held)} for team {title} now"
    if kind is None:
        return f"{holds}."
    used = world.guaranteed(request.team, kind) - world.reserved(request.team, kind)
    borrowed = world.borrowed(request.team, kind)
    lent = f" and has borrowed {shown(borrowed)}" if borrowed else ""
    quota = world.quota(request.team, kind)
    uses = f"team uses {shown(used)} of its {counted(quota)} of type {kind}{lent}."
    return f"The {uses}" if request.why.endswith(f"; {holding_text(request.user, held)}.") else f"{holds}; the {uses}"


def your_decision_sentence(count: int) -> str:
    """For who can decide something."""
    return "1 request waits for your approval." if count == 1 else f"{count} requests wait for your approval."


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
