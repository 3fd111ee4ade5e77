"""The reasons of a job's events, each with the user's and the operator's text. PURE.

The value of a reason is what the database, REST, logs and metrics say. Rules:

* ``user_text`` is the line of the event in the job's timeline; ``end_text`` is the sentence about a job with this as
  its last event. A sentence that ends with a colon is followed by the event's detail.
* ``operator_text`` completes the log line: which component decided, and on what evidence.
* ``has_public_detail``: the detail is shown to the job's owner; it names no other user's job.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class EventReason(StrEnum):
    """The reason of one transition of a job."""

    user_text: str
    operator_text: str
    end_text: str
    has_public_detail: bool

    def __new__(
        cls,
        value: str,
        user_text: str,
        operator_text: str,
        end_text: str = "",
        has_public_detail: bool = False,
    ) -> Self:
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.user_text, reason.operator_text = user_text, operator_text
        reason.end_text, reason.has_public_detail = end_text, has_public_detail
        return reason

    # The queue
    QUEUED = "queued", "It waits in the queue.", "the job fits neither quota nor nodes now, or is pending again"
    CHANGED = "changed", "Its person asked for something else.", "the pending request was replaced in its place"
    REPLACED = (
        "replaced",
        "Another request took its place.",
        "a later request for the same server ended the pending one",
        "Another request for the same server took its place.",
    )
    APPROVAL = "approval", "It waits for an approval.", "a limit or special permission needs an approval"
    APPROVAL_NOT_NEEDED = (
        "approval-not-needed",
        "It needs no approval any more.",
        "nothing of the job needs an approval now",
    )
    APPROVED = "approved", "It was approved", "a request of the job was approved", "", True
    DENIED = "denied", "It was denied", "a request of the job was denied", "It was denied", True
    CANCELLED = (
        "cancelled",
        "It was cancelled.",
        "the request was cancelled before the server was ready",
        "It was cancelled before it ran.",
    )
    ENGINE_EVICTED = (
        "engine-evicted",
        "The cluster's scheduler took its place back, and it waits again.",
        "the engine evicted a job without pods",
        "",
        True,
    )
    LOGIN_REQUIRED = (
        "login",
        "The Hub wants a fresh login of its person.",
        "the Hub starts the server only after a fresh login",
    )
    LOGGED_IN = "logged-in", "Its person logged in again.", "the user has logged in again"

    # The start
    SCHEDULED = "scheduled", "Its turn came.", "the scheduling cycle reserved nodes and dispatches the start to the Hub"
    ADMITTED = "admitted", "It may start.", "the Hub may create the pods until the deadline"
    WAITS_IN_CLUSTER = (
        "waits-in-cluster",
        "It waits in the cluster.",
        "the Hub left the pods to the engine, which has not placed them",
    )
    REJOINED = "rejoined", "The cluster has placed it.", "the Hub starts the server of the pods that were left"
    START_TIMEOUT = (
        "start-timeout",
        "It could not be started in time, and waits again.",
        "the Hub did not ask for the job before the deadline",
    )
    START_REFUSED = (
        "start-refused",
        "The Hub refused to start it.",
        "the Hub refused the start",
        "Its turn came, and the Hub refused to start it:",
        True,
    )
    START_FAILING = (
        "start-failing",
        "The Hub could not start it, and is asked again later.",
        "the Hub answered the start with status 500",
        "",
        True,
    )
    START_FAILED = (
        "start-failed",
        "The Hub could not start it.",
        "the Hub failed at every attempt",
        "Its turn came, and the Hub could not start it: its administrator finds why in the Hub's log.",
    )
    NO_SERVER = (
        "no-server",
        "Its server, or its owner, is not there any more.",
        "the Hub has no such server or user",
        "Its turn came, and the Hub had no such server any more.",
    )
    RUNS_ALREADY = (
        "runs-already",
        "Its server ran already.",
        "another job of the same server runs",
        "Its turn came, and the server ran already.",
    )
    NOT_STARTED = (
        "not-started",
        "It could not be started.",
        "the last start attempt had no result",
        "Its turn came many times, and the Hub could not start it. Ask an administrator.",
    )
    NOT_CREATED = (
        "not-created",
        "The cluster refused its pod.",
        "the Hub could not create the pod",
        "The cluster refused its pod:",
        True,
    )
    START_ABANDONED = "start-abandoned", "Its start was lost.", "the Hub does not start the server any more"
    INTERRUPTED = "interrupted", "Its start was broken off.", "the Hub ended the start of a job that is being stopped"

    # Pods
    POD_SEEN = "pod-seen", "Its pod was made.", "a pod of the job was observed"
    BOUND = "bound", "Its pod has a node.", "a pod of the job was bound to a node"
    POD_RUNNING = "pod-running", "Its pod runs.", "a pod of the job runs"
    RUNNING = "running", "It runs.", "all pods of the job run"
    DELETED = "deleted", "Its pod is being stopped.", "the deletion of a pod of the job was requested"
    POD_NEVER_CREATED = (
        "pod-never-created",
        "No pod of it ever came.",
        "no pod was observed before the reservation expired",
        "It was being started, and no pod of it ever came.",
    )
    POD_RECOVERED = "pod-recovered", "Its pod was found again.", "a pod of an ended job was observed again"
    ADOPTED = "adopted", "Its pod was there already.", "a pod that was created without an admission request is charged"
    UNADMITTED_POD = (
        "unadmitted-pod",
        "Nobody had let its pod in.",
        "a pod without a reservation is charged and will be deleted",
    )
    FINISHED = "finished", "Its program has ended.", "the pods have ended with exit code 0", "Its program has ended."
    FAILED = (
        "failed",
        "It has failed.",
        "a pod has ended with a failure, or the Hub gives the start up",
        "Its program has failed:",
        True,
    )
    EVICTED = "evicted", "The cluster ended it.", "the cluster has ended the pods", "The cluster ended it.", True
    GONE = "gone", "Its pod is gone.", "the pods of a stopped job are gone", "It was stopped."
    DISAPPEARED = (
        "disappeared",
        "Its pod was found to be gone.",
        "the pods are gone, and no stop was requested",
        "Its pod is gone: whether it had ended or was removed was not seen.",
    )

    # Stops
    IDLE = "idle", "It is stopped: nobody used it.", "the idle policy stops the job"
    LIFETIME = "lifetime", "It is stopped at the end of its lifetime.", "the job has reached its lifetime"
    PREEMPTED = "preempted", "It is stopped: others are entitled to its GPUs.", "the preemption notice has expired"
    POD_FAILED = (
        "pod-failed",
        "It is stopped: one of its pods has ended.",
        "a further pod of the job has ended",
        "",
        True,
    )
    STOPPED_BY_OWNER = "stopped-by-owner", "Its owner stops it.", "the owner stops the job"
    STOPPED_BY_ANOTHER = (
        "stopped-by-another",
        "Somebody who may act on it stops it.",
        "another authorised user or service stops the job",
    )
    REQUEUED = (
        "requeued",
        "It waits again, at its old place.",
        "a preempted job is pending again with its first submit time",
    )

    # Preemption
    PREEMPTION_NOTICE = "preemption-notice", "It was told that it has to leave.", "the job is a victim of preemption"
    NOTICE_MOVED = "notice-moved", "The time at which it has to leave was moved.", "the stop time of a victim was moved"
    PREEMPTION_CANCELLED = "preemption-cancelled", "It may stay after all.", "the victim is not needed any more"
    NODES_RESERVED = "nodes-reserved", "Others leave for it.", "nodes are reserved until the victims have ended"
    RESERVATION_LOST = (
        "reservation-lost",
        "What it was promised is not to be had any more.",
        "the reserved nodes cannot be had any more",
    )
    QUOTA_LOWERED = (
        "quota-lowered",
        "Its team has less quota now.",
        "the job exceeds the lowered quota and turns preemptible after notice",
    )
    QUOTA_RAISED = (
        "quota-raised",
        "Its team has its quota again.",
        "the quota covers the job again before it turned preemptible",
    )
    TURNED_PREEMPTIBLE = "turned-preemptible", "Others may stop it from now on.", "the job exceeds the lowered quota"
    GUARANTEED_AGAIN = "guaranteed-again", "Nobody may stop it any more.", "the quota covers the job again"


_BY_VALUE = {reason.value: reason for reason in EventReason}


def find_reason(value: str) -> EventReason | None:
    """Returns the reason with this value; ``None`` for a value that another version has written."""
    return _BY_VALUE.get(value)
