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

from dlspawner.core.charge import Charge, PodCharge
from dlspawner.core.jobs import Job, Permissions, State
from dlspawner.core.model import Special, Toleration
from dlspawner.core.nodes import Expression, Placement
from dlspawner.manager.approvals import Request

MOST_TURNS = 10  # of a job whose starts come to nothing, and nobody says why
CANCELLED = "cancelled"  # why a job has ended, or is stopped: by its person or an administrator, before it ran
WAITING = frozenset({State.QUEUED, State.WAITING_LOGIN, State.WAITING_APPROVAL})  # it holds nothing, and may start yet
OF_POD = "pod-"  # how the id of a record begins that is of a pod and of no job


@dataclass(frozen=True, slots=True)
class Stop:
    """That a job is stopped, decided once: a word for events and logs, and the sentence that the person reads."""

    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod that was seen, and whether it runs; ``namespace`` as `Namespaces.short` says it."""

    uid: str
    name: str
    running: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Record:
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
    stop: Stop | None = None
    yields: datetime | None = None
    due: bool = False
    turns: int = 0
    failures: int = 0
    nonce: str = ""

    @property
    def seen(self) -> tuple[PodRef, ...]:
        return tuple(pod for pod in self.pods if pod is not None)

    @property
    def reserved(self) -> bool:
        """Whether something is held for a pod that nobody has seen yet."""
        if self.job.state is State.STOPPING:
            return not self.seen
        return self.job.state is State.STARTING and len(self.seen) < len(self.job.charge.pods)

    @property
    def under_way(self) -> bool:
        """Whether the Hub is at work on a start whose turn has come: until its pods are seen."""
        return self.due or (self.turns > 0 and self.reserved and self.job.state is State.STARTING)

    @property
    def admitted(self) -> bool:
        """Whether the Hub was ever told that it may start this job."""
        return self.deadline is not None or self.turns > 0

    @property
    def waits(self) -> bool:
        """Whether the job is still in the queue's hands: it waits, or its turn came and the Hub has not asked yet."""
        return self.due or self.job.state in WAITING

    @property
    def pod_uid(self) -> str | None:
        """Of the first pod that was seen."""
        return self.seen[0].uid if self.seen else None

    @property
    def pod_name(self) -> str | None:
        return self.seen[0].name if self.seen else None


def ended(record: Record) -> Record:
    """The job's end."""
    return replace(record, job=replace(record.job, state=State.ENDED), due=False)


def waiting(record: Record, state: State = State.QUEUED) -> Record:
    """The job back in its place: it holds nothing, and came when it first came.

    One that had turned preemptible is again what its person had asked for.
    """
    preemptible = record.job.preemptible and record.yields is None
    job = replace(record.job, state=state, nodes=(), started=None, notice=None, idle=False, preemptible=preemptible)
    return replace(record, job=job, due=False, deadline=None, pods=(), stop=None, yields=None)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it is from now on, the event that made it so, and what that changes of its requests."""

    record: Record
    at: datetime
    reason: str
    detail: str = ""
    new: bool = False
    requests: tuple[Request, ...] = ()


def write_charge(charge: Charge) -> str:
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
    return Permissions(**{**content, "special": tuple(map(Special, content["special"]))})


def write_pods(pods: Sequence[PodRef | None]) -> str:
    """A job's pods as JSON."""
    return json.dumps([None if pod is None else _written(pod) for pod in pods])


def _written(pod: PodRef) -> dict[str, object]:
    """Without a namespace that says nothing, so that an earlier version reads it as well."""
    return {key: value for key, value in asdict(pod).items() if key != "namespace" or value}


def read_pods(text: str) -> tuple[PodRef | None, ...]:
    """The pods that ``write_pods`` wrote."""
    return tuple(None if one is None else PodRef(**one) for one in json.loads(text))


def read_charge(text: str) -> Charge:
    """The charge that ``write_charge`` wrote."""
    content = json.loads(text)
    return Charge(content["gpu_type"], tuple(_pod(one) for one in content["pods"]))


def _pod(content: Mapping[str, Any]) -> PodCharge:
    return PodCharge(**{**content, "placement": _placement(content["placement"])})


def _placement(content: Mapping[str, Any]) -> Placement:
    return Placement(
        selector=_pairs(content["selector"]),
        terms=tuple(tuple(_expression(one) for one in term) for term in content["terms"]),
        tolerations=tuple(Toleration(**one) for one in content["tolerations"]),
        node=content["node"],
    )


def _expression(content: Mapping[str, Any]) -> Expression:
    return Expression(content["key"], content["operator"], tuple(content["values"]))


def _pairs(content: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in content)
