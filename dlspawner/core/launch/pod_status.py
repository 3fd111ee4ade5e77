"""Evaluates a job's pod: does the job run on, how has it ended, which step of its start is it at? PURE.

KubeSpawner's ``poll()`` calls a pod alive that has failed, is being deleted or has lost its node. The rules here, in
their order; the first that applies decides:

1. A pod that is gone, or is being deleted, has ended.
2. A phase of Succeeded or Failed has ended, whatever its containers are said to do: a lost node reports nothing.
3. A container that the job stands on and that is found ended, or waiting to be started once more, has ended the job,
   whatever its restart policy. One that its node has started again meanwhile is alive: it has the environment and the
   token of before, which the Hub gives up only with the job, and answers at the same address. A job of a template
   stands on ``notebook`` and ``main``, any other pod on ``notebook`` (without one, its first container). Sidecars come
   and go.
4. A phase of Unknown has ended: who runs the pod has lost it. No kubelet has set it since 2015; a virtual one may.
5. Everything else is alive, however slow it is: Pending, pulling, on a node that is silent. It may come back with the
   job still running, and its GPUs are held until it is gone: an end would only take the job from its owner.

A silent node: the control plane sets the pod's Ready to False and nothing else; a kubelet would have given a reason, or
named a container. When the cluster then gives the pod up (after ``tolerationSeconds``, 300 s by default) the job has
ended for its owner, but its pod stays, and holds what it holds, until the node is back or an administrator removes it.

Sentences are for the job's owner: the cause, and what to do next.

`start_step` returns the step of a starting job for the progress page. Nearly everything is in the pod; only an image
pull is known from its events (`spawner.start_problems.pulled_image`), by one request per slow start. Percentages are
milestones, not measurements; the Hub adds the last one when the server answers. Callers never lower the percentage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from dlspawner.core import naming, text, units
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.template import MAIN_CONTAINER, NOTEBOOK_CONTAINER

PodDict = Mapping[str, Any]

FINISHED = "The job has finished."  # so begins what needs no explanation
REMOVED = "The job was removed from outside the Hub: start it again, or ask an administrator why."
BEGUN = "The Hub was restarted before the job was there: start it again, unless it waits in the queue."

_LOST = "The job's node went away: start the job again."
_UNKNOWN = "The job failed and the cluster does not say why: ask an administrator."
_NODE_LOST = frozenset({"NodeLost", "NodeShutdown", "Terminated", "Shutdown"})
_MAKE_ROOM = "delete files by sftp or ssh (a job for SSH or files starts all the same), and start this one again"
_DISK_STEPS = {"cannot be written to": "ask an administrator"}
# DisruptionTarget's reason -> what the cluster did, and why.
_DISRUPTIONS = {
    "PreemptionByScheduler": "The cluster stopped the job to make room for one of higher priority: start it again.",
    "EvictionByEvictionAPI": "An administrator or the autoscaler is emptying the job's node: start it again.",
    "DeletionByTaintManager": "The job's node was taken out of service: start it again.",
    "DeletionByPodGC": "The job's node is gone from the cluster: start it again.",
    "TerminationByKubelet": "The job's node had to stop it to save itself, or is shutting down: start it again.",
}
# What a kubelet says that does not take a pod which it was given -> the same.
_REJECTIONS = {
    **dict.fromkeys(
        ("NodeAffinity", "NodeName", "NodePorts"),
        "The job's node was changed and may not run it any more: start the job again.",
    ),
    "SupplementalGroupsPolicyNotSupported": (
        "The job's node cannot keep images from choosing unix groups: ask an administrator (strict_groups)."
    ),
}
_PROGRAM = re.compile(
    r'exec: "([^"]+)"[^:]*: (?:stat [^:]+: )?(executable file not found|no such file|permission denied)'
)


_CLOCKS_DIFFER = timedelta(seconds=1)  # those of a node and of the API server, by so much at most


@dataclass(frozen=True, slots=True)
class Alive:
    """Running, or on its way."""


@dataclass(frozen=True, slots=True)
class Terminated:
    """The pod has ended; ``exit_code`` is 1 where it is unknown."""

    exit_code: int
    reason: str


PodState = Alive | Terminated

ALIVE = Alive()


def evaluate_gone(last: PodDict | None) -> Terminated:
    """Judges the end of a pod that is gone by its last known state, which may say that it was being evicted."""
    if last is None:
        return Terminated(1, REMOVED)
    code, container = _exit(last)
    return Terminated(code, _deletion(last, container))


def evaluate(pod: PodDict | None) -> PodState:
    """Tells if the job of this pod runs on, or how it has ended."""
    if pod is None:
        return Terminated(1, REMOVED)
    status: PodDict = pod.get("status") or {}
    code, container = _exit(pod)
    if pod["metadata"].get("deletionTimestamp"):
        return Terminated(code, _deletion(pod, container))
    if status.get("phase") == "Succeeded":
        return Terminated(0, container or FINISHED)
    if status.get("phase") == "Failed":
        return Terminated(code, ended_by_cluster(pod) or container or _UNKNOWN)
    if container:
        return Terminated(code, container)
    return Terminated(1, ended_by_cluster(pod)) if status.get("phase") == "Unknown" else ALIVE


def is_over(pod: PodDict) -> bool:
    """True if nothing of the pod can run any more, or yet: only then may it be deleted without grace."""
    status: PodDict = pod.get("status") or {}
    return status.get("phase") in ("Succeeded", "Failed") or not (pod.get("spec") or {}).get("nodeName")


def has_printed(pod: PodDict) -> bool:
    """True if a program of a pod that has ended by itself may have printed the reason."""
    if not isinstance(evaluate(pod), Terminated) or pod["metadata"].get("deletionTimestamp"):
        return False
    status: PodDict = pod.get("status") or {}
    some = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return any((one.get(state) or {}).get("terminated") for one in some for state in ("state", "lastState"))


def stays_ended(pod: PodDict) -> bool:
    """True if the pod of an ended job can be left as it is: its node will not start the job's program again."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return True
    policy = (pod.get("spec") or {}).get("restartPolicy", "Always")
    ends = [
        ended
        for container in _statuses(pod.get("status") or {})
        if container.get("name") in stands_on(pod) and (ended := (container.get("state") or {}).get("terminated"))
    ]
    return any(policy == "Never" or (policy == "OnFailure" and ended.get("exitCode") == 0) for ended in ends)


