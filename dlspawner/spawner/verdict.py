"""Is a job's pod alive? A pure judgement of what Kubernetes says of it.

KubeSpawner's ``poll()`` calls a pod alive that has failed, is being deleted or has lost its node. The rules here, in
their order; the first that applies decides:

1. A pod that is gone, or is being deleted, has ended.
2. A phase of Succeeded or Failed has ended, whatever its containers are said to do: a lost node reports nothing.
3. A container that the job stands on (``notebook``, ``main``) has ended, or ends again and again. A restart by the
   node would come up with a token and a session that the Hub has given up, so the restart policy does not matter.
4. Everything else is alive, however slow it is: Pending, pulling, Unknown. A node that is silent may come back, and
   its GPUs are held until it is gone.

A sentence is written for the person whose job it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlspawner.core.template import MAIN_CONTAINER, NOTEBOOK_CONTAINER

PodDict = Mapping[str, Any]

# ErrImagePull alone may be a registry's bad moment; the node tries again and says so by backing off.
_UNPULLABLE = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_UNCREATABLE = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True, slots=True)
class Alive:
    """Running, or on its way."""


@dataclass(frozen=True, slots=True)
class Ended:
    """It will not answer any more; ``exit_code`` is 1 where nobody knows it."""

    exit_code: int
    reason: str


Verdict = Alive | Ended

ALIVE = Alive()


def judge(pod: PodDict | None) -> Verdict:
    """Whether the job that this pod runs goes on."""
    if pod is None:
        return Ended(1, "The job was removed from outside the Hub.")
    status: PodDict = pod.get("status") or {}
    code, container = _exit(status)
    if pod["metadata"].get("deletionTimestamp"):
        return Ended(code, _deletion(status))
    if status.get("phase") == "Succeeded":
        return Ended(0, "The job has finished.")
    if status.get("phase") == "Failed":
        return Ended(code, _failure(status, container))
    return _ended_container(status) or ALIVE


def why_stuck(pod: PodDict | None) -> str | None:
    """Why a starting pod will not start without somebody changing something; ``None`` while it may just be slow."""
    for container in _statuses((pod or {}).get("status") or {}):
        waiting: PodDict = (container.get("state") or {}).get("waiting") or {}
        reason, detail = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _UNPULLABLE:
            return f"The image {container.get('image', '')} cannot be pulled: {_brief(detail or reason)}"
        if reason in _UNCREATABLE:
            return f"The container {container['name']} cannot be made: {_brief(detail or reason)}"
        if reason == "CrashLoopBackOff":
            return f"The container {container['name']} ends again and again right after its start."
    return None


def _ended_container(status: PodDict) -> Ended | None:
    code, sentence = _exit(status)
    return Ended(code, sentence) if sentence else None


def _exit(status: PodDict) -> tuple[int, str]:
    """The exit code of the container that the job stands on, and a sentence about it; the person's own goes first."""
    found = {container.get("name"): container for container in _statuses(status)}
    for name in (MAIN_CONTAINER, NOTEBOOK_CONTAINER):
        container: PodDict = found.get(name, {})
        state: PodDict = container.get("state") or {}
        ended = state.get("terminated")
        if (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff":
            ended = (container.get("lastState") or {}).get("terminated") or {"reason": "CrashLoopBackOff"}
        if ended:
            return int(ended.get("exitCode", 1)), _ending(name, ended)
    return 1, ""


def _ending(name: str, state: PodDict) -> str:
    code = int(state.get("exitCode", 1))
    if state.get("reason") == "OOMKilled":
        return "The job used more memory than it asked for and was stopped. Start it with more memory."
    whose = "Its command" if name == MAIN_CONTAINER else "Its server"
    if code == 0:
        return f"The job has finished. {whose} ended by itself."
    if code > 128:
        return f"{whose} was ended by signal {code - 128}."
    last_words = _last_words(str(state.get("message") or ""))
    return f"{whose} failed with exit code {code}{': ' + last_words if last_words else '.'}"


def _failure(status: PodDict, container: str) -> str:
    reason, detail = str(status.get("reason") or ""), _brief(str(status.get("message") or ""))
    if reason == "Evicted":
        return f"The node had to make room and evicted the job: {detail or 'no reason was given.'}"
    if reason in ("NodeLost", "NodeShutdown", "Terminated", "Shutdown"):
        return f"The job's node went away: {detail or reason}"
    if reason == "DeadlineExceeded":
        return "The job reached its time limit."
    return container or f"The job failed: {detail or reason or 'no reason was given.'}"


def _deletion(status: PodDict) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"The cluster stopped the job: {_brief(condition.get('message') or condition.get('reason') or '')}"
    return "The job was removed from outside the Hub."


def _statuses(status: PodDict) -> Iterator[PodDict]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _brief(text: str, longest: int = 300) -> str:
    flat = " ".join(str(text).split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def _last_words(text: str, longest: int = 300) -> str:
    """The end of what a container wrote: the cause of a failure is rarely at its beginning."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"… {flat[-longest:]}"
