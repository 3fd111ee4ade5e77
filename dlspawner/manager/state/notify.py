"""Notices: messages to users about their jobs while these run or wait, and the one way to post them.

A notice is posted in the transaction of the decision that it is about, so that both are on the disk or neither is:

Rules:

* A job has at most one open notice of a kind. Posting it again for the same cause changes nothing but its words and its
  time; for another cause (the second warning) it takes the first one's place, as a new one, not seen yet.
* Notices end with their job. ``PREEMPTION_CANCELLED`` takes back another one, and expires by itself after some minutes.
  So does ``APPROVED``, also of a job that runs by then. ``DENIED`` is about a job that has ended: it is over after some
  days, or when its user requests that server again.
* No two of a job contradict each other: the later one withdraws the earlier (``_TAKES_BACK``), and no user reads that a
  job goes on while it will be stopped for another reason.
* The text says what and why in one or two plain sentences, with ``{when}`` where ``until`` belongs: a browser and a
  terminal say a time in their own ways (`core.text`). JupyterLab cuts what is longer than 140 characters. A text
  names other parties as teams, never as users, but for the user that decided a request; a text never quotes what a job
  or a file says.
* Readers see the notices as they were after the last commit.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from dlspawner.core.job import Job
from dlspawner.manager.model.notice import LONGEST_CAUSE, LONGEST_TEXT, Notice, NoticeChange, NoticeKind, clean
from dlspawner.manager.state.job_store import withdraw

if TYPE_CHECKING:
    from dlspawner.manager.state.job_store import Transaction
log = logging.getLogger("dlspawner.manager")


# Of these two one would be wrong: the first one replaces the others.
_TAKES_BACK = {
    NoticeKind.PREEMPTED: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.MAINTENANCE: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.QUOTA_LOWERED: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.IDLE: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.LIFETIME: (NoticeKind.PREEMPTION_CANCELLED,),
    NoticeKind.CANNOT_START: (NoticeKind.LOGIN_REQUIRED,),
    NoticeKind.LOGIN_REQUIRED: (NoticeKind.CANNOT_START,),
}
_STOPS = (NoticeKind.PREEMPTED, NoticeKind.MAINTENANCE, NoticeKind.IDLE, NoticeKind.LIFETIME)


def post(  # noqa: PLR0913 - a notice has so many parts
    transaction: Transaction,
    job: Job,
    kind: NoticeKind,
    text: str,
    *,
    cause: str = "",
    until: datetime | None = None,
    keep: bool = False,
) -> Notice:
    """Posts a notice to the owner of a job; ``cause`` distinguishes it from the last notice of its kind.

    Good news of a job that will be stopped for another reason are not posted.
    """
    wanted = Notice("", kind, cause, text, transaction.now, job.id, job.user, job.server, until, keep)
    return _post(transaction, wanted)


def post_to_admins(transaction: Transaction, kind: NoticeKind, text: str, *, cause: str = "") -> Notice:
    """Posts a notice to every administrator of the Hub."""
    return _post(transaction, Notice("", kind, cause, text, transaction.now))


def mark_read(transaction: Transaction, notice: Notice) -> None:
    known = transaction.store.notices.pending(notice.key)
    if known is not None and known.id == notice.id and known.seen is None:
        transaction.change_notice(NoticeChange(replace(known, seen=transaction.now)))


def _post(transaction: Transaction, wanted: Notice) -> Notice:
    wanted = replace(wanted, text=clean(wanted.text, LONGEST_TEXT), cause=clean(wanted.cause, LONGEST_CAUSE))
    pending = transaction.store.notices.pending
    if wanted.kind is NoticeKind.PREEMPTION_CANCELLED and any(pending((wanted.job, kind)) for kind in _STOPS):
        return wanted
    if wanted.kind in _TAKES_BACK:
        withdraw(transaction, wanted.job, *_TAKES_BACK[wanted.kind])
    known = pending(wanted.key)
    if known is not None and known.cause == wanted.cause and not known.over(transaction.now):
        same = replace(known, text=wanted.text, until=wanted.until, keep=wanted.keep)
        if same != known:
            transaction.change_notice(NoticeChange(same))
        return same
    made = replace(wanted, id=secrets.token_hex(8))
    transaction.change_notice(NoticeChange(made))
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
