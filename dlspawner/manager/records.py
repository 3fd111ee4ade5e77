"""What the Manager keeps of a job beside the core's own value, and how a charge is written down.

PURE. A charge is kept whole, with the demands that its pods make of their nodes, so that a restart knows what is held
where, whatever cluster.yaml says by then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from dlspawner.core.charge import Charge, PodCharge
from dlspawner.core.jobs import Job, State
from dlspawner.core.model import Toleration
from dlspawner.core.nodes import Expression, Placement


@dataclass(frozen=True, slots=True)
class Stop:
    """That a job is stopped, decided once: a word for events and logs, and the sentence that the person reads."""

    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Record:
    """A job and its pod. ``deadline``: the Hub creates the pod before it; ``pod_uid``: the pod, once it was seen.

    ``stop`` is why it is being stopped; ``yields`` when it turns preemptible, because its team has less quota now.
    """

    job: Job
    deadline: datetime | None = None
    request_seconds: float = 0.0  # for how long a request that was sent before the deadline may be on its way
    pod_uid: str | None = None
    pod_name: str | None = None
    stop: Stop | None = None
    yields: datetime | None = None

    @property
    def reserved(self) -> bool:
        """Whether something is held for a pod that nobody has seen yet."""
        return self.job.state is State.STARTING and self.pod_uid is None


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it is from now on, and the event that made it so."""

    record: Record
    at: datetime
    reason: str
    detail: str = ""
    new: bool = False


def write_charge(charge: Charge) -> str:
    """A charge as JSON."""
    return json.dumps({"gpu_type": charge.gpu_type, "pods": [asdict(pod) for pod in charge.pods]})


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
