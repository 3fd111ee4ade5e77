"""Every transition of a job (DESIGN.md, section 4): one function, one row update, one event with its reason.

Rules:

* No other module calls ``Transaction.write``. A policy decides, and calls the function of the transition in the same
  transaction.
* A transition withdraws the notices that it makes untrue. Notices with a text that depends on a policy's decision are
  posted by that policy, in the same transaction.
* A pending job that the configuration does not allow keeps its place, because the configuration may change again; its
  owner is notified. Which nodes exist does not matter for that: nodes come back by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from dlspawner.core.decisions import EngineSays, Reason
from dlspawner.core.job import Job, JobState
from dlspawner.core.launch import pod_status
from dlspawner.core.scheduling import admission, limits
from dlspawner.core.scheduling.limits import RequiredApproval
from dlspawner.manager.model.approval_request import ApprovalRequest, new_request, withdraw_requests
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import WAITING, JobRecord, PodRef, StopReason, as_ended, as_queued
from dlspawner.manager.state.job_store import Transaction, withdraw
from dlspawner.manager.state.notify import post

LOG_IN = "It could start now, and the Hub wants a fresh login from you first. It keeps its place until then."
CANCELLED_BEFORE_START = EventReason.CANCELLED.end_text
_WAITS_AGAIN = frozenset({EventReason.PREEMPTED, EventReason.MAINTENANCE})  # stops after which a job may be requeued
_CANCELLED_BEFORE_REQUEUE = "{} It was cancelled before it waited again."
STARTS_AGAIN = "It keeps its place in the queue and restarts automatically; unsaved work is lost."
ENDS_HERE = "It does not restart automatically; files are kept."
_SERVER_STOPPED = "by a stop of its server"
STOPPED_ON_HUB = "This job was stopped on the Hub. The files are kept."
SERVER_REMOVED = "The server, or its owner, was removed from the Hub."


def what_follows(job: Job) -> str:
    """Returns the sentence about the job after it was stopped for others."""
    return STARTS_AGAIN if job.requeue else ENDS_HERE


# Submission and the queue


def enqueue(transaction: Transaction, record: JobRecord, why: Reason) -> None:
    """A new job is pending; ``why`` it cannot start now."""
    transaction.write(as_queued(record), EventReason.QUEUED, why.value)


def update_request(transaction: Transaction, record: JobRecord, *, changed: bool) -> None:
    """A pending job is requested again; ``changed``: with other options."""
    transaction.write(record, EventReason.CHANGED if changed else EventReason.QUEUED)


def replace_pending(transaction: Transaction, record: JobRecord, later: str) -> None:
    """A pending job ends, because of the ``later`` job of its server."""
    if record.waits_in_cluster:
        _cancel_start(transaction, record, f"by {later}")
        return
    transaction.write(as_ended(record), EventReason.REPLACED, f"by {later}")


def requeue(transaction: Transaction, record: JobRecord, reason: EventReason, detail: str = "") -> None:
    """The job is pending again with its first submit time, unless a later job of its server exists: then it ends."""
    job = record.job
    for later in transaction.store.on(job.user, job.server):
        if later.submitted > job.submitted:
            replace_pending(transaction, record, later.id)
            return
    waits = as_queued(record)
    transaction.write(waits, reason, detail)
    withdraw(transaction, job.id, NoticeKind.PREEMPTED, NoticeKind.QUOTA_LOWERED)
    notify_if_inadmissible(transaction, waits.job)  # the configuration may have changed meanwhile


def notify_all_inadmissible(transaction: Transaction) -> None:
    """Notifies the owners of pending jobs that the configuration does not allow; withdraws notices that are over."""
    for record in tuple(transaction.store.records.values()):
        notify_if_inadmissible(transaction, record.job)


def notify_if_inadmissible(transaction: Transaction, job: Job) -> None:
    """The same for one job. A notice that a login is required stands only while the configuration allows the job."""
    never = limits.config_violation(job, transaction.cluster_state) if job.state in WAITING else None
    if never is not None:
        can = (
            "ask for less, or cancel it"
            if never.reason is Reason.EXCEEDS_LIMIT
            else "cancel it if you do not want it any more"
        )
        text = f"It cannot start as requested: {never.sentence} It keeps its place; {can}."
        post(transaction, job, NoticeKind.CANNOT_START, text)
    elif job.state is not JobState.LOGIN_REQUIRED:
        withdraw(transaction, job.id, NoticeKind.CANNOT_START)
    elif transaction.store.notices.pending((job.id, NoticeKind.LOGIN_REQUIRED)) is None:
        post(
            transaction,
            job,
            NoticeKind.LOGIN_REQUIRED,
            LOG_IN,
            cause=str(transaction.store.records[job.id].start_attempts),
        )


# Approvals


def reevaluate(transaction: Transaction, record: JobRecord) -> JobRecord:
    """Moves a new or pending job between *pending-approval* and *queued*; returns the record after that."""
    needs = limits.missing_approvals(record.job, transaction.cluster_state)
    if not needs and record.job.state is not JobState.PENDING_APPROVAL:
        return record
    known = transaction.store.requests.get(record.job.id, ())
    if not needs:
        record = as_queued(record)
        transaction.write(record, EventReason.APPROVAL_NOT_NEEDED)
    elif {need.kind for need in needs} != {one.kind for one in known if one.is_pending}:
        record = as_queued(record, JobState.PENDING_APPROVAL)
        _request_approvals(transaction, record, needs, known)
    else:
        return record
    notify_if_inadmissible(transaction, record.job)
    return record


def _request_approvals(
    transaction: Transaction, record: JobRecord, needs: Sequence[RequiredApproval], known: Sequence[ApprovalRequest]
) -> None:
    """The job is pending until these are approved; pending requests of the same kind are kept."""
    wanted, open_ = {need.kind for need in needs}, {one.kind for one in known}
    new = tuple(new_request(record.job, need, transaction.now) for need in needs if need.kind not in open_)
    old = withdraw_requests(
        (one for one in known if one.kind not in wanted), transaction.now, EventReason.APPROVAL_NOT_NEEDED.value
    )
    transaction.write(record, EventReason.APPROVAL, ",".join(sorted(kind.value for kind in wanted)), (*new, *old))


def approve(
    transaction: Transaction, record: JobRecord, decided: ApprovalRequest, detail: str, *, more: bool
) -> JobRecord:
    """A request of the job is approved; ``more``: another request of the job is still pending."""
    record = as_queued(record, JobState.PENDING_APPROVAL if more else JobState.QUEUED)
    transaction.write(record, EventReason.APPROVED, detail, (decided,))
    if not more:
        transaction.store.capacity_changed.set()
    return record


def deny(transaction: Transaction, record: JobRecord, decided: ApprovalRequest, detail: str) -> None:
    """A request of the job is denied: the job ends."""
    transaction.write(as_ended(record), EventReason.DENIED, detail, (decided,))


# The start


def schedule(transaction: Transaction, record: JobRecord, nodes: tuple[str | None, ...]) -> None:
    """The scheduler has chosen the nodes: they are reserved, and the Hub is to be asked for the start."""
    starting = admission.as_admitted(record.job, nodes, transaction.cluster_state)
    transaction.write(
        replace(
            record,
            job=starting,
            deadline=transaction.now + transaction.store.reservation,
            awaiting_start=True,
            start_attempts=record.start_attempts + 1,
        ),
        EventReason.SCHEDULED,
    )


def admit(transaction: Transaction, record: JobRecord, nodes: tuple[str | None, ...], nonce: str) -> Job:
    """The Hub may create the pods until the reservation's deadline; returns the job as it starts."""
    starting = admission.as_admitted(record.job, nodes, transaction.cluster_state)
    admitted = replace(
        record,
        job=starting,
        deadline=transaction.now + transaction.store.reservation,
        awaiting_start=False,
        start_attempts=record.start_attempts + (record.job.state is JobState.QUEUED),
        nonce=nonce,
    )
    transaction.write(admitted, EventReason.ADMITTED)
    withdraw(transaction, starting.id, NoticeKind.CANNOT_START)
    return starting


