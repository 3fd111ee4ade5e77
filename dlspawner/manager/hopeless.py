"""Who waits for what the files do not allow any more, and is told so.

Such a job keeps its place, because the files may be changed again. It is looked for when they were read, and when a job
that had to leave, or was to start, is back in its place: what nodes there are does not matter here, for those come back
by themselves. Who waits for a login reads that only as long as the files allow the job.
"""

from __future__ import annotations

from dlspawner.core import limits
from dlspawner.core.decisions import Reason
from dlspawner.core.jobs import Job, JobState
from dlspawner.manager.book import Transaction
from dlspawner.manager.notices import NoticeKind, post, withdraw
from dlspawner.manager.records import JobRecord

LOG_IN = "It could start now, and the Hub wants a fresh login from you first. It keeps its place until then."
FAULT = "fault"  # the cause of what is told with it
UNDECIDED = (
    "It cannot start, because the Manager fails to decide about it: its administrator finds why in the Manager's log. "
    "It keeps its place and is tried again."
)


def tell(turn: Transaction) -> None:
    """Tell whoever waits in vain, and take it back from whom that is not true of any more."""
    for record in tuple(turn.store.records.values()):
        tell_one(turn, record.job)


def wait_again(turn: Transaction, record: JobRecord, reason: str, detail: str = "") -> None:
    """The job is in its place again (``Turn.wait_again``), which the files may not allow any more by now."""
    turn.requeue(record, reason, detail)
    waits = turn.record(record.job.id)
    if waits is not None:
        tell_one(turn, waits.job)


def tell_one(turn: Transaction, job: Job) -> None:
    """The same for one job."""
    waits = job.state in {JobState.QUEUED, JobState.LOGIN_REQUIRED, JobState.PENDING_APPROVAL}
    never = limits.config_violation(job, turn.cluster_state) if waits else None
    if never is not None:
        can = (
            "ask for less, or cancel it"
            if never.reason is Reason.EXCEEDS_LIMIT
            else "cancel it if you do not want it any more"
        )
        text = f"It cannot start as things are: {never.sentence} It keeps its place; {can}."
        post(turn, job, NoticeKind.CANNOT_START, text)
    elif job.state is not JobState.LOGIN_REQUIRED:
        withdraw(turn, job.id, NoticeKind.CANNOT_START)
    elif turn.store.notices.pending((job.id, NoticeKind.LOGIN_REQUIRED)) is None:
        post(turn, job, NoticeKind.LOGIN_REQUIRED, LOG_IN, cause=str(turn.store.records[job.id].start_attempts))
