"""What the Manager keeps of a job beside the core's own value, and how a charge is written down.

PURE. A charge is kept whole, with the demands that its pods make of their nodes, so that a restart knows what is held
where, whatever cluster.yaml says by then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from dlspawner.core.config import SpecialPermission, Toleration
from dlspawner.core.job import Job, JobState, Permissions
from dlspawner.core.nodes import Expression, NodePlacement
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.manager.model.approval_request import ApprovalRequest
from dlspawner.manager.model.event_reason import EventReason

MAX_START_ATTEMPTS = 10  # of a job whose starts come to nothing, and nobody says why
WAITING = frozenset(
    {JobState.QUEUED, JobState.LOGIN_REQUIRED, JobState.PENDING_APPROVAL}
)  # it holds nothing, and may start yet
EXTERNAL_POD_PREFIX = "pod-"  # how the id of a record begins that is of a pod and of no job


@dataclass(frozen=True, slots=True)
class StopReason:
    """The decision to stop a job: the reason of its event, and the sentence that the owner reads."""

    code: EventReason
    message: str


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod that was seen, and whether it runs; ``namespace`` as `Namespaces.short` says it."""

    uid: str
    name: str
    running: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job and its pods.

    ``deadline``: the Hub creates the pods before it. ``pods``: one for each pod of the charge, ``None`` for one that
    nobody has seen yet; none at all before the first is seen. ``stop`` is why it is being stopped; ``yields`` when it
    turns preemptible, because its team has less quota now. ``due``: its turn has come, and the Hub has to be told:
    nobody was told yet that it may have a pod. ``turns``: how often that was so, 0 for a job that never waited.
    ``failures``: at how many of its starts the Hub itself has failed. ``nonce``: of the last start that was admitted,
    which its pods have; empty where the Hub, an earlier version, had told none.
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

    @property
    def seen(self) -> tuple[PodRef, ...]:
        return tuple(pod for pod in self.pods if pod is not None)

    @property
    def reserved(self) -> bool:
        """Whether something is held for a pod that nobody has seen yet."""
        if self.job.state is JobState.STOPPING:
            return not self.seen
        return self.job.state is JobState.STARTING and len(self.seen) < len(self.job.request.pods)

    @property
    def is_dispatched(self) -> bool:
        """Whether the Hub is at work on a start whose turn has come: until its pods are seen."""
        return self.awaiting_start or (
            self.start_attempts > 0 and self.reserved and self.job.state is JobState.STARTING
        )

    @property
    def admitted(self) -> bool:
        """Whether the Hub was ever told that it may start this job."""
        return self.deadline is not None or self.start_attempts > 0

    @property
    def is_pending(self) -> bool:
        """Whether the job is still in the queue's hands: it waits, or its turn came and the Hub has not asked yet."""
        return self.awaiting_start or self.job.state in WAITING

    @property
    def pod_uid(self) -> str | None:
        """Of the first pod that was seen."""
        return self.seen[0].uid if self.seen else None

    @property
    def pod_name(self) -> str | None:
        return self.seen[0].name if self.seen else None


def as_ended(record: JobRecord) -> JobRecord:
    """The job's end."""
    return replace(record, job=replace(record.job, state=JobState.ENDED), awaiting_start=False)


def as_queued(record: JobRecord, state: JobState = JobState.QUEUED) -> JobRecord:
    """The job back in its place: it holds nothing, and came when it first came.

    One that had turned preemptible is again what its person had asked for.
    """
    preemptible = record.job.preemptible and record.demote_at is None
    job = replace(record.job, state=state, nodes=(), started=None, notice=None, idle=False, preemptible=preemptible)
    return replace(record, job=job, awaiting_start=False, deadline=None, pods=(), stop=None, demote_at=None)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A record as it is from now on, the event that made it so, and what that changes of its requests."""

    record: JobRecord
    at: datetime
    reason: EventReason
    detail: str = ""
    new: bool = False
    requests: tuple[ApprovalRequest, ...] = ()


def write_request(charge: ResourceRequest) -> str:
    """A charge as JSON."""
    return json.dumps({"gpu_type": charge.gpu_type, "pods": [asdict(pod) for pod in charge.pods]})


def write_special(special: Permissions | None) -> str | None:
    """Special permissions as JSON."""
    if special is None:
        return None
    return json.dumps({**asdict(special), "special": [one.value for one in special.special]})


def read_special(text: str | None) -> Permissions | None:
    """What ``write_special`` wrote."""
    if not text:
        return None
    content = json.loads(text)
    return Permissions(**{**content, "special": tuple(map(SpecialPermission, content["special"]))})


def write_pods(pods: Sequence[PodRef | None]) -> str:
    """A job's pods as JSON."""
    return json.dumps([None if pod is None else _written(pod) for pod in pods])


def _written(pod: PodRef) -> dict[str, object]:
    """Without a namespace that says nothing, so that an earlier version reads it as well."""
    return {key: value for key, value in asdict(pod).items() if key != "namespace" or value}


def read_pods(text: str) -> tuple[PodRef | None, ...]:
    """The pods that ``write_pods`` wrote."""
    return tuple(None if one is None else PodRef(**one) for one in json.loads(text))


def read_request(text: str) -> ResourceRequest:
    """The charge that ``write_charge`` wrote."""
    content = json.loads(text)
    return ResourceRequest(content["gpu_type"], tuple(_pod(one) for one in content["pods"]))


def _pod(content: Mapping[str, Any]) -> PodRequest:
    return PodRequest(**{**content, "placement": _placement(content["placement"])})


def _placement(content: Mapping[str, Any]) -> NodePlacement:
    return NodePlacement(
        selector=_pairs(content["selector"]),
        terms=tuple(tuple(_expression(one) for one in term) for term in content["terms"]),
        tolerations=tuple(Toleration(**one) for one in content["tolerations"]),
        node=content["node"],
    )


def _expression(content: Mapping[str, Any]) -> Expression:
    return Expression(content["key"], content["operator"], tuple(content["values"]))


def _pairs(content: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in content)