def leave_in_cluster(transaction: Transaction, job: str) -> bool:
    """The Hub ends a start and leaves the pods to an engine; False if not all of the job's pods are known yet."""
    record = transaction.record(job)
    if record is None or record.job.state not in {JobState.STARTING, JobState.RUNNING} or record.reserved:
        return False
    if not record.awaiting_start:
        transaction.write(replace(record, awaiting_start=True, deadline=None), EventReason.WAITS_IN_CLUSTER)
    return True


def rejoin(transaction: Transaction, record: JobRecord) -> None:
    """The Hub starts the server of pods that were left to an engine."""
    transaction.write(replace(record, awaiting_start=False), EventReason.REJOINED)


def fail_start(transaction: Transaction, record: JobRecord, reason: EventReason, detail: str = "") -> None:
    """The job ends, because its start has failed for good."""
    transaction.write(as_ended(record), reason, detail)


def end_removed(transaction: Transaction, job: str) -> None:
    """A pending job ends, because the Hub has neither its server nor its owner any more."""
    record = transaction.record(job)
    if record is not None and record.job.state in WAITING:
        fail_start(transaction, record, EventReason.NO_SERVER, SERVER_REMOVED)


def require_login(transaction: Transaction, job: str) -> None:
    """The Hub starts the server only after a fresh login: the job holds nothing, and keeps its place."""
    record = transaction.record(job)
    if record is not None and (record.awaiting_start or record.job.reserved):
        waits = as_queued(record, JobState.LOGIN_REQUIRED)
        transaction.write(waits, EventReason.LOGIN_REQUIRED)
        notify_if_inadmissible(transaction, waits.job)


