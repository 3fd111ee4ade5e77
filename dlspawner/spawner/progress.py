"""What a starting job is doing, in words for the person who waits. Pure: a pod in, a step out.

The pod says nearly everything; that an image is being pulled is known from its events (``trouble.pulling``), by one
request per start that is slow. Percentages are milestones, not measurements; the Hub adds the last one when the server
answers. Whoever shows steps lets the percentage never fall: a container that starts again is no way back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from dlspawner.core import text
from dlspawner.spawner.verdict import PodDict

_WORTH_SAYING = 5.0  # what takes less needs no number
_MINUTES_ALONE = 10  # from so many on, nobody counts the seconds


class StartStage(StrEnum):
    """Where a start is: a step of the same stage is the same news with another number."""

    PREPARING = "preparing"
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    PULLING = "pulling"
    INITIALIZING = "initializing"
    STARTING = "starting"
    ANSWERING = "answering"


_PERCENT = {
    StartStage.PREPARING: 5,
    StartStage.QUEUED: 10,
    StartStage.SCHEDULED: 30,
    StartStage.PULLING: 35,
    StartStage.INITIALIZING: 50,
    StartStage.STARTING: 60,
    StartStage.ANSWERING: 80,
}


@dataclass(frozen=True, slots=True)
class ImagePull:
    """An image that the pod's node is fetching, and since when."""

    image: str
    since: datetime


@dataclass(frozen=True, slots=True)
class StartStep:
    """How far it is, from 0 to 100, the sentence for it, and for how many seconds it has been so, if that is known."""

    percent: int
    message: str
    stage: StartStage
    seconds: float | None = None
    trouble: bool = False  # the sentence says what holds the start up, and what to do

    def event(self) -> dict[str, Any]:
        """As the Hub's progress page wants it; ``stage`` and ``trouble`` are for our own."""
        said = self.message
        if self.seconds is not None and self.seconds >= _WORTH_SAYING:
            said = f"{said.removesuffix('.')}, for {_passed(self.seconds)} so far."
        return {"progress": self.percent, "message": said, "stage": str(self.stage), "trouble": self.trouble}


def start_step(pod: PodDict | None, now: datetime, note: str | None = None, pull: ImagePull | None = None) -> StartStep:
    """Where the pod is between being asked for and answering; ``note`` says what holds it up."""
    found = _step(pod, now, pull)
    if note is None or found.stage is StartStage.ANSWERING:
        return found
    return StartStep(found.percent, note, found.stage, trouble=True)


def _step(pod: PodDict | None, now: datetime, pull: ImagePull | None) -> StartStep:
    if pod is None:
        return _at(StartStage.PREPARING, "Preparing storage and asking the cluster for a place.")
    if pod["metadata"].get("deletionTimestamp"):
        return _at(StartStage.PREPARING, "An earlier job of this server is ending.")
    spec: PodDict = pod.get("spec") or {}
    node = spec.get("nodeName")
    if not node:
        scheduler = str(spec.get("schedulerName") or "")
        whom = "" if scheduler in ("", "default-scheduler") else f"the scheduler {scheduler} to choose "
        return _at(
            StartStage.QUEUED, f"Waiting for {whom}a node.", _time(pod["metadata"].get("creationTimestamp"), now)
        )
    return _on_node(spec, pod.get("status") or {}, str(node), now, pull)


def _on_node(spec: PodDict, status: PodDict, node: str, now: datetime, pull: ImagePull | None) -> StartStep:
    containers: Sequence[PodDict] = status.get("containerStatuses") or ()
    if containers and all(container.get("ready") for container in containers):
        return _at(StartStage.ANSWERING, f"The job runs on {node}. Waiting for its first answer.")
    if started := [seconds for _, seconds in _running(containers, now)]:
        unready = [str(one.get("name")) for one in containers if not one.get("ready")]
        waits = f"{text.listed(unready)} {'is' if len(unready) == 1 else 'are'}"
        return _at(StartStage.STARTING, f"The job has started on {node}. Waiting until {waits} ready.", min(started))
    if pull is not None:
        return _at(StartStage.PULLING, f"Pulling the image {pull.image} on {node}.", _since(pull.since, now))
    return _initializing(spec, status, node, now) or _at(
        StartStage.SCHEDULED, f"The job has a place on {node}. Preparing storage and image."
    )


def _initializing(spec: PodDict, status: PodDict, node: str, now: datetime) -> StartStep | None:
    """The init container that runs; those that stay beside the job are no step of their own."""
    stay = {one.get("name") for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"}
    inits = [one for one in status.get("initContainerStatuses") or () if one.get("name") not in stay]
    for number, container in enumerate(inits, 1):
        for name, seconds in _running([container], now):
            which = f" ({number} of {len(inits)})" if len(inits) > 1 else ""
            return _at(StartStage.INITIALIZING, f"Preparing the job on {node}: {name}{which} is running.", seconds)
    return None


def _running(containers: Sequence[PodDict], now: datetime) -> Iterator[tuple[str, float]]:
    for container in containers:
        running: PodDict | None = (container.get("state") or {}).get("running")
        if running is not None:
            yield str(container.get("name")), _time(running.get("startedAt"), now) or 0.0


def _passed(seconds: float) -> str:
    """How long so far, in steps of five seconds, later in minutes."""
    minutes, rest = divmod(int(seconds) // 5 * 5, 60)
    if minutes and rest and minutes < _MINUTES_ALONE:
        return f"{text.duration(60 * minutes)} and {text.duration(rest)}"
    return text.duration(60 * minutes + rest)


def _at(stage: StartStage, message: str, seconds: float | None = None) -> StartStep:
    return StartStep(_PERCENT[stage], message, stage, seconds)


def _time(written: object, now: datetime) -> float | None:
    """Seconds since a moment that Kubernetes has written."""
    moment = moment_of(written)
    return None if moment is None else _since(moment, now)


def _since(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())


def moment_of(written: object) -> datetime | None:
    """A time as Kubernetes writes it, RFC 3339 in UTC."""
    try:
        return datetime.fromisoformat(str(written)).astimezone(UTC) if written else None
    except ValueError:
        return None
