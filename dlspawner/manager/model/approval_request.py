"""A request: one word that a job waits for, or has waited for. PURE.

Rules:

* A job has at most one request of a kind that waits, and only while it is *pending-approval*: whatever ends that state
  ends its requests in the same transaction (`book.Turn.write`).
* A request is decided once, and never changes after that. Who asks for something else makes another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from dlspawner.core.job import Job
from dlspawner.core.scheduling.limits import ApprovalKind, RequiredApproval
from dlspawner.core.text import amount, time

LONGEST_REASON = 500


class ApprovalState(Enum):
    """Where a request stands; the values are what REST, logs and the database say."""

    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"  # nobody has to decide it any more: cancelled, changed, or not needed as things are now


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """``what`` is asked for and ``why`` that needs a word, as it was when it was asked.

    ``by`` is who decided it ``at`` that time, and ``reason`` what they said; of one that was withdrawn a word for it.
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
    """What somebody says to a request."""

    approved: bool
    by: str
    reason: str = ""


def new_request(job: Job, need: RequiredApproval, now: datetime) -> ApprovalRequest:
    """A job asks for this."""
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
    """Those of them that wait, as they are when nobody has to decide them any more."""
    return tuple(
        replace(one, standing=ApprovalState.WITHDRAWN, at=now, reason=why) for one in requests if one.is_pending
    )


def as_json(request: ApprovalRequest) -> dict[str, object]:
    """A request as programs read it."""
    return {
        "id": request.id,
        "job": request.job,
        "kind": request.kind.value,
        "user": request.user,
        "server": request.server,
        "team": request.team,
        "gpus": amount(request.gpus),
        "gpu_type": request.gpu_type,
        "what": request.what,
        "why": request.why,
        "asked": time(request.requested),
        "state": request.standing.value,
        "decided": time(request.at),
        "by": request.by or None,
        "reason": request.reason,
    }