def log_in(transaction: Transaction, user: str, server: str) -> bool:
    """The user has logged in again: the job that required it is queued; False without such a job."""
    waits = transaction.store.pending_job(user, server)
    if waits is None or waits.job.state is not JobState.LOGIN_REQUIRED:
        return False
    transaction.write(as_queued(waits), EventReason.LOGGED_IN)
    withdraw(transaction, waits.job.id, NoticeKind.LOGIN_REQUIRED)
    transaction.store.capacity_changed.set()
    return True


def grow(transaction: Transaction, record: JobRecord, larger: Job, pod: PodRef) -> None:
    """A running job gets one more pod, which has waited behind its gate."""
    pods = (*record.pods, replace(pod, grown=True))
    transaction.write(replace(record, job=larger, pods=pods), EventReason.POD_ADMITTED, pod.name)


# Cancel and stop


def cancel_request(transaction: Transaction, user: str, server: str, who: str) -> bool:
    """Cancels the job of this server that is pending, starting, or about to be requeued; False without one."""
    waits = transaction.store.pending_job(user, server)
    if waits is not None:
        _cancel_pending(transaction, waits, f"by {who}")
        return True
    for job in transaction.store.on(user, server):
        record = transaction.store.records[job.id]
        if job.state is JobState.STARTING:
            _cancel_start(transaction, record, f"by {who}")
            return True
        if job.state is JobState.STOPPING and record.stop is not None:
            if record.stop.code is EventReason.CANCELLED:
                return True
            if job.requeue and record.stop.code in _WAITS_AGAIN:
                sentence = record.stop.message.removesuffix(STARTS_AGAIN).strip()
                why = StopReason(record.stop.code, _CANCELLED_BEFORE_REQUEUE.format(sentence))
                stopped = replace(record, job=replace(job, requeue=False), stop=why)
                transaction.write(stopped, EventReason.CANCELLED, f"by {who}")
                return True
    return False


def on_server_stopped(transaction: Transaction, user: str, server: str, job: str) -> None:
    """The Hub stops the server of this job, or its start; no ``job``: before the admission request."""
    record = transaction.record(job) if job else transaction.store.pending_job(user, server)
    if record is None or (record.job.user, record.job.server) != (user, server):
        return
    if record.is_pending:
        _cancel_pending(transaction, record, _SERVER_STOPPED)
        return
    # The Hub has ended the start: no further request for its pod is sent.
    over = replace(record, deadline=transaction.now) if record.reserved else record
    if record.job.state is JobState.STARTING:
        _cancel_start(transaction, over, _SERVER_STOPPED)
    elif record.job.state is JobState.STOPPING and record.reserved:
        transaction.write(over, EventReason.INTERRUPTED)
    elif record.stop is None:
        stopping = replace(record.job, state=JobState.STOPPING, notice=None)
        why = StopReason(EventReason.STOPPED_ON_HUB, STOPPED_ON_HUB)
        transaction.write(replace(record, job=stopping, stop=why), why.code, why.message)


