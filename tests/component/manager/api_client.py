"""Teams with soft caps, and jobs that wait for an approval."""

from __future__ import annotations

from dlspawner.manager.admission import approvals
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.db.approvals import ApprovalQuery
from dlspawner.manager.model.approval_request import ApprovalRequest, Decision
from tests.component.manager.manager_harness import Acting, Office

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}, user_caps: {soft: %s, hard: %s}, admins: [vera, victor]}
"""


def set_caps(office: Office, soft: int | str = 2, hard: int | str = 6) -> None:
    (office.folder / "teams.yaml").write_text(TEAMS % (soft, hard))


def asked(acting: Acting, question: AdmissionRequest) -> ApprovalRequest | None:
    """The undecided request of a job."""
    found = acting.service.store.requests.get(question.job, ())
    assert len(found) < 2
    return found[0] if found else None


async def decides(
    acting: Acting, request: ApprovalRequest | None, *, yes: bool = True, by: str = "vera", why: str = ""
) -> bool:
    """Whether this decision counted."""
    assert request is not None
    return await acting.service.store.transact(lambda turn: approvals.decide(turn, request, Decision(yes, by, why)))


async def written(acting: Acting, question: AdmissionRequest) -> list[ApprovalRequest]:
    """All requests of a job in the database, the newest first."""
    await acting.settled()
    return await acting.repository.requests(ApprovalQuery(job=question.job))


async def standings(acting: Acting, question: AdmissionRequest) -> list[str]:
    return [one.standing.value for one in await written(acting, question)]
