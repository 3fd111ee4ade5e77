"""Jobs, their events and their pods' events as users read them: filters, cursors, and sentences about them. PURE."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from dlspawner.core.job import Job, JobState
from dlspawner.core.resources import Extended
from dlspawner.core.units import counted
from dlspawner.manager.model.approval_request import ApprovalRequest
from dlspawner.manager.model.event_reason import EventReason, find_reason
from dlspawner.manager.model.records import StopReason


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter of jobs; ``None``, or no states: any. ``since`` and ``until`` are submit times.

    An empty ``gpu_type``: jobs without GPUs.
    """

    user: str | None = None
    server: str | None = None
    team: str | None = None
    template: str | None = None
    gpu_type: str | None = None
    preemptible: bool | None = None
    states: frozenset[JobState] = frozenset()
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobCursor:
    """A position in the list of all jobs, or of requests for approvals, newest first."""

    submitted: datetime
    job: str


@dataclass(frozen=True, slots=True)
class JobHistory:
    """A job as users see it; ``reason`` is that of its last event, ``stopped`` the time of the stop's decision.

    ``approval``: its latest request. ``pods`` and ``extended``, its extended resources, are known of one job only.
    """

    id: str
    user: str
    server: str
    team: str
    template: str
    priority: int
    preemptible: bool
    requeue: bool
    state: JobState
    reason: str
    gpu_type: str | None
    gpus_milli: int
    cpu_milli: int
    memory_bytes: int
    nodes: tuple[str | None, ...]
    submitted: datetime
    started: datetime | None
    ended: datetime | None
    notice: datetime | None
    stop: StopReason | None = None
    stopped: datetime | None = None
    pods: tuple[str, ...] = field(default=())
    approval: ApprovalRequest | None = None
    extended: Extended = ()

    @property
    def status(self) -> str:
        """The word of its badge: the state, or how it ended."""
        return outcome(self.reason, self.stop) if self.state is JobState.ENDED else self.state.value


@dataclass(frozen=True, slots=True)
class JobTransition:
    """One transition of a job."""

    at: datetime
    state: JobState
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class PodEventMessage:
    """One event of a pod of a job; ``key`` is the same when Kubernetes repeats it."""

    key: str
    at: datetime
    reason: str
    sentence: str
    count: int = 1


_NAME = re.compile(r"(?=.{1,30}$)[a-z][a-z0-9]*(-[a-z0-9]+)*")  # what JupyterHub 6 takes
NO_NAME = "A job's name has at most 30 small letters, digits and single hyphens: a letter first, no hyphen last."

GOING = "Starting."
ENDING = "Stopping."


def progress_sentence(state: JobState, stop: StopReason | None, happened: str = "") -> str:
    """Returns the progress of a starting or stopping job; ``happened``: the latest event of its pods."""
    if stop is not None:
        return stop.message
    if state is JobState.STARTING:
        return happened or GOING
    return ENDING if state is JobState.STOPPING else ""


def has_detail(reason: str, stop: StopReason | None) -> bool:
    """True if the sentence about an end includes the detail of its event."""
    known = find_reason(reason)
    return known is not None and known.has_public_detail and not (stop is not None and stop.message)


def end_sentence(reason: str, detail: str, stop: StopReason | None) -> str:
    if stop is not None and stop.message:
        return stop.message
    known = find_reason(reason)
    sentence = known.end_text if known is not None and known.end_text else "It has ended."
    if known is not None and known.has_public_detail and detail:
        return detail if sentence.endswith(".") else f"{sentence} {detail}"
    return f"{sentence.rstrip(':.')}."


_OUTCOMES = {
    EventReason.FAILED: "failed",
    EventReason.EVICTED: "failed",
    EventReason.POD_FAILED: "failed",
    EventReason.DISAPPEARED: "failed",
    EventReason.START_REFUSED: "failed",
    EventReason.START_FAILED: "failed",
    EventReason.NOT_STARTED: "failed",
    EventReason.NOT_CREATED: "failed",
    EventReason.POD_NEVER_CREATED: "failed",
    EventReason.PREEMPTED: "preempted",
    EventReason.IDLE: "culled",
    EventReason.LIFETIME: "culled",
}


def outcome(reason: str, stop: StopReason | None) -> str:
    """Returns how a job ended, in one word for its badge: failed, preempted, culled or ended."""
    decided = _OUTCOMES.get(stop.code) if stop is not None else None
    known = find_reason(reason)
    return decided or (_OUTCOMES.get(known, "ended") if known is not None else "ended")


def request_text(job: Job, team: str) -> str:
    """Returns what a job requests: ``2 GPUs of type a100, preemptible, team Vision``."""
    words = [size_text(job) if job.request.gpus else "", "preemptible" if job.preemptible else ""]
    return ", ".join(word for word in (*words, f"team {team}" if team else "") if word)


def size_text(job: Job) -> str:
    """Returns the size of a job: ``2 GPUs of type a100``, ``no GPU``."""
    return gpus_text(job.request.gpus, job.request.gpu_type)


def gpus_text(milli: int, kind: str | None) -> str:
    if not milli:
        return "no GPU"
    return counted(milli) + (f" of type {kind}" if kind else "")


def is_server_name(server: str) -> bool:
    """True if a new job may have this name; an empty one is the default server's."""
    return not server or _NAME.fullmatch(server) is not None
