"""Cancelling: the end of a request that somebody takes back, wherever it is between its submission and a ready server.

Who waits, or was not yet told that it may have a pod, ends at once. Who was told may have a pod any moment, or has one:
it is stopped, as `stopping` does it. Whether a job whose pod runs is ready is the Hub's to say; one that is ready is
stopped, and not cancelled.

A stop of the server says the same while the Hub starts it: the Hub tells (`interrupted`), because it would otherwise
be told to start the job again. What the Manager itself has stopped stays as it is, and may wait again.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from dlspawner.core.jobs import JobState
from dlspawner.hubapi import HubClient
from dlspawner.manager.book import JobStore, Transaction
from dlspawner.manager.records import CANCELLED, JobRecord, StopReason, as_ended
from dlspawner.manager.stopping import PREEMPTED, stop

BEFORE = "It was cancelled before it ran."
RUNS = "The server runs already, so there is nothing to cancel. Stop it as any server, on the Hub's page of your jobs."
_NOT_AGAIN = "It was stopped because a team needed its GPUs back, and cancelled before it waited again."
_BY_STOP = "by a stop of its server"


class CancelResult(Enum):
    """What there was to cancel."""

    REQUEST = "a request, which has ended or is on its way to it"
    NOTHING = "nothing"
    RUNS = "a server that is ready"


async def cancel_server_start(book: JobStore, hub: HubClient, user: str, server: str, who: str) -> CancelResult:
    """Cancel what is on its way to this server; HubUnavailable when only the Hub knows whether it is ready."""
    if await book.transact(lambda turn: cancel_request(turn, user, server, who)):
        return CancelResult.REQUEST
    running = await unready_job(book, hub, user, server)
    if running is not None:
        stopped = await book.transact(lambda turn: stop(turn, running.job.id, CANCELLED, BEFORE))
        return CancelResult.REQUEST if stopped else CancelResult.NOTHING
    return CancelResult.RUNS if _running(book, user, server) else CancelResult.NOTHING


async def unready_job(book: JobStore, hub: HubClient, user: str, server: str) -> JobRecord | None:
    """The job whose pod runs and whose server is not ready yet."""
    record = _running(book, user, server)
    if record is None:
        return None
    found = await hub.user(user)
    known = found.servers.get(server) if found is not None else None
    return record if known is not None and known.pending == "spawn" else None


def _running(book: JobStore, user: str, server: str) -> JobRecord | None:
    found = (book.records[job.id] for job in book.on(user, server) if job.state is JobState.RUNNING)
    return next(found, None)


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
