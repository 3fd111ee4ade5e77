"""REST resources of approvals, under /services/jobs/api/: ApproveJob.

People see their own requests, admins those of their teams, administrators of the Hub all; what else there is is 404. A
viewer without the right to decide a visible request is answered 403 with a sentence, what was decided already 409 with
one: a request is decided once. ``request`` in the body, an id that was read before, makes sure that nothing else was
asked for meanwhile; without it the word is about what is asked for now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dlspawner.manager.admission import approvals
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.approvals import ApprovalQuery
from dlspawner.manager.http.api.base import NO_JOB, JobApiHandler, leader_of
from dlspawner.manager.http.api.models.requests import MAX_LIMIT, ApprovalsQuery, DecisionBody, write_cursor
from dlspawner.manager.http.api.models.responses import ApprovalModel, ListModel
from dlspawner.manager.http.handlers import HttpProblem, ManagerContext, admission_of
from dlspawner.manager.model.access import Viewer, actor_name
from dlspawner.manager.model.approval_request import ApprovalRequest, ApprovalState, Decision
from dlspawner.manager.model.job_history import JobCursor

SEVERAL = "This job waits for several approvals: say which one as “request”, the id of one of them."


def visible_requests(viewer: Viewer, **more: Any) -> ApprovalQuery:
    return ApprovalQuery(**more) if viewer.all else ApprovalQuery(user=viewer.name, teams=viewer.teams, **more)


async def requests_of(manager: ManagerContext, viewer: Viewer, job: str, request: str = "") -> ApprovalRequest:
    """Returns the one pending request of this job that the viewer may decide; raises HttpProblem otherwise."""
    leader, admission = leader_of(manager), admission_of(manager)
    waits = admission.store.requests.get(job, ())
    seen = [one for one in waits if viewer.reaches(one.user, one.team)]
    chosen = [one for one in seen if request in {"", one.id}]
    if not chosen:
        raise await _not_waiting(leader, admission, viewer, job, request)
    refusals = [approvals.may_decide(viewer, one) for one in chosen]
    mine = [one for one, no in zip(chosen, refusals, strict=True) if no is None]
    if not mine:
        raise HttpProblem(403, str(refusals[0]))
    if len(mine) > 1:
        raise HttpProblem(409, SEVERAL)
    return mine[0]


async def decide(manager: ManagerContext, viewer: Viewer, request: ApprovalRequest, word: Decision) -> ApprovalRequest:
    """Decides a request for a caller with that right: returns the request after it; 409 if it was decided before."""
    leader, admission = leader_of(manager), admission_of(manager)
    counted = await admission.store.transact(lambda transaction: approvals.decide(transaction, request, word))
    if not counted:
        raise await _not_waiting(leader, admission, viewer, request.job, request.id)
    found = await leader.repository.requests(ApprovalQuery(job=request.job))
    return next(one for one in found if one.id == request.id)


async def _not_waiting(
    leader: LeaderElector, admission: AdmissionService, viewer: Viewer, job: str, request: str
) -> HttpProblem:
    """Why there is nothing to decide, as far as this viewer may know."""
    await admission.store.transact(lambda _: None)  # everything in the job store is in the database after that
    found = await leader.repository.requests(visible_requests(viewer, job=job, limit=MAX_LIMIT))
    known = next((one for one in found if request in {"", one.id}), None)
    if known is not None:
        changed = known.standing is ApprovalState.WITHDRAWN and any(one.is_pending for one in found)
        return HttpProblem(409, approvals.CHANGED if changed else approvals.outcome_sentence(known))
    if await leader.repository.visible_job(viewer, job) is None:
        return HttpProblem(404, NO_JOB)
    others = bool(request) and any(one.is_pending for one in found)
    return HttpProblem(409, approvals.CHANGED if others else approvals.NOT_WAITING)


class ApprovalsHandler(JobApiHandler):
    async def get(self) -> None:
        viewer, query = self.sees(), self.read_query(ApprovalsQuery)
        limit, mine = query.limit, query.mine
        admission_of(self.manager)  # 503 on a Manager that does not lead
        wanted = visible_requests(
            viewer,
            standings=query.state,
            kinds=query.kind,
            team=query.team,
            of=query.user,
            job=query.job,
            after=query.cursor,
            limit=limit + 1,
        )
        if mine == "decide":
            every = replace(wanted, standings=wanted.standings or {ApprovalState.WAITING}, limit=None)
            seen = await self.leader.repository.requests(every)
            found = [one for one in seen if one.is_pending and approvals.may_decide(viewer, one) is None][: limit + 1]
        elif mine and wanted.of not in {"", viewer.name}:
            found = []  # the caller's own requests, to other approvers
        else:
            found = await self.leader.repository.requests(replace(wanted, of=viewer.name) if mine else wanted)
        page, more = found[:limit], len(found) > limit
        items = [shown(one, viewer) for one in page]
        self.reply(ListModel[ApprovalModel](items=items, next=cursor(page[-1]) if more else None))


class _DecisionHandler(JobApiHandler):
    yes = True

    async def post(self, job: str) -> None:
        who, viewer = self.caller, self.acts()
        body = self.read_body(DecisionBody) if self.request.body else DecisionBody()
        request = await requests_of(self.manager, viewer, job, body.request)
        found = await decide(self.manager, viewer, request, Decision(self.yes, actor_name(who), body.reason))
        self.reply(shown(found, viewer))


class ApproveHandler(_DecisionHandler):
    """It may wait for its turn."""


class DenyHandler(_DecisionHandler):
    yes = False


def shown(request: ApprovalRequest, viewer: Viewer) -> ApprovalModel:
    """A request as a program of this viewer's reads it."""
    may = request.is_pending and approvals.may_decide(viewer, request) is None
    return ApprovalModel.model_validate(request).model_copy(update={"may_decide": may})


def cursor(last: ApprovalRequest) -> str:
    return write_cursor(JobCursor(last.requested, last.id))
