"""The page of approvals: requests to decide, the state of the viewer's own requests, and decided requests.

    GET   approvals                  the page; ?cursor= for what was decided earlier
    POST  approvals/{id}/approve     the buttons, with a reason; answered by a redirect to the page, which says what was
    POST  approvals/{id}/deny        done, or by the page with what is wrong

It is for all users: without requests or a team to administer it says that there are none.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlspawner.core.config import Team
from dlspawner.manager.admission import approvals as admission_approvals
from dlspawner.manager.http.api import approvals
from dlspawner.manager.http.api.base import page_path
from dlspawner.manager.http.api.models.requests import ApprovalsQuery
from dlspawner.manager.http.handlers import NOTHING_HERE, HttpProblem
from dlspawner.manager.http.portal.base import PortalPage, notices_for
from dlspawner.manager.model import notice as notice_model
from dlspawner.manager.model.access import AccessRight, Viewer
from dlspawner.manager.model.approval_request import LONGEST_REASON, ApprovalRequest, ApprovalState, Decision

_SHOWN = 100  # pending requests; of more the number is shown
_DECIDED = 50
_OVER = tuple(one for one in ApprovalState if one is not ApprovalState.WAITING)


@dataclass(frozen=True, slots=True)
class ShownRequest:
    """A request as the page shows it; ``more`` is what the viewer needs to know now."""

    request: ApprovalRequest
    team: str
    page: str  # of the server's request
    more: str = ""


class _ApprovalsPageBase(PortalPage):
    async def show_approvals(self, status: int = 200, problem: str = "", typed: str = "", at: str = "") -> None:
        """The page; ``typed`` is the reason that was written ``at`` a request, when that could not be decided."""
        self.person()
        viewer, leader, admission = self.viewer(AccessRight.SEE), self.leader(), self.admission()
        waits = sorted(
            (one for some in admission.store.requests.values() for one in some if viewer.reaches(one.user, one.team)),
            key=lambda one: (one.requested, one.id),
        )
        mine = [one for one in waits if admission_approvals.may_decide(viewer, one) is None]
        others = [one for one in waits if admission_approvals.may_decide(viewer, one) is not None]
        after = self.read_query(ApprovalsQuery).cursor
        decided = await leader.repository.requests(
            approvals.visible_requests(viewer, standings=_OVER, after=after, limit=_DECIDED + 1)
        )
        self.show_page(
            "approvals.html",
            status,
            decides=viewer.all or bool(viewer.teams),
            mine=[
                self._shown(one, admission_approvals.usage_sentence(one, admission.store.cluster_state))
                for one in mine[:_SHOWN]
            ],
            mine_more=max(0, len(mine) - _SHOWN),
            others=[
                self._shown(one, admission_approvals.pending_sentence(one, self._team(one))) for one in others[:_SHOWN]
            ],
            others_more=max(0, len(others) - _SHOWN),
            decided=[self._shown(one) for one in decided[:_DECIDED]],
            older=approvals.cursor(decided[_DECIDED - 1]) if len(decided) > _DECIDED else "",
            newer=after is not None,
            done=await self._done(viewer),
            problem=problem,
            path="" if self.request.method == "GET" else f"{self.manager.service.prefix}approvals",
            typed=typed,
            at=at,
            longest=LONGEST_REASON,
            page=f"{self.manager.service.prefix}approvals",
            told=notices_for(self, besides=frozenset({notice_model.NoticeKind.APPROVALS})),
        )

    async def _done(self, viewer: Viewer) -> ApprovalRequest | None:
        """Returns the request that the user has just decided; None without one."""
        id_ = self.get_query_argument("done", "")
        if not id_:
            return None
        found = await self.leader().repository.requests(approvals.visible_requests(viewer, id=id_))
        return next((one for one in found if one.by == viewer.name), None)

    def _shown(self, request: ApprovalRequest, more: str = "") -> ShownRequest:
        team = self._team(request)
        page = page_path(self.manager.service.prefix, request.user, request.server)
        return ShownRequest(request, team.title or team.name, page, more)

    def _team(self, request: ApprovalRequest) -> Team:
        return self.admission().store.cluster_state.team(request.team) or Team(request.team)


class ApprovalsPage(_ApprovalsPageBase):
    async def get(self) -> None:
        await self.show_approvals()


class _DecisionButton(_ApprovalsPageBase):
    yes = True

    async def get(self, id_: str) -> None:
        self.redirect(f"{self.manager.service.prefix}approvals")

    async def post(self, id_: str) -> None:
        self.person()
        viewer, reason = self.viewer(AccessRight.ACT), self.get_body_argument("reason", "")[:LONGEST_REASON]
        try:
            found = await self.leader().repository.requests(approvals.visible_requests(viewer, id=id_))
            if not found:
                raise HttpProblem(404, NOTHING_HERE)
            request = await approvals.requests_of(self.manager, viewer, found[0].job, id_)
            await approvals.decide(self.manager, viewer, request, Decision(self.yes, viewer.name, reason))
        except HttpProblem as no:
            if no.status_code not in {403, 409}:
                raise
            await self.show_approvals(no.status_code, problem=no.detail, typed=reason, at=id_)
            return
        self.redirect(f"{self.manager.service.prefix}approvals?done={id_}", status=303)


class ApproveButton(_DecisionButton):
    """It may wait for its turn."""


class DenyButton(_DecisionButton):
    yes = False
