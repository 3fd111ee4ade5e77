"""REST resources of approvals, under /services/jobs/api/: ApproveJob.

GET   approvals             those that the caller may see, newest first; ?mine=decide or ?mine=asked POST
jobs/{id}/approve     {"reason"}: the job may wait for its turn POST  jobs/{id}/deny        {"reason"}: the job ends

People see their own requests, admins those of their teams, administrators of the Hub all; what else there is is 404. A
viewer without the right to decide a visible request is answered 403 with a sentence, what was decided already 409 with
one: a request is decided once. ``request`` in the body, an id that was read before, makes sure that nothing else was
asked for meanwhile; without it the word is about what is asked for now.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from dlspawner.core.scheduling.limits import ApprovalKind
from dlspawner.manager.admission import approvals
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.approvals import ApprovalQuery
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.http.api import base
from dlspawner.manager.http.api.base import NO_JOB, JobApiHandler, as_name, leader_of
from dlspawner.manager.http.api.models import DecisionBody
from dlspawner.manager.http.handlers import NOT_YET, HttpProblem, ManagerContext, admission_of
from dlspawner.manager.model.access import Viewer, actor_name
from dlspawner.manager.model.approval_request import ApprovalRequest, ApprovalState, Decision, as_json
from dlspawner.manager.model.job_history import JobCursor

Value = TypeVar("Value", bound=Enum)

SEVERAL = "This job waits for several approvals: say which one as “request”, the id of one of them."
PARAMETERS = ("mine", "state", "kind", "team", "user", "job", "limit", "cursor")


def visible_requests(viewer: Viewer, **more: Any) -> ApprovalQuery:
    """Returns the requests that the viewer may see."""
    return ApprovalQuery(**more) if viewer.all else ApprovalQuery(user=viewer.name, teams=viewer.teams, **more)


def requests_to_decide(desk: AdmissionService, viewer: Viewer) -> list[ApprovalRequest]:
    """Returns the pending requests that this viewer may decide, oldest first."""
    found = [one for some in desk.store.requests.values() for one in some if approvals.may_decide(viewer, one) is None]
    return sorted(found, key=lambda one: (one.requested, one.id))


async def requests_of(manager: ManagerContext, viewer: Viewer, job: str, request: str = "") -> ApprovalRequest:
    """Returns the pending requests of this job if the viewer may decide them; raises HttpProblem otherwise."""
    acting, desk = leader_of(manager), admission_of(manager)
    waits = desk.store.requests.get(job, ())
    seen = [one for one in waits if viewer.reaches(one.user, one.team)]
    chosen = [one for one in seen if request in {"", one.id}]
    if not chosen:
        raise await _not_waiting(acting, desk, viewer, job, request)
    refusals = [approvals.may_decide(viewer, one) for one in chosen]
    mine = [one for one, no in zip(chosen, refusals, strict=True) if no is None]
    if not mine:
        raise HttpProblem(403, str(refusals[0]))
    if len(mine) > 1:
        raise HttpProblem(409, SEVERAL)
    return mine[0]


async def decide(manager: ManagerContext, viewer: Viewer, request: ApprovalRequest, word: Decision) -> ApprovalRequest:
    """Decides a request for a caller with that right: returns the request after it; 409 if it was decided before."""
    acting, desk = leader_of(manager), admission_of(manager)
    try:
        counted = await desk.store.transact(lambda turn: approvals.decide(turn, request, word))
    except NotLeader:
        raise HttpProblem(503, NOT_YET) from None
    if not counted:
        raise await _not_waiting(acting, desk, viewer, request.job, request.id)
    found = await acting.ledger.requests(ApprovalQuery(job=request.job))
    return next(one for one in found if one.id == request.id)


async def _not_waiting(
    acting: LeaderElector, desk: AdmissionService, viewer: Viewer, job: str, request: str
) -> HttpProblem:
    """Why there is nothing to decide, as far as this viewer may know."""
    try:
        await desk.store.transact(lambda _: None)  # everything in the job store is in the database after that
    except NotLeader:
        raise HttpProblem(503, NOT_YET) from None
    found = await acting.ledger.requests(visible_requests(viewer, job=job, limit=base.MOST))
    known = next((one for one in found if request in {"", one.id}), None)
    if known is not None:
        changed = known.standing is ApprovalState.WITHDRAWN and any(one.is_pending for one in found)
        return HttpProblem(409, approvals.CHANGED if changed else approvals.outcome_sentence(known))
    if await acting.ledger.visible_job(viewer, job) is None:
        return HttpProblem(404, NO_JOB)
    others = bool(request) and any(one.is_pending for one in found)
    return HttpProblem(409, approvals.CHANGED if others else approvals.NOT_WAITING)


class ApprovalsHandler(JobApiHandler):
    """Lists open and decided requests."""

    async def get(self) -> None:
        viewer, desk = self.sees(), self.admission
        limit, after = self._limit(), read_cursor(self.get_query_argument("cursor", ""))
        mine = self.get_query_argument("mine", "")
        if mine not in {"", "decide", "asked"}:
            raise HttpProblem(422, "mine is “decide”, what waits for your word, or “asked”, your own.")
        wanted = visible_requests(
            viewer,
            standings=self._several("state", ApprovalState),
            kinds=self._several("kind", ApprovalKind),
            team=self._name("team"),
            of=self._name("user"),
            job=self._name("job"),
            after=after,
            limit=limit + 1,
        )
        if mine == "decide":
            found = [one for one in reversed(requests_to_decide(desk, viewer)) if _is(one, wanted)][: limit + 1]
        elif mine and wanted.of not in {"", viewer.name}:
            found = []  # the caller's own requests, to other approvers
        else:
            found = await self.leader.ledger.requests(replace(wanted, of=viewer.name) if mine else wanted)
        page, more = found[:limit], len(found) > limit
        items = [shown(one, viewer) for one in page]
        self.reply({"items": items, "next": cursor(page[-1]) if more else None})

    def _limit(self) -> int:
        given = self.given()
        try:
            base.check_parameters(given, *PARAMETERS)
            return base.read_limit(given)
        except base.InvalidQuery as problem:
            raise HttpProblem(422, str(problem)) from None

    def _name(self, argument: str) -> str:
        given = self.get_query_argument(argument, "", strip=False)
        name = as_name(given)
        if given and not name:
            raise HttpProblem(422, f"{argument} is no name.")
        return name

    def _several(self, argument: str, kind: type[Value]) -> tuple[Value, ...]:
        known = {str(one.value): one for one in kind}
        given = self.get_query_arguments(argument)
        if not set(given) <= set(known):
            raise HttpProblem(422, f"{argument} is one of {', '.join(known)}.")
        return tuple(known[one] for one in given)


def _is(one: ApprovalRequest, wanted: ApprovalQuery) -> bool:
    """True if a request matches the query."""
    return (
        (not wanted.standings or one.standing in wanted.standings)
        and (not wanted.kinds or one.kind in wanted.kinds)
        and wanted.team in {"", one.team}
        and wanted.of in {"", one.user}
        and wanted.job in {"", one.job}
        and (wanted.after is None or (one.requested, one.id) < wanted.after)
    )


class _DecisionHandler(JobApiHandler):
    yes = True

    async def post(self, job: str) -> None:
        who, viewer = self.check_parameters(), self.acts()
        body = self.read_body(DecisionBody) if self.request.body else DecisionBody()
        request = await requests_of(self.manager, viewer, job, body.request)
        found = await decide(self.manager, viewer, request, Decision(self.yes, actor_name(who), body.reason))
        self.reply(shown(found, viewer))


class ApproveHandler(_DecisionHandler):
    """It may wait for its turn."""


class DenyHandler(_DecisionHandler):
    """It ends."""

    yes = False


def shown(request: ApprovalRequest, viewer: Viewer) -> dict[str, object]:
    """A request as a program of this viewer's reads it."""
    may = request.is_pending and approvals.may_decide(viewer, request) is None
    return {**as_json(request), "may_decide": may}


def cursor(last: ApprovalRequest) -> str:
    """Returns the cursor of the next page."""
    return base.cursor(JobCursor(last.requested, last.id))


def read_cursor(text: str) -> tuple[datetime, str] | None:
    """The place that a cursor names; 422 for what is none."""
    try:
        place = base.read_after({"cursor": [text]})
    except base.InvalidQuery as problem:
        raise HttpProblem(422, str(problem)) from None
    return None if place is None else (place.submitted, place.job)
