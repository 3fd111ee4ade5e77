"""The stored record of a job beside the core's own value, and the form of a resource request. PURE.

A resource request is stored whole, with the node placement of its pods, so that a restarted Manager knows the held
resources of each node, also after a change of cluster.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from dlspawner.core.job import Job, JobState, Permissions
from dlspawner.core.resources import ResourceRequest
from dlspawner.manager.model.approval_request import ApprovalRequest
from dlspawner.manager.model.event_reason import EventReason

MAX_START_ATTEMPTS = 10  # for a job if its starts fail without a reason
# Pending: it holds nothing, and may start.
WAITING = frozenset({JobState.QUEUED, JobState.LOGIN_REQUIRED, JobState.PENDING_APPROVAL})
EXTERNAL_POD_PREFIX = "pod-"  # prefix of the ids of records of pods without a job


@dataclass(frozen=True, slots=True)
class StopReason:
    """The decision to stop a job: the reason of its event, and the sentence that the owner reads."""

    code: EventReason
    message: str


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod that was observed; ``namespace`` as `JobNamespaces.to_key` returns it.

    ``running``: it runs; of a further pod of a job of several also: it has ended, which the others need not wait for.
    ``role``: its name within a job of several, ``worker-1``. ``ended``: a further pod whose program has ended by
    itself. ``grown``: the job got it while it ran, and starts without it.
    """

    uid: str
    name: str
    running: bool = False
    namespace: str = ""
    role: str = ""
    grown: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class GatedPod:
    """A further pod that waits behind a gate until its job gets it; ``manifest``: the parts of its spec that count."""

    job: str
    ref: PodRef
    request: ResourceRequest
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job and its pods.

    ``deadline``: the Hub creates the pods before it. ``pods``: one for each pod of the request, ``None`` for a pod that
    was not observed yet; empty before the first is observed. ``demote_at``: when the job turns preemptible, because its
    team has less quota now. ``awaiting_start``: the job is scheduled, and the Hub has not sent its admission request
    yet; of a job with pods: the Hub has left them to an engine of the cluster, and is asked again when
    all have nodes. ``start_attempts``: how often it was scheduled, 0 for a job that was never queued. ``failures``: how
    many of its starts the Hub has answered with status 500. ``nonce``: of the last admitted start, which its pods have.
    ``options``: the user options of its last admission request, as JSON; empty if there was none.
    """

    job: Job
    deadline: datetime | None = None
    request_seconds: float = 0.0  # for how long a request that was sent before the deadline may be on its way
    pods: tuple[PodRef | None, ...] = ()
    stop: StopReason | None = None
    demote_at: datetime | None = None
    awaiting_start: bool = False
    start_attempts: int = 0
    failures: int = 0
    nonce: str = ""
    options: str = ""

    @property
    def seen(self) -> tuple[PodRef, ...]:
        return tuple(pod for pod in self.pods if pod is not None)

    @property
    def uids(self) -> frozenset[str]:
        """The uids of its pods that were observed."""
        return frozenset(pod.uid for pod in self.seen)

    @property
    def reserved(self) -> bool:
        """True if resources are held for a pod that was not observed yet."""
        if self.job.state is JobState.STOPPING:
            return not self.seen
        return self.job.state is JobState.STARTING and len(self.seen) < len(self.job.request.pods)

    @property
    def is_dispatched(self) -> bool:
        """True while the Hub starts a scheduled job: until its pods are observed."""
        return (self.awaiting_start and not self.seen) or (
            self.start_attempts > 0 and self.reserved and self.job.state is JobState.STARTING
        )

    @property
    def admitted(self) -> bool:
        """True if the job was ever admitted."""
        return self.deadline is not None or self.start_attempts > 0

    @property
    def is_pending(self) -> bool:
        """True if the job waits, or is scheduled and the Hub has not sent its admission request yet."""
        return self.awaiting_start or self.job.state in WAITING

    @property
    def waits_in_cluster(self) -> bool:
        """True if the job's pods are there and wait for an engine, or for the Hub after that."""
        return self.awaiting_start and bool(self.seen)

    @property
    def pod_uid(self) -> str | None:
        """The uid of the job's first pod."""
        return self.seen[0].uid if self.seen else None

    @property
    def pod_name(self) -> str | None:
        return self.seen[0].name if self.seen else None


def as_ended(record: JobRecord) -> JobRecord:
    return replace(record, job=replace(record.job, state=JobState.ENDED), awaiting_start=False)


def as_queued(record: JobRecord, state: JobState = JobState.QUEUED) -> JobRecord:
    """Returns the record of the pending job: it holds nothing, and keeps its first submit time.

    A job that had turned preemptible is again what its owner requested, and one that has grown starts small.
    """
    preemptible = record.job.preemptible and record.demote_at is None
    pods = record.job.request.pods
    request = replace(record.job.request, pods=pods[: len(pods) - sum(pod.grown for pod in record.seen)])
    job = replace(record.job, request=request, nodes=(), started=None, notice=None, idle=False)
    job = replace(job, state=state, preemptible=preemptible, ports=())
    return replace(record, job=job, awaiting_start=False, deadline=None, pods=(), stop=None, demote_at=None)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A transition: the record after it, its reason, and the approval requests that it changes."""

    record: JobRecord
    at: datetime
    reason: EventReason
    detail: str = ""
    new: bool = False
    requests: tuple[ApprovalRequest, ...] = ()


# In the database, as JSON; what has its usual value in few pods is left out.

_REQUEST, _SPECIAL = TypeAdapter(ResourceRequest), TypeAdapter(Permissions)
_PODS, _PORTS = TypeAdapter(tuple[PodRef | None, ...]), TypeAdapter(tuple[tuple[int, ...], ...])


def write_request(charge: ResourceRequest) -> str:
    return _REQUEST.dump_json(charge, exclude={"gpus", "extended", "_hash"}).decode()


def read_request(text: str) -> ResourceRequest:
    return _REQUEST.validate_json(text)


def write_special(special: Permissions | None) -> str | None:
    return None if special is None else _SPECIAL.dump_json(special).decode()


def read_special(text: str | None) -> Permissions | None:
    return _SPECIAL.validate_json(text) if text else None


def write_pods(pods: Sequence[PodRef | None]) -> str:
    return _PODS.dump_json(tuple(pods), exclude_defaults=True).decode()


def read_pods(text: str) -> tuple[PodRef | None, ...]:
    return _PODS.validate_json(text)


def read_ports(text: str) -> tuple[tuple[int, ...], ...]:
    return _PORTS.validate_json(text)