def _cancel_pending(transaction: Transaction, record: JobRecord, detail: str) -> None:
    if record.waits_in_cluster:
        _cancel_start(transaction, record, detail)
    else:
        transaction.write(as_ended(record), EventReason.CANCELLED, detail)


def _cancel_start(transaction: Transaction, record: JobRecord, detail: str) -> None:
    """A job that may have a pod is stopped."""
    stopping = replace(record.job, state=JobState.STOPPING, notice=None)
    why = StopReason(EventReason.CANCELLED, CANCELLED_BEFORE_START)
    transaction.write(replace(record, job=stopping, stop=why, awaiting_start=False), EventReason.CANCELLED, detail)


_ENGINE_LEFT = "The cluster has another scheduler now. The job keeps its place and waits for that one."


def stop(transaction: Transaction, job: str, reason: EventReason, sentence: str) -> bool:
    """Stops a job; False when the job holds nothing that could be stopped, or is being stopped already.

    ``sentence`` tells the owner why, and what to do.
    """
    record = transaction.record(job)
    if record is None or record.job.state not in {JobState.STARTING, JobState.RUNNING}:
        return False
    if record.reserved and not record.seen:  # of several pods some may be there
        return False
    stopping = replace(record.job, state=JobState.STOPPING, notice=None)
    stopped = replace(record, job=stopping, stop=StopReason(reason, sentence), awaiting_start=False)
    transaction.write(stopped, reason, sentence)
    return True


def preempt_by_engine(transaction: Transaction, record: JobRecord, engine: str, why: str) -> JobRecord:
    """The scheduler underneath stops a pod of this job for another job: all of it is stopped, and may wait again.

    A Hub that was first to see the pod's end has reported a failure.
    """
    sentence = f"{EngineSays.STOPPED.sentence(engine, why)} {what_follows(record.job)}"
    if record.stop is not None and record.stop.code is EventReason.FAILED:
        preempted = replace(record, stop=StopReason(EventReason.PREEMPTED, sentence))
        transaction.write(preempted, EventReason.PREEMPTED, sentence)
    else:
        stop(transaction, record.job.id, EventReason.PREEMPTED, sentence)
    return transaction.record(record.job.id) or record


def take_back_from_engine(transaction: Transaction, *, engine_of: Callable[[str], str]) -> None:
    """Pods that wait for an engine that is not used any more are removed, and their jobs wait in the queue.

    ``engine_of``: the title of the engine that a pod waits for, by uid; empty for a pod that is not there.
    """
    present = transaction.cluster_state.cluster.scheduler.title
    for record in tuple(transaction.store.records.values()):
        if record.waits_in_cluster and engine_of(record.pod_uid or "") not in {"", present}:
            stop(transaction, record.job.id, EventReason.ENGINE_LEFT, _ENGINE_LEFT)


def on_job_ended(transaction: Transaction, job: str, user: str, sentence: str) -> None:
    """The Hub gives up a start whose pod was made, or has seen its end, and deletes the pod."""
    record = transaction.record(job)
    if record is not None and record.job.user == user:
        finished = sentence.startswith(pod_status.FINISHED)
        stop(transaction, job, EventReason.FINISHED if finished else EventReason.FAILED, sentence)


# Preemption


def give_notice(transaction: Transaction, victim: JobRecord, until: datetime, waiting: str) -> None:
    """The job is a victim and will be stopped, for the ``waiting`` job."""
    transaction.write(_with(victim, notice=until), EventReason.PREEMPTION_NOTICE, f"for={waiting}")


def move_notice(transaction: Transaction, victim: JobRecord, until: datetime) -> None:
    """The stop time of a victim changes."""
    transaction.write(_with(victim, notice=until), EventReason.NOTICE_MOVED)


def cancel_preemption(transaction: Transaction, victim: JobRecord) -> None:
    """The victim is not needed any more."""
    transaction.write(_with(victim, notice=None), EventReason.PREEMPTION_CANCELLED)
    withdraw(transaction, victim.job.id, NoticeKind.PREEMPTED)


def reserve_nodes(
    transaction: Transaction, record: JobRecord, nodes: tuple[str | None, ...], victims: Sequence[str]
) -> None:
    """A pending job gets these nodes when the victims have ended."""
    transaction.write(_with(record, nodes=nodes), EventReason.NODES_RESERVED, f"victims={','.join(victims)}")


