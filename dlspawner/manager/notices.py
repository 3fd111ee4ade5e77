"""Notices: what people are told about their jobs while these run or wait, and the one way to tell it.

A notice is posted in the turn that makes the decision which it is about, so that both are on the disk or neither is:

    post(turn, job, Kind.PREEMPTED, "Team vision needs its GPUs: this job stops {when}.", cause="j-…", until=…)
    withdraw(turn, job.id, Kind.PREEMPTED)

Rules:

* A job has at most one open notice of a kind. Posting it again for the same cause changes nothing but its words and its
  time; for another cause (the second warning) it takes the first one's place, as a new one that nobody has seen.
* Notices end with their job. ``GOES_ON`` takes back another one, and is over after a while by itself. So is
  ``APPROVED``, also of a job that runs by then. ``DENIED`` is about a job that has ended: it is over after some
  days, or when its person asks for that server again.
* No two of a job contradict each other: the later one withdraws the earlier (``_TAKES_BACK``), and nobody reads that a
  job goes on while it will be stopped for another reason.
* The text says what and why in one or two plain sentences, with ``{when}`` where ``until`` belongs: a browser and a
  terminal say a time in their own ways (`core.telling`). JupyterLab cuts what is longer than 140 characters. Who else
  is concerned is a team, never a person, but for who decided about a request; a text never quotes what a job or a file
  says.
* What is shown anywhere was written down before: readers see the board as it was after the last commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from dlspawner.core.jobs import Job

if TYPE_CHECKING:
    from dlspawner.manager.book import Transaction

LONGEST_TEXT = 500
LONGEST_CAUSE = 200
SHOWN_FOR = timedelta(minutes=10)  # what is only good news
DENIAL_SHOWN_FOR = timedelta(days=3)  # over a weekend
log = logging.getLogger("dlspawner.manager")


class NoticeKind(Enum):
    """What a notice is about; the values are what REST, logs and the database say."""

    PREEMPTED = "preempted"  # stopped at ``until`` because somebody else is entitled to the GPUs
    QUOTA_LOWERED = "quota-lowered"  # from ``until`` on preemptible
    IDLE = "idle"  # stopped at ``until`` because it is not used
    LIFETIME = "lifetime"  # stopped at ``until`` because it is old
    CANNOT_START = "cannot-start"  # it waits for what the files do not allow any more
    LOGIN_REQUIRED = "waiting-login"  # it could start now, and the Hub wants its owner to log in first
    APPROVED = "approved"  # somebody has approved it: it is in the queue, or has started already
    DENIED = "denied"  # somebody has denied it: the one kind that outlives its job
    APPROVALS = "approvals"  # something waits for the reader's word; never posted: `approval.told` looks what there is
    PREEMPTION_CANCELLED = "goes-on"  # what was said before does not hold any more
    CONFIG_INVALID = "file-broken"  # for administrators: a file of theirs is not used
    HUB_FORBIDS = "hub-refuses"  # for administrators: the Hub does not allow what the Manager has to do


# Of these two one would be wrong: who is told the first is told the others no longer.
_TAKES_BACK = {
    NoticeKind.PREEMPTED: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.QUOTA_LOWERED: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.IDLE: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.LIFETIME: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.CANNOT_START: (NoticeKind.LOGIN_REQUIRED,),
    NoticeKind.LOGIN_REQUIRED: (NoticeKind.CANNOT_START,),
}
_STOPS = (NoticeKind.PREEMPTED, NoticeKind.IDLE, NoticeKind.LIFETIME)


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


def post(  # noqa: PLR0913 - a notice has so many parts
    turn: Transaction,
    job: Job,
    kind: NoticeKind,
    text: str,
    *,
    cause: str = "",
    until: datetime | None = None,
    keep: bool = False,
) -> Notice:
    """Tell the owner of a job; ``cause`` is what makes this notice another one than the last of its kind.

    Good news of a job that will be stopped for another reason are told to nobody.
    """
    wanted = Notice("", kind, cause, text, turn.now, job.id, job.user, job.server, until, keep)
    return _post(turn, wanted)


def post_to_admins(turn: Transaction, kind: NoticeKind, text: str, *, cause: str = "") -> Notice:
    """Tell every administrator of the Hub."""
    return _post(turn, Notice("", kind, cause, text, turn.now))


def withdraw(turn: Transaction, job: str, *kinds: NoticeKind) -> None:
    """What was said about a job holds no longer: of these kinds, or all of it. "" is what administrators were told."""
    for kind in kinds or tuple(NoticeKind):
        known = turn.store.notices.pending((job, kind))
        if known is not None:
            turn.change_notice(NoticeChange(known, gone=True))


def mark_read(turn: Transaction, notice: Notice) -> None:
    """Somebody whom it concerns has read it."""
    known = turn.store.notices.pending(notice.key)
    if known is not None and known.id == notice.id and known.seen is None:
        turn.change_notice(NoticeChange(replace(known, seen=turn.now)))


def _post(turn: Transaction, wanted: Notice) -> Notice:
    wanted = replace(wanted, text=clean(wanted.text, LONGEST_TEXT), cause=clean(wanted.cause, LONGEST_CAUSE))
    pending = turn.store.notices.pending
    if wanted.kind is NoticeKind.PREEMPTION_CANCELLED and any(pending((wanted.job, kind)) for kind in _STOPS):
        return wanted
    if wanted.kind in _TAKES_BACK:
        withdraw(turn, wanted.job, *_TAKES_BACK[wanted.kind])
    known = pending(wanted.key)
    if known is not None and known.cause == wanted.cause and not known.over(turn.now):
        same = replace(known, text=wanted.text, until=wanted.until, keep=wanted.keep)
        if same != known:
            turn.change_notice(NoticeChange(same))
        return same
    made = replace(wanted, id=secrets.token_hex(8))
    turn.change_notice(NoticeChange(made))
    log.info(
        "notice=%s job=%s user=%s server=%s kind=%s cause=%s until=%s",
        made.id,
        made.job or "-",
        made.user or "-",
        made.server,
        made.kind.value,
        made.cause or "-",
        made.until.isoformat() if made.until else "-",
    )
    return made


def clean(text: str, longest: int) -> str:
    """One line of printable text, cut where it is too long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


