"""Who waits for what the files do not allow any more, and is told so.

Such a job keeps its place, because the files may be changed again. It is looked for when they were read, and when a job
that had to leave, or was to start, is back in its place: what nodes there are does not matter here, for those come back
by themselves. Who waits for a login reads that only as long as the files allow the job.
"""

from __future__ import annotations

from dlspawner.core import limits
from dlspawner.core.decisions import Reason
from dlspawner.core.jobs import Job, State
from dlspawner.manager.book import Turn
from dlspawner.manager.notices import Kind, post, withdraw
from dlspawner.manager.records import Record

LOG_IN = "It could start now, and the Hub wants a fresh login from you first. It keeps its place until then."
FAULT = "fault"  # the cause of what is told with it
UNDECIDED = (
    "It cannot start, because the Manager fails to decide about it: its administrator finds why in the Manager's log. "
    "It keeps its place and is tried again."
)


def tell(turn: Turn) -> None:
    """Tell whoever waits in vain, and take it back from whom that is not true of any more."""
    for record in tuple(turn.book.records.values()):
        tell_one(turn, record.job)


def wait_again(turn: Turn, record: Record, reason: str, detail: str = "") -> None:
    """The job is in its place again (``Turn.wait_again``), which the files may not allow any more by now."""
    turn.wait_again(record, reason, detail)
    waits = turn.record(record.job.id)
    if waits is not None:
        tell_one(turn, waits.job)


def tell_one(turn: Turn, job: Job) -> None:
    """The same for one job."""
    waits = job.state in {State.QUEUED, State.WAITING_LOGIN, State.WAITING_APPROVAL}
    never = limits.by_files(job, turn.world) if waits else None
    if never is not None:
        can = (
            "ask for less, or cancel it"
            if never.reason is Reason.TOO_MANY
            else "cancel it if you do not want it any more"
        )
        text = f"It cannot start as things are: {never.sentence} It keeps its place; {can}."
        post(turn, job, Kind.CANNOT_START, text)
    elif job.state is not State.WAITING_LOGIN:
        withdraw(turn, job.id, Kind.CANNOT_START)
    elif turn.book.board.pending((job.id, Kind.WAITING_LOGIN)) is None:
        post(turn, job, Kind.WAITING_LOGIN, LOG_IN, cause=str(turn.book.records[job.id].turns))