def may_be_eviction(judged: Terminated) -> bool:
    """True if the pod's events may know better: a program that is evicted and ends well looks as if it had finished."""
    return judged.exit_code in (0, 128 + 9, 128 + 15)


def evicted(events: Iterable[PodDict]) -> str | None:
    """The sentence about an eviction by the kubelet that only the events tell of."""
    for event in events:
        if event.get("type") == "Warning" and event.get("reason") in ("Evicted", "Preempting"):
            return _eviction(str(event.get("message") or ""))
    return None


def is_silent(pod: PodDict | None) -> bool:
    """True if the pod's node has stopped answering the cluster."""
    status: PodDict = (pod or {}).get("status") or {}
    if status.get("phase") == "Unknown" or status.get("reason") == "NodeLost":
        return True
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    ready: PodDict = conditions.get("Ready", {})
    containers: PodDict = conditions.get("ContainersReady", {})
    told_by_nobody = ready.get("status") in ("False", "Unknown") and not ready.get("reason")
    return told_by_nobody and containers.get("status") == "True"


def silence(pod: PodDict) -> str:
    """The sentence about a job whose node is silent."""
    return silent_node(_node(pod))


def silent_node(node: str) -> str:
    """The same for a node's name."""
    return f"The job's node {node} does not answer: the job may still run there; wait, or ask an administrator."


def start_failure(message: str) -> tuple[str, str] | None:
    """Cause and step of a program that could not be started, from what the container runtime says of it."""
    found = _PROGRAM.search(message)
    if found is None:
        return None
    if found[2] == "permission denied":
        return f"The job's account may not run {found[1]} in this image", "choose another image or command"
    return f"The image has no program {found[1]}", "choose an image that has it, or another command"


def program_end(pod: PodDict) -> tuple[str, PodDict]:
    """Name and end of the container that the job stands on, the person's own first; nothing while all of them run."""
    found = {container.get("name"): container for container in _statuses(pod.get("status") or {})}
    for name in stands_on(pod):
        container: PodDict = found.get(name, {})
        state: PodDict = container.get("state") or {}
        ended = state.get("terminated")
        if (state.get("waiting") or {}).get("reason") in ("CrashLoopBackOff", "RunContainerError"):
            ended = (container.get("lastState") or {}).get("terminated") or ended
        if ended:
            return name, ended
    return "", {}


def _exit(pod: PodDict) -> tuple[int, str]:
    """The exit code of the container that the job stands on, and a sentence about it."""
    name, ended = program_end(pod)
    return int(ended.get("exitCode", 1)), _ending(name, ended, _memory(pod, name)) if ended else ""


def stands_on(pod: PodDict) -> tuple[str, ...]:
    """Returns the containers that end the job when they end."""
    if naming.JOB_LABEL in (pod["metadata"].get("labels") or {}):
        return MAIN_CONTAINER, NOTEBOOK_CONTAINER
    names = [str(container.get("name")) for container in (pod.get("spec") or {}).get("containers") or ()]
    return (NOTEBOOK_CONTAINER,) if NOTEBOOK_CONTAINER in names or not names else (names[0],)


def _memory(pod: PodDict, name: str) -> str:
    for container in (pod.get("spec") or {}).get("containers") or ():
        if container.get("name") == name:
            limits: PodDict = (container.get("resources") or {}).get("limits") or {}
            amount = units.parse_quantity(str(limits.get("memory") or ""))
            return units.size(units.memory_bytes(amount)) if amount else ""
    return ""


