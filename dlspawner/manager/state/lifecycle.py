"""Who waits for what the files do not allow any more, and is told so.

Such a job keeps its place, because the files may be changed again. It is looked for when they were read, and when a job
that had to leave, or was to start, is back in its place: what nodes there are does not matter here, for those come back
by themselves. Who waits for a login reads that only as long as the files allow the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlspawner.core.decisions import Reason
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import limits
from dlspawner.core.scheduling.limits import RequiredApproval
from dlspawner.manager.model.approval_request import ApprovalRequest, new_request, withdraw_requests
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import CANCELLED, WAITING, JobRecord, StopReason, as_ended, as_queued
from dlspawner.manager.state.job_store import Transaction, withdraw
from dlspawner.manager.state.notify import post

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


ASKED, NOT_NEEDED = "approval", "approval-not-needed"  # events; the others are a standing's value


def reevaluate(turn: Transaction, record: JobRecord) -> JobRecord:
    """One job that waits, or is new; the record as it is then."""
    needs = limits.missing_approvals(record.job, turn.cluster_state)
    if not needs and record.job.state is not JobState.PENDING_APPROVAL:
        return record
    known = turn.store.requests.get(record.job.id, ())
    if not needs:
        record = as_queued(record)
        turn.write(record, NOT_NEEDED)
    elif {need.kind for need in needs} != {one.kind for one in known if one.is_pending}:
        record = as_queued(record, JobState.PENDING_APPROVAL)
        _ask(turn, record, needs, known)
    else:
        return record
    tell_one(turn, record.job)
    return record


def _ask(
    turn: Transaction, record: JobRecord, needs: Sequence[RequiredApproval], known: Sequence[ApprovalRequest]
) -> None:
    """The job waits for these from now on; what waits already is not asked for again."""
    wanted, open_ = {need.kind for need in needs}, {one.kind for one in known}
    new = tuple(new_request(record.job, need, turn.now) for need in needs if need.kind not in open_)
    old = withdraw_requests((one for one in known if one.kind not in wanted), turn.now, NOT_NEEDED)
    turn.write(record, ASKED, ",".join(sorted(kind.value for kind in wanted)), (*new, *old))


BEFORE = "It was cancelled before it ran."
_NOT_AGAIN = "It was stopped because a team needed its GPUs back, and cancelled before it waited again."
_BY_STOP = "by a stop of its server"


def cancel_request(turn: Transaction, user: str, server: str, who: str) -> bool:
    """End the job that waits for this server, is on its way to it, or is about to wait again; False: there is none."""
    waits = turn.store.pending_job(user, server)
    if waits is not None:
        turn.write(as_ended(waits), CANCELLED, f"by {who}")
        return True
    for job in turn.store.on(user, server):
        record = turn.store.records[job.id]
        if job.state is JobState.STARTING:
            _leave(turn, record, f"by {who}")
            return True
        if job.state is JobState.STOPPING and record.stop is not None:
            if record.stop.code == CANCELLED:
                return True
            if job.requeue and record.stop.code == PREEMPTED:
                stopped = replace(record, job=replace(job, requeue=False), stop=StopReason(PREEMPTED, _NOT_AGAIN))
                turn.write(stopped, CANCELLED, f"by {who}")
                return True
    return False


def on_start_interrupted(turn: Transaction, user: str, server: str, job: str) -> None:
    """Somebody has stopped this server while the Hub started it, as this job; without one, before it asked for it."""
    record = turn.record(job) if job else turn.store.pending_job(user, server)
    if record is None or (record.job.user, record.job.server) != (user, server):
        return
    if record.is_pending:
        turn.write(as_ended(record), CANCELLED, _BY_STOP)
        return
    # The Hub has ended the start: no further request for its pod is sent.
    over = replace(record, deadline=turn.now) if record.reserved else record
    if record.job.state is JobState.STARTING:
        _leave(turn, over, _BY_STOP)
    elif record.job.state is JobState.STOPPING and record.reserved:
        turn.write(over, "interrupted")


def _leave(turn: Transaction, record: JobRecord, detail: str) -> None:
    """A job that may have a pod by now."""
    stopping = replace(record.job, state=JobState.STOPPING, notice=None)
    turn.write(replace(record, job=stopping, stop=StopReason(CANCELLED, BEFORE)), CANCELLED, detail)


@dataclass(frozen=True, slots=True)
class _End:
    """Why this job can not be started."""

    reason: str
    detail: str = ""


_REMOVED = _End("no-server", "The server, or its owner, was removed from the Hub.")


def _lost(turn: Transaction, *, record: JobRecord) -> None:
    """From now on no request for this job's pod is sent; those on their way are waited for, as after any deadline."""
    now = turn.record(record.job.id)
    if now is not None and now.reserved and now.deadline == record.deadline and not now.pods:
        turn.write(replace(now, deadline=turn.now), "start-lost")


def log_in(turn: Transaction, user: str, server: str) -> bool:
    """The person has logged in again: what waited for that is in its place again; False when nothing did."""
    waits = turn.store.pending_job(user, server)
    if waits is None or waits.job.state is not JobState.LOGIN_REQUIRED:
        return False
    turn.write(as_queued(waits), "logged-in")
    withdraw(turn, waits.job.id, NoticeKind.LOGIN_REQUIRED)
    turn.store.capacity_changed.set()
    return True


def _remove(turn: Transaction, *, job: str) -> None:
    record = turn.record(job)
    if record is not None and record.job.state in WAITING:
        turn.write(as_ended(record), _REMOVED.reason, _REMOVED.detail)


def _wait_for_login(turn: Transaction, *, job: str) -> None:
    record = turn.record(job)
    if record is not None and (record.awaiting_start or record.job.reserved):
        waits = as_queued(record, JobState.LOGIN_REQUIRED)
        turn.write(waits, "login")
        tell_one(turn, waits.job)


PREEMPTED = "preempted"  # the one reason after which a job may wait again
BY_OWNER = "stopped-by-owner"  # who waits for the Hub's answer


def stop(turn: Transaction, job: str, reason: str, sentence: str) -> bool:
    """Decide that a job is stopped; False when it holds nothing that could be stopped, or is being stopped already.

    ``reason`` is a word for events and logs, ``sentence`` is for the job's person: why, and what they can do.
    """
    record = turn.record(job)
    if record is None or record.reserved or record.job.state not in {JobState.STARTING, JobState.RUNNING}:
        return False
    stopping = replace(record.job, state=JobState.STOPPING, notice=None)
    turn.write(replace(record, job=stopping, stop=StopReason(reason, sentence)), reason, sentence)
    return True


def on_pods_gone(turn: Transaction, record: JobRecord, reason: str) -> None:
    """A job's pod is gone: the job has ended, or waits again with its first submit time."""
    job = record.job
    if record.stop is None or record.stop.code != PREEMPTED or not job.requeue:
        turn.write(replace(record, job=replace(job, state=JobState.ENDED)), reason)
        return
    turn.requeue(replace(record, start_attempts=1, failures=0), "requeued")
    withdraw(turn, job.id)
    waits = turn.record(job.id)
    if waits is not None:
        tell_one(turn, waits.job)  # the files may have changed while it ran
