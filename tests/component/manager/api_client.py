"""Teams with soft caps, and jobs that wait for an approval."""

from __future__ import annotations

from dlspawner.manager.admission import approvals
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.approvals import ApprovalQuery
from dlspawner.manager.model.approval_request import ApprovalRequest, Decision
from tests.component.manager.manager_harness import Office, settled
from tests.component.manager.queue_helpers import service

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}, user_caps: {soft: %s, hard: %s}, admins: [vera, victor]}
"""


def set_caps(office: Office, soft: int | str = 2, hard: int | str = 6) -> None:
    (office.folder / "teams.yaml").write_text(TEAMS % (soft, hard))


def asked(acting: LeaderElector, question: AdmissionRequest) -> ApprovalRequest | None:
    """The undecided request of a job."""
    found = service(acting).store.requests.get(question.job, ())
    assert len(found) < 2
    return found[0] if found else None


async def decides(
    acting: LeaderElector, request: ApprovalRequest | None, *, yes: bool = True, by: str = "vera", why: str = ""
) -> bool:
    """Whether this decision counted."""
    assert request is not None
    return await service(acting).store.transact(lambda turn: approvals.decide(turn, request, Decision(yes, by, why)))


async def written(acting: LeaderElector, question: AdmissionRequest) -> list[ApprovalRequest]:
    """All requests of a job in the database, the newest first."""
    await settled(acting)
    return await acting.ledger.requests(ApprovalQuery(job=question.job))


async def standings(acting: LeaderElector, question: AdmissionRequest) -> list[str]:
    return [one.standing.value for one in await written(acting, question)]
