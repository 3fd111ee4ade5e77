"""A request: one word that a job waits for, or has waited for. PURE.

Rules:

* A job has at most one request of a kind that waits, and only while it is *waiting-approval*: whatever ends that state
  ends its requests in the same transaction (`book.Turn.write`).
* A request is decided once, and never changes after that. Who asks for something else makes another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from dlspawner.core.approval import Kind, Need
from dlspawner.core.jobs import Job
from dlspawner.core.json_values import amount, time

LONGEST_REASON = 500


class Standing(Enum):
    """Where a request stands; the values are what REST, logs and the database say."""

    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"  # nobody has to decide it any more: cancelled, changed, or not needed as things are now


@dataclass(frozen=True, slots=True)
class Request:
    """``what`` is asked for and ``why`` that needs a word, as it was when it was asked.

    ``by`` is who decided it ``at`` that time, and ``reason`` what they said; of one that was withdrawn a word for it.
    """

    id: str
    job: str
    kind: Kind
    user: str
    server: str
    team: str
    gpu_type: str | None
    gpus: int  # milli-GPUs
    what: str
    why: str
    asked: datetime
    standing: Standing = Standing.WAITING
    at: datetime | None = None
    by: str = ""
    reason: str = ""

    @property
    def waits(self) -> bool:
        return self.standing is Standing.WAITING


@dataclass(frozen=True, slots=True)
class Word:
    """What somebody says to a request."""

    yes: bool
    by: str
    reason: str = ""


def made(job: Job, need: Need, now: datetime) -> Request:
    """A job asks for this."""
    return Request(
        id=secrets.token_hex(8),
        job=job.id,
        kind=need.kind,
        user=job.user,
        server=job.server,
        team=job.team,
        gpu_type=job.charge.gpu_type,
        gpus=job.charge.gpus,
        what=need.what,
        why=need.why,
        asked=now,
    )


def withdrawn(requests: Iterable[Request], now: datetime, why: str) -> tuple[Request, ...]:
    """Those of them that wait, as they are when nobody has to decide them any more."""
    return tuple(replace(one, standing=Standing.WITHDRAWN, at=now, reason=why) for one in requests if one.waits)


def as_json(request: Request) -> dict[str, object]:
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
        "asked": time(request.asked),
        "state": request.standing.value,
        "decided": time(request.at),
        "by": request.by or None,
        "reason": request.reason,
    }
