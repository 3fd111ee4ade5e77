"""The turns of approvals: a job asks, somebody approves or denies, and what has become needless is withdrawn.

`settle` puts a job that waits where it belongs: to those that wait for an approval as long as it needs one, to the
queue otherwise. It is done whenever one is asked for, and in every pass over the queue for all that wait: files are
changed, and what somebody's other jobs hold comes and goes. Requests are on the disk with the state of their job, or
neither is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from dlspawner.core import limits
from dlspawner.core.approval import Kind, Need
from dlspawner.core.jobs import Job, State
from dlspawner.manager import hopeless, notices
from dlspawner.manager.approval import words
from dlspawner.manager.approvals import LONGEST_REASON, Request, Standing, Word, made, withdrawn
from dlspawner.manager.book import Turn
from dlspawner.manager.notices import Audience, clean
from dlspawner.manager.records import Record, ended, waiting

ASKED, NOT_NEEDED = "approval", "approval-not-needed"  # events; the others are a standing's value
log = logging.getLogger("dlspawner.manager")


def sweep(turn: Turn) -> None:
    """Everything that waits is where it belongs, and nobody reads for ever that something was denied."""
    capped = {team.name for team in turn.world.teams.teams if team.user_caps.soft is not None}
    for name in tuple(turn.book.waiting.values()):
        record = turn.record(name)
        if record is not None and _may_move(record.job, capped):
            settle(turn, record)
    for notice in turn.book.board.overdue(notices.Kind.DENIED, turn.now):
        notices.withdraw(turn, notice.job, notices.Kind.DENIED)


def _may_move(job: Job, capped: Collection[str]) -> bool:
    """A first look at a job that waits, for thousands wait: most are of teams that cap nobody."""
    if job.state is State.QUEUED:
        return job.special is not None or job.team in capped
    return job.state is State.WAITING_APPROVAL


def settle(turn: Turn, record: Record) -> Record:
    """One job that waits, or is new; the record as it is then."""
    needs = limits.approvals(record.job, turn.world)
    if not needs and record.job.state is not State.WAITING_APPROVAL:
        return record
    known = turn.book.requests.get(record.job.id, ())
    if not needs:
        record = waiting(record)
        turn.write(record, NOT_NEEDED)
    elif {need.kind for need in needs} != {one.kind for one in known if one.waits}:
        record = waiting(record, State.WAITING_APPROVAL)
        _ask(turn, record, needs, known)
    else:
        return record
    hopeless.tell_one(turn, record.job)
    return record


def decide(turn: Turn, request: Request, word: Word) -> bool:
    """Somebody's word about it; False when it was decided already, or nobody asks for it any more."""
    waits = turn.book.requests.get(request.job, ())
    record = turn.record(request.job)
    if record is None or all(one.id != request.id for one in waits):
        return False
    standing = Standing.APPROVED if word.yes else Standing.DENIED
    said = replace(request, standing=standing, at=turn.now, by=word.by, reason=clean(word.reason, LONGEST_REASON))
    if word.yes:
        _approve(turn, record, said, more=len(waits) > 1)
    else:
        turn.write(ended(record), standing.value, words.said(said), (said,))
        notices.post(turn, record.job, notices.Kind.DENIED, words.denied(said), cause=said.id)
    log.info(
        "approval kind=%s team=%s job=%s user=%s gpus=%g decision=%s by=%s",
        *(said.kind.value, said.team, said.job, said.user, said.gpus / 1000, standing.value, said.by),
    )
    return True


def _approve(turn: Turn, record: Record, said: Request, *, more: bool) -> None:
    """``more``: the job waits for another word besides."""
    job = _granted(record.job, said.kind)
    record = waiting(replace(record, job=job), State.WAITING_APPROVAL if more else State.QUEUED)
    turn.write(record, Standing.APPROVED.value, words.said(said), (said,))
    if not more:
        notices.post(turn, record.job, notices.Kind.APPROVED, words.approved(said), cause=said.id)
        turn.book.stirred.set()


def forget_denial(turn: Turn, user: str, server: str) -> None:
    """The person asks for this server again."""
    for notice in turn.book.board.read(Audience(user, server), turn.now):
        if notice.kind is notices.Kind.DENIED and notice.server == server:
            notices.withdraw(turn, notice.job, notices.Kind.DENIED)


def _ask(turn: Turn, record: Record, needs: Sequence[Need], known: Sequence[Request]) -> None:
    """The job waits for these from now on; what waits already is not asked for again."""
    wanted, open_ = {need.kind for need in needs}, {one.kind for one in known}
    new = tuple(made(record.job, need, turn.now) for need in needs if need.kind not in open_)
    old = withdrawn((one for one in known if one.kind not in wanted), turn.now, NOT_NEEDED)
    turn.write(record, ASKED, ",".join(sorted(kind.value for kind in wanted)), (*new, *old))


def _granted(job: Job, kind: Kind) -> Job:
    """The job with what was approved."""
    match kind:
        case Kind.SOFT_CAP:
            return replace(job, approved=True)
        case Kind.SPECIAL:
            return replace(job, special=None if job.special is None else replace(job.special, approved=True))
