"""A request for an approval of a job. PURE.

Rules:

* A job has at most one pending request of a kind, and only while it is *pending-approval*: the transition that ends
  this state ends the requests in the same transaction (`Transaction.write`).
* A request is decided once, and never changes after that. A changed job makes a new request.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from dlspawner.core.job import Job
from dlspawner.core.scheduling.limits import ApprovalKind, RequiredApproval

LONGEST_REASON = 500


class ApprovalState(Enum):
    """The state of a request; the values are those of REST, logs and the database."""

    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"  # no decision is needed any more: cancelled, changed, or not needed now


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """``what`` is requested and ``why`` that needs an approval, as of the request.

    ``by``: the approver of a decision ``at`` that time, with this ``reason``; of a withdrawn request the event's
    reason.
    """

    id: str
    job: str
    kind: ApprovalKind
    user: str
    server: str
    team: str
    gpu_type: str | None
    gpus: int  # milli-GPUs
    what: str
    why: str
    requested: datetime
    standing: ApprovalState = ApprovalState.WAITING
    at: datetime | None = None
    by: str = ""
    reason: str = ""

    @property
    def is_pending(self) -> bool:
        return self.standing is ApprovalState.WAITING


@dataclass(frozen=True, slots=True)
class Decision:
    approved: bool
    by: str
    reason: str = ""


def new_request(job: Job, need: RequiredApproval, now: datetime) -> ApprovalRequest:
    return ApprovalRequest(
        id=secrets.token_hex(8),
        job=job.id,
        kind=need.kind,
        user=job.user,
        server=job.server,
        team=job.team,
        gpu_type=job.request.gpu_type,
        gpus=job.request.gpus,
        what=need.what,
        why=need.why,
        requested=now,
    )


def withdraw_requests(requests: Iterable[ApprovalRequest], now: datetime, why: str) -> tuple[ApprovalRequest, ...]:
    """Returns the pending ones of these requests as withdrawn."""
    return tuple(
        replace(one, standing=ApprovalState.WITHDRAWN, at=now, reason=why) for one in requests if one.is_pending
    )
