"""Notices to users and administrators, and their recipients. PURE."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

LONGEST_TEXT = 500
LONGEST_CAUSE = 200
SHOWN_FOR = timedelta(minutes=10)  # what is only good news
DENIAL_SHOWN_FOR = timedelta(days=3)  # over a weekend


class NoticeKind(Enum):
    """The subject of a notice; the values are those of REST, logs and the database."""

    PREEMPTED = "preempted"  # stopped at ``until`` because another team is entitled to the GPUs
    QUOTA_LOWERED = "quota-lowered"  # from ``until`` on preemptible
    IDLE = "idle"  # stopped at ``until`` because it is not used
    LIFETIME = "lifetime"  # stopped at ``until`` because it is old
    MAINTENANCE = "maintenance"  # stopped at ``until`` because its node is drained
    CANNOT_START = "cannot-start"  # it waits for what the files do not allow any more
    LOGIN_REQUIRED = "login-required"  # it could start now, and the Hub wants its owner to log in first
    APPROVED = "approved"  # an approver has approved it: it is in the queue, or has started already
    DENIED = "denied"  # an approver has denied it: the one kind that outlives its job
    APPROVALS = "approvals"  # requests wait for the reader; never posted, `approvals.pending_notice` makes it
    PREEMPTION_CANCELLED = "preemption-cancelled"  # what was said before does not hold any more
    CONFIG_INVALID = "config-invalid"  # for administrators: a file of theirs is not used
    HUB_FORBIDS = "hub-forbids"  # for administrators: the Hub does not allow what the Manager has to do


class CannotKeep(Exception):
    """*Keep alive* does nothing for this job; the message is for its owner."""


@dataclass(frozen=True, slots=True)
class Notice:
    """``job``, ``user`` and ``server`` are "" in what administrators are told. ``keep``: *keep alive* is possible."""

    id: str
    kind: NoticeKind
    cause: str
    text: str
    posted: datetime
    job: str = ""
    user: str = ""
    server: str = ""
    until: datetime | None = None
    keep: bool = False
    seen: datetime | None = None

    @property
    def key(self) -> NoticeKey:
        return (self.job, self.kind)

    @property
    def ends(self) -> datetime | None:
        """When it is over by itself."""
        span = _SHOWN_FOR.get(self.kind)
        return None if span is None else self.posted + span

    def over(self, now: datetime) -> bool:
        return self.ends is not None and now >= self.ends


NoticeKey = tuple[str, NoticeKind]
_SHOWN_FOR = {
    NoticeKind.PREEMPTION_CANCELLED: SHOWN_FOR,
    NoticeKind.APPROVED: SHOWN_FOR,
    NoticeKind.DENIED: DENIAL_SHOWN_FOR,
}


@dataclass(frozen=True, slots=True)
class NoticeChange:
    """From now on this is the open notice under its key, or with `gone` no longer."""

    notice: Notice
    gone: bool = False


def clean(text: str, longest: int) -> str:
    """One line of printable text, cut where it is too long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


@dataclass(frozen=True, slots=True)
class Recipient:
    """The reader of notices: one user (one server if ``server`` is set), administrators more, or ``everything``."""

    user: str = ""
    server: str | None = None
    admin: bool = False
    everything: bool = False

    def reads(self, notice: Notice) -> bool:
        if self.everything:
            return True
        if not notice.user:
            return self.admin
        return notice.user == self.user and self.server in {None, notice.server}


def version(notices: Iterable[Notice]) -> str:
    """Returns the version of a list of notices; equal lists have equal versions, over restarts too."""
    content = repr([(one.id, one.text, one.until, one.keep, one.seen) for one in notices])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