@dataclass(frozen=True, slots=True)
class Recipient:
    """Who reads: one person (of whom one server, where ``server`` says so), administrators more, or ``everything``."""

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


class NoticeStoreClosed(Exception):
    """This Manager no longer acts: another one has the notices."""


@dataclass(slots=True)
class NoticeStore:
    """Every open notice. ``pending`` is for turns, everything else for readers."""

    _pending: dict[NoticeKey, Notice] = field(default_factory=dict)
    _shown: dict[str, dict[NoticeKey, Notice]] = field(default_factory=dict)  # by user, "" for administrators
    _readers: dict[str | None, set[asyncio.Event]] = field(default_factory=dict)  # by user, None for all
    _closed: bool = False
    hears: list[Callable[[Sequence[NoticeChange]], None]] = field(
        default_factory=list
    )  # what hears of what readers may know

    def load(self, notices: Iterable[Notice]) -> None:
        """Everything is as the database has it."""
        self._pending = {notice.key: notice for notice in notices}
        self._shown = {}
        for key, notice in self._pending.items():
            self._shown.setdefault(notice.user, {})[key] = notice
        self._wake(set(self._readers))

    def pending(self, key: NoticeKey) -> Notice | None:
        """The open notice under this key, with what has not been committed yet."""
        return self._pending.get(key)

    def apply(self, change: NoticeChange) -> None:
        """A turn's change, which is not committed yet."""
        _put(self._pending, change)

    def publish(self, changes: Sequence[NoticeChange]) -> None:
        """These changes are on the disk: readers may know."""
        for hear in self.hears:
            hear(changes)
        users: set[str | None] = set()
        for change in changes:
            user = change.notice.user
            mine = self._shown.setdefault(user, {})
            _put(mine, change)
            if not mine:
                del self._shown[user]
            users |= {user, None}
        self._wake(users)

    def read(self, audience: Recipient, now: datetime) -> tuple[Notice, ...]:
        """What is open for this audience, oldest first."""
        of: Iterable[Mapping[NoticeKey, Notice]] = (
            self._shown.values()
            if audience.everything
            else (self._shown.get(user, {}) for user in {audience.user, ""} if user or audience.admin)
        )
        found = (notice for mine in of for notice in mine.values() if audience.reads(notice) and not notice.over(now))
        return tuple(sorted(found, key=lambda notice: (notice.posted, notice.id)))

    def overdue(self, kind: NoticeKind, now: datetime) -> list[Notice]:
        """Those of a kind that are over by themselves; for turns, which withdraw them."""
        return [one for one in self._pending.values() if one.kind is kind and one.over(now)]

    async def changed(self, audience: Recipient, seconds: float) -> None:
        """Until something may have changed for this audience, or so many seconds; BoardClosed when it is no more."""
        if self._closed:
            raise NoticeStoreClosed
        event = asyncio.Event()
        places: set[str | None] = {None} if audience.everything else {audience.user}
        if audience.admin:
            places.add("")
        for place in places:
            self._readers.setdefault(place, set()).add(event)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)
        finally:
            for place in places:
                waiting = self._readers[place]
                waiting.discard(event)
                if not waiting:
                    del self._readers[place]
        if self._closed:
            raise NoticeStoreClosed

    def close(self) -> None:
        """Nobody learns anything here any more."""
        self._closed = True
        self._wake(set(self._readers))

    def _wake(self, places: Iterable[str | None]) -> None:
        for place in places:
            for event in self._readers.get(place, ()):
                event.set()


def version(notices: Iterable[Notice]) -> str:
    """What tells one list of notices from another, over restarts too."""
    content = repr([(one.id, one.text, one.until, one.keep, one.seen) for one in notices])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _put(notices: dict[NoticeKey, Notice], change: NoticeChange) -> None:
    if change.gone:
        notices.pop(change.notice.key, None)
    else:
        notices[change.notice.key] = change.notice