def _ending(name: str, state: PodDict, memory: str) -> str:
    code, said = int(state.get("exitCode", 1)), str(state.get("message") or "")
    whose = "Its command" if name == MAIN_CONTAINER else "Its server"
    if state.get("reason") == "OOMKilled":
        had = f"its {memory} of memory" if memory else "the memory it has"
        return f"The job used more than {had} and was stopped: start it with more memory."
    if state.get("reason") in ("StartError", "ContainerCannotRun"):
        cause, step = start_failure(said) or (f"{whose} could not be started", "choose another image or command")
        return f"{cause}: {step}."
    if code == 0:
        return f"{FINISHED} {whose} ended by itself."
    disk = text.disk_problem(said)
    if disk is not None:
        return f"{whose} failed because its disk {disk[0]} (“{disk[1]}”): {_DISK_STEPS.get(disk[0], _MAKE_ROOM)}."
    how, words = text.ended_by(code), text.last_words(said)
    if how.startswith("signal"):
        return f"{whose} was ended by {how}{f' after “{words}”' if words else ''}: start it again."
    # Without a Manager its log is deleted with the pod.
    rest = f"(“{words}”): correct that and" if words else "and left no message:"
    return f"{whose} failed with {how} {rest} start the job again."


def ended_by_cluster(pod: PodDict) -> str:
    """The sentence about a pod that the cluster has ended, whatever its programs did; empty for any other."""
    if is_silent(pod):
        step = (
            "ask an administrator to remove the node, which your home directory is on."
            if launch_pod.needs_home_node(pod)
            else "start it under another name, or ask an administrator."
        )
        return f"The job's node {_node(pod)} does not answer and the cluster has given the job up: {step}"
    status: PodDict = pod.get("status") or {}
    return _rejection(status) if status.get("phase") == "Failed" else _disruption(status)


def _rejection(status: PodDict) -> str:
    reason, said = str(status.get("reason") or ""), str(status.get("message") or "")
    if reason == "Evicted":
        return _eviction(said)
    if reason in _NODE_LOST:
        return _LOST
    if reason == "DeadlineExceeded":
        return "The job reached its time limit: start it again if it is not done."
    if reason in ("UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods") or reason.startswith("OutOf"):
        return "The job's node could not give what the cluster had promised: start the job again."
    return _REJECTIONS.get(reason) or _disruption(status) or (_LOST if _is_abandoned(status) else "")


def _is_abandoned(status: PodDict) -> bool:
    """True if the cluster has ended the pod for its silent node: the state of its containers is unknown."""
    return any((container.get("state") or {}).get("running") for container in _statuses(status))


# the total limit of containers 20Mi / exceeds the limit "10Mi" / exceeded its local ephemeral storage limit "1Gi"
_LIMIT = re.compile(r'exceed.* limit (?:of containers )?"?(\d+\w*)')


def _eviction(said: str) -> str:
    """An eviction by the kubelet: by a limit of the job's own, or because the node ran out of something."""
    what = said.lower()
    if ("ephemeral" in what or "emptydir" in what) and (most := _LIMIT.search(said)):
        may = f"more to its temporary disk than it may ({most[1]})"
        return f"The job wrote {may} and was stopped: write to your home directory."
    for word, lack in (("memory", "memory"), ("ephemeral", "disk space"), ("disk", "disk space"), ("pid", "processes")):
        if word in what:
            return f"The job's node ran out of {lack} and stopped the job: start it again, on another node if you can."
    return "The job's node had to make room and stopped the job: start it again."


def _deletion(pod: PodDict, container: str) -> str:
    # Not its phase: the deletion itself ends its programs.
    return ended_by_cluster(pod) or (container if ended_before_deletion(pod) else "") or REMOVED


def ended_before_deletion(pod: PodDict) -> bool:
    """True if the program ended before its pod's deletion was requested; within a second the deletion counts.

    The node's clock says when the program ended and the API server's when the deletion was requested, both in whole
    seconds.
    """
    metadata, finished = pod["metadata"], moment_of(program_end(pod)[1].get("finishedAt"))
    deleted = moment_of(metadata.get("deletionTimestamp"))
    if finished is None or deleted is None:
        return finished is not None
    requested = deleted - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return finished < requested - _CLOCKS_DIFFER


def _disruption(status: PodDict) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return _DISRUPTIONS.get(str(condition.get("reason")), "The cluster stopped the job: start it again.")
    return ""


def _node(pod: PodDict) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _statuses(status: PodDict) -> Iterator[PodDict]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


_WORTH_SAYING = 5.0  # what takes less needs no number
_MINUTES_ALONE = 10  # from so many on, minutes are shown


class StartStage(StrEnum):
    """The stage of a start: a step of the same stage is the same news with another number."""

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
    """The progress from 0 to 100, its sentence, and the seconds since it began, if known."""

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
    """Returns the step of a pod between its request and its first answer; ``note`` names the obstacle."""
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
    """Formats the time so far, in steps of five seconds, later in minutes."""
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
