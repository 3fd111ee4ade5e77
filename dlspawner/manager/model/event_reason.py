"""The reasons of a job's events, each with the user's and the operator's text. PURE.

The value of a reason is what the database, REST, logs and metrics say. Rules:

* ``user_text`` is the line of the event in the job's timeline; ``end_text`` is the sentence about a job with this as
  its last event. The event's detail takes the place of a whole sentence, and follows a colon.
* ``operator_text`` completes the log line: which component decided, and on what evidence.
* ``has_public_detail``: the detail is shown to the job's owner; it names no other user's job.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from dlspawner.core.launch import pod_status


class EventReason(StrEnum):
    """The reason of one transition of a job.

    Databases hold the values: one that ended jobs (``end_text``) is never removed, or their history could not be read.
    """

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
    QUEUED = "queued", "Queued", "the job fits neither quota nor nodes now, or is pending again"
    CHANGED = "changed", "Request changed", "the pending request was replaced in its place"
    REPLACED = (
        "replaced",
        "Replaced by a newer request",
        "a later request for the same server ended the pending one",
        "It was replaced by a newer request for the same server.",
    )
    APPROVAL = "approval", "Waiting for approval", "a limit or special permission needs an approval"
    APPROVAL_NOT_NEEDED = (
        "approval-not-needed",
        "Approval no longer needed",
        "nothing of the job needs an approval now",
    )
    APPROVED = "approved", "Approved", "a request of the job was approved", "", True
    DENIED = "denied", "Denied", "a request of the job was denied", "Denied", True
    CANCELLED = (
        "cancelled",
        "Cancelled",
        "the request was cancelled before the server was ready",
        "It was cancelled before it started.",
    )
    ENGINE_EVICTED = (
        "engine-evicted",
        "Requeued by the cluster's scheduler",
        "the engine evicted a job without pods",
        "",
        True,
    )
    ENGINE_LEFT = (
        "engine-left",
        "Requeued after a change of the scheduler",
        "the job's pods waited for an engine that is not used any more",
        "",
        True,
    )
    LOGIN_REQUIRED = (
        "login",
        "Waiting for its owner to log in",
        "the Hub starts the server only after a fresh login",
    )
    LOGGED_IN = "logged-in", "Owner logged in", "the user has logged in again"

    # The start
    SCHEDULED = "scheduled", "Scheduled", "the scheduling cycle reserved nodes and dispatches the start to the Hub"
    ADMITTED = "admitted", "Admitted", "the Hub may create the pods until the deadline"
    WAITS_IN_CLUSTER = (
        "waits-in-cluster",
        "Waiting in the cluster",
        "the Hub left the pods to the engine, which has not placed them",
    )
    REJOINED = "rejoined", "Placed by the cluster", "the Hub starts the server of the pods that were left"
    START_TIMEOUT = (
        "start-timeout",
        "Start timed out, requeued",
        "the Hub did not ask for the job before the deadline",
    )
    START_REFUSED = (
        "start-refused",
        "Start refused by the Hub",
        "the Hub refused the start",
        "The Hub refused to start it:",
        True,
    )
    START_FAILING = (
        "start-failing",
        "Start failed, to be retried",
        "the Hub answered the start with status 500",
        "",
        True,
    )
    START_FAILED = (
        "start-failed",
        "Start failed",
        "the Hub failed at every attempt",
        "The Hub could not start it. Ask an administrator: the Hub's log says why.",
    )
    NO_SERVER = (
        "no-server",
        "Server or owner removed",
        "the Hub has no such server or user",
        "Its server was removed before it could start.",
    )
    RUNS_ALREADY = (
        "runs-already",
        "Server already running",
        "another job of the same server runs",
        "It was not started: its server was already running.",
    )
    NOT_STARTED = (
        "not-started",
        "Not started",
        "the last start attempt had no result",
        "The Hub could not start it in several attempts. Ask an administrator.",
    )
    NOT_CREATED = (
        "not-created",
        "Pod refused by the cluster",
        "the Hub could not create the pod",
        "The cluster refused its pod:",
        True,
    )
    INTERRUPTED = "interrupted", "Start interrupted", "the Hub ended the start of a job that is being stopped"

    # Pods
    POD_SEEN = "pod-seen", "Pod created", "a pod of the job was observed", "", True
    BOUND = "bound", "Pod assigned to a node", "a pod of the job was bound to a node", "", True
    POD_ADMITTED = "pod-admitted", "Pod added:", "a running job grows by a pod that has waited", "", True
    POD_RUNNING = "pod-running", "Pod running", "a pod of the job runs", "", True
    POD_ENDED = "pod-ended", "A pod ended", "the program of a further pod of the job has ended", "", True
    RUNNING = "running", "Running", "all pods of the job run"
    DELETED = "deleted", "Pod stopping", "the deletion of a pod of the job was requested"
    POD_NEVER_CREATED = (
        "pod-never-created",
        "Pod never created",
        "no pod was observed before the reservation expired",
        "It was being started, but its pod was never created.",
    )
    POD_RECOVERED = "pod-recovered", "Pod found again", "a pod of an ended job was observed again"
    ADOPTED = "adopted", "Existing pod adopted", "a pod that no admission of this database has made is charged"
    UNADMITTED_POD = (
        "unadmitted-pod",
        "Stopped: its pod was created without admission",
        "a pod without a reservation is charged and will be deleted",
    )
    FINISHED = (
        "finished",
        "Finished",
        "the pods have ended with exit code 0",
        pod_status.FINISHED,
        True,
    )
    FAILED = (
        "failed",
        "Failed",
        "a pod has ended with a failure, or the Hub gives the start up",
        "Its program has failed.",
        True,
    )
    EVICTED = "evicted", "Ended by the cluster", "the cluster has ended the pods", "The cluster ended it.", True
    REMOVED = (
        "removed",
        "Pod removed",
        "the pods were deleted, and neither Hub nor Manager has said so",
        pod_status.REMOVED,
    )
    GONE = "gone", "Pod gone", "the pods of a stopped job are gone", "It was stopped."
    DISAPPEARED = (
        "disappeared",
        "Pod found to be gone",
        "the pods are gone, and no stop was requested",
        "Its pod is gone: whether it had ended or was removed was not seen.",
    )

    # Stops
    IDLE = "idle", "Stopped: idle", "the idle policy stops the job"
    LIFETIME = "lifetime", "Stopped: end of its lifetime", "the job has reached its lifetime"
    PREEMPTED = "preempted", "Stopped: preempted", "the preemption notice has expired"
    MAINTENANCE = "maintenance", "Stopped: maintenance of its node", "an administrator drains a node of the job"
    POD_FAILED = (
        "pod-failed",
        "Stopped: a pod ended",
        "a further pod of the job has ended",
        "",
        True,
    )
    STOPPED_ON_HUB = "stopped-on-hub", "Stopped on the Hub", "the Hub stops its server"
    STOPPED_BY_OWNER = "stopped-by-owner", "Stopped by its owner", "the owner stops the job"
    STOPPED_BY_ANOTHER = (
        "stopped-by-another",
        "Stopped by another user",
        "another authorised user or service stops the job",
    )
    REQUEUED = (
        "requeued",
        "Requeued at its earlier place",
        "a preempted job is pending again with its first submit time",
    )

    # Preemption
    PREEMPTION_NOTICE = "preemption-notice", "Preemption notice given", "the job is a victim of preemption"
    NOTICE_MOVED = "notice-moved", "Preemption time changed", "the stop time of a victim was moved"
    PREEMPTION_CANCELLED = "preemption-cancelled", "Preemption cancelled", "the victim is not needed any more"
    NODES_RESERVED = (
        "nodes-reserved",
        "Nodes reserved: other jobs are stopping",
        "nodes are reserved until the victims have ended",
    )
    RESERVATION_LOST = (
        "reservation-lost",
        "Reservation lost",
        "the reserved nodes cannot be had any more",
    )
    QUOTA_LOWERED = (
        "quota-lowered",
        "Team quota lowered",
        "the job exceeds the lowered quota and turns preemptible after notice",
    )
    QUOTA_RAISED = (
        "quota-raised",
        "Team quota restored",
        "the quota covers the job again before it turned preemptible",
    )
    TURNED_PREEMPTIBLE = "turned-preemptible", "Now preemptible", "the job exceeds the lowered quota"
    GUARANTEED_AGAIN = "guaranteed-again", "Guaranteed again", "the quota covers the job again"


_BY_VALUE = {reason.value: reason for reason in EventReason}


def find_reason(value: str) -> EventReason | None:
    """Returns the reason with this value; ``None`` for a value that another version has written."""
    return _BY_VALUE.get(value)
