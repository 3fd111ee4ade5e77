"""That something waits for somebody's word, as a notice among theirs.

It is made when they look, from what waits now and who may decide it now, so nothing has to be taken back when somebody
has decided it, or `teams.yaml` names other admins. Administrators of the Hub are told of what nobody else may decide.
"""

from __future__ import annotations

from dlspawner.core.approval import ApprovalKind, approvers
from dlspawner.core.model import Team, TeamsConfig
from dlspawner.manager import notices
from dlspawner.manager.approval import words
from dlspawner.manager.approvals import ApprovalRequest
from dlspawner.manager.book import JobStore
from dlspawner.manager.notices import Notice

_ID = "0" * 16  # of no notice that was posted


def pending_notice(book: JobStore, name: str, *, admin: bool) -> tuple[Notice, ...]:
    """What this person is told, an administrator of the Hub or not: one notice, or none."""
    teams = book.cluster_state.teams
    found = [one for some in book.requests.values() for one in some if _concerns(one, teams, name, admin=admin)]
    if not found:
        return ()
    posted = min(one.requested for one in found)
    return (Notice(_ID, notices.NoticeKind.APPROVALS, "", words.your_decision_sentence(len(found)), posted),)


def _concerns(request: ApprovalRequest, teams: TeamsConfig, name: str, *, admin: bool) -> bool:
    if request.kind is ApprovalKind.SPECIAL:
        return admin
    able = approvers(teams.paying_team(request.team) or Team(request.team), request.user)
    return name in able or (admin and not able)
