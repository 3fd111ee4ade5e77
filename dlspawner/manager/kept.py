"""What is kept of jobs for people: a job, its events and its pods'; which are wanted, a place in their list. PURE."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from dlspawner.core.jobs import JobState
from dlspawner.manager.approvals import ApprovalRequest
from dlspawner.manager.records import StopReason


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are wanted; ``None``, or no states: whatever it is. ``since`` and ``until`` are submit times.

    An empty ``gpu_type`` is that of jobs without GPUs.
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
    """A place in the list of all jobs, the newest of which is the first."""

    submitted: datetime
    job: str


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What people are told of a job; ``reason`` is that of its last event, ``stopped`` when it was stopped.

    ``approval`` is the latest thing that it has asked for.
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


@dataclass(frozen=True, slots=True)
class JobTransition:
    """One transition of a job."""

    at: datetime
    state: JobState
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class PodEventMessage:
    """One thing that happened to a pod of a job; ``key`` is the same when it is told again."""

    key: str
    at: datetime
    reason: str
    sentence: str
    count: int = 1