def release_nodes(transaction: Transaction, record: JobRecord) -> None:
    """A pending job cannot get the nodes that were reserved for it."""
    transaction.write(_with(record, nodes=()), EventReason.RESERVATION_LOST)


def announce_demotion(transaction: Transaction, record: JobRecord, until: datetime) -> None:
    """The job exceeds its team's lowered quota: it turns preemptible at that time."""
    transaction.write(replace(record, demote_at=until), EventReason.QUOTA_LOWERED)


def demote(transaction: Transaction, record: JobRecord) -> None:
    """The job turns preemptible."""
    transaction.write(_with(record, preemptible=True), EventReason.TURNED_PREEMPTIBLE)


def cancel_demotion(transaction: Transaction, record: JobRecord) -> None:
    """The quota covers the job again, before it turned preemptible."""
    transaction.write(replace(record, demote_at=None), EventReason.QUOTA_RAISED)
    withdraw(transaction, record.job.id, NoticeKind.QUOTA_LOWERED)


def restore_guarantee(transaction: Transaction, record: JobRecord) -> None:
    """The quota covers a job again that had turned preemptible."""
    transaction.write(
        replace(_with(record, preemptible=False, notice=None), demote_at=None), EventReason.GUARANTEED_AGAIN
    )
    withdraw(transaction, record.job.id, NoticeKind.QUOTA_LOWERED, NoticeKind.PREEMPTED)


def _with(record: JobRecord, **changes: object) -> JobRecord:
    return replace(record, job=replace(record.job, **changes))  # type: ignore[arg-type]


# Pods


def observe(transaction: Transaction, record: JobRecord, reason: EventReason, pod: str) -> None:
    """A pod of the job has changed; ``record`` is the job after that, ``pod`` the pod's name in a job of several."""
    transaction.write(record, reason, pod)


def adopt(transaction: Transaction, record: JobRecord, pod: str) -> None:
    """A pod that no admission of this database has made is charged as its job."""
    withdraw(transaction, record.job.id)
    transaction.write(record, EventReason.ADOPTED, f"pod={pod}")


def charge_unadmitted(transaction: Transaction, record: JobRecord, detail: str) -> None:
    """A pod without a reservation is charged until it is gone."""
    transaction.write(record, EventReason.UNADMITTED_POD, detail)


def recover(transaction: Transaction, record: JobRecord, pod: str) -> None:
    """A pod of an ended job is observed again: the job has not ended."""
    transaction.write(record, EventReason.POD_RECOVERED, f"pod={pod}")


def finish(transaction: Transaction, record: JobRecord, reason: EventReason, sentence: str) -> None:
    """The last pod of the job has ended, as `pod_view` has read it."""
    transaction.write(as_ended(record), reason, sentence)


def expire_reservation(transaction: Transaction, record: JobRecord, *, ends: bool) -> None:
    """Pods of the job that were not observed will not be created; ``ends``: the job has no other pod."""
    transaction.write(as_ended(record) if ends else record, EventReason.POD_NEVER_CREATED)


def on_pods_gone(transaction: Transaction, record: JobRecord, seen: tuple[EventReason, str] | None) -> None:
    """The pods of a job are gone: the job has ended, or is pending again with its first submit time.

    ``seen``: how the last pod has ended, as `pod_view` has read it; ``None`` for one that went unseen.
    """
    job = record.job
    code = record.stop.code if record.stop is not None else None
    if code is EventReason.ENGINE_LEFT or (code in _WAITS_AGAIN and job.requeue):
        withdraw(transaction, job.id)
        requeue(transaction, replace(record, start_attempts=1, failures=0), EventReason.REQUEUED)
        return
    if record.stop is None:
        unseen = EventReason.REMOVED if job.state is JobState.STOPPING else EventReason.DISAPPEARED
        finish(transaction, record, *(seen or (unseen, "")))
    elif record.stop.code not in {EventReason.FAILED, EventReason.FINISHED}:
        transaction.write(as_ended(record), EventReason.GONE)
    else:  # the Hub was first to see it, and has the sentence
        evicted = seen is not None and seen[0] is EventReason.EVICTED
        transaction.write(as_ended(record), EventReason.EVICTED if evicted else record.stop.code)
