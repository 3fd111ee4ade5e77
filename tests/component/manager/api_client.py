"""Teams with soft caps, and jobs that wait for an approval."""

from __future__ import annotations

from dlspawner.core.job import JobState
from dlspawner.manager.admission import approvals
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.db.approvals import ApprovalQuery
from dlspawner.manager.model.approval_request import ApprovalRequest, Decision
from tests.component.manager.manager_harness import Leader, ManagerHarness

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}, user_caps: {soft: %s, hard: %s}, admins: [vera, victor]}
"""


def set_caps(harness: ManagerHarness, soft: int | str = 2, hard: int | str = 6) -> None:
    (harness.folder / "teams.yaml").write_text(TEAMS % (soft, hard))


def asked(leader: Leader, request: AdmissionRequest) -> ApprovalRequest | None:
    """The undecided request of a job."""
    found = leader.service.store.requests.get(request.job, ())
    assert len(found) < 2
    return found[0] if found else None


async def wait_for_approval(leader: Leader, job: AdmissionRequest) -> ApprovalRequest:
    """Asks for the job, which waits for one approval."""
    answer = await leader.ask(job)
    assert (answer.decision, answer.reason) == ("wait", "approval"), answer
    assert leader.state(job) is JobState.PENDING_APPROVAL
    (request,) = leader.service.store.requests[job.job]
    return request


async def decides(
    leader: Leader, request: ApprovalRequest | None, *, yes: bool = True, by: str = "vera", why: str = ""
) -> bool:
    """Whether this decision counted."""
    assert request is not None
    return await leader.transact(approvals.decide, request, Decision(yes, by, why))


async def written(leader: Leader, request: AdmissionRequest) -> list[ApprovalRequest]:
    """All requests of a job in the database, the newest first."""
    await leader.settled()
    return await leader.repository.requests(ApprovalQuery(job=request.job))


async def standings(leader: Leader, request: AdmissionRequest) -> list[str]:
    return [one.standing.value for one in await written(leader, request)]
