"""What Kubernetes tells of a job's pods, in words for its person. PURE.

What Kubernetes itself writes holds addresses, paths and sometimes credentials: it is read for facts and never quoted.
An event of a kind that is not known here is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from datetime import UTC, datetime

from dlspawner.core import scheduling
from dlspawner.core.manifest import Manifest
from dlspawner.manager.kept import PodEventMessage
from dlspawner.manager.logs.sources import LoggedContainer, PodLogSource

_NODE = re.compile(r" to ([a-z0-9][a-z0-9.-]{0,252})$")
_SENTENCES = {
    "Pulling": "Its image is being fetched.",
    "Pulled": "Its image is on the node.",
    "FailedMount": "A volume of it cannot be mounted now.",
    "FailedAttachVolume": "A volume of it cannot be brought to the node now.",
    "FailedCreatePodSandBox": "The node cannot make its containers now.",
    "Killing": "Its containers are told to end.",
    "ExceededGracePeriod": "It did not end within its grace period, and was killed.",
    "Evicted": "Its node was short of memory or disk space, and ended it.",
    "Preempted": "The cluster gave its place to a pod of higher priority.",
    "TaintManagerEviction": "Its node does not answer, or takes no jobs any more.",
    "NodeNotReady": "Its node does not answer.",
}
_BACK_OFF = {
    "pulling": "Its image cannot be fetched now; the node tries again.",
    "restarting": "A container of it ends again and again; the node waits before it starts it once more.",
}
_ENDS = {
    "OOMKilled": "used more memory than it may have, and was killed",
    "ContainerCannotRun": "could not be run",
    "StartError": "could not be started",
    "Evicted": "was ended by its node",
}


def read_event(event: Manifest, gpus: Collection[str]) -> PodEventMessage | None:
    """An event as the Kubernetes API tells it; ``None`` for what says nothing to a person."""
    reason, message = str(event.get("reason") or ""), str(event.get("message") or "")
    sentence = _sentence(reason, message, gpus)
    at = _moment(event)
    if sentence is None or at is None:
        return None
    count = event.get("count") or (event.get("series") or {}).get("count") or 1
    return PodEventMessage(str(event["metadata"]["uid"])[:64], at, reason[:64], sentence, int(count))


def ended(source: PodLogSource, container: LoggedContainer, now: datetime) -> PodEventMessage:
    """The end of a container's run."""
    key = hashlib.sha256(f"{source.uid}/{container.name}/{container.run}".encode()).hexdigest()[:40]
    how = _ENDS.get(container.why)
    if how is None:
        how = "has ended" if container.code in {0, None} else f"ended with exit code {container.code}"
    return PodEventMessage(key, now, container.why[:64] or "Ended", f"The container {container.name} {how}.")


def _sentence(reason: str, message: str, gpus: Collection[str]) -> str | None:
    if reason == "Scheduled":
        node = _NODE.search(message)
        return f"It was given a place on the node {node[1]}." if node else "It was given a place."
    if reason == "FailedScheduling":
        found = scheduling.explain_unschedulable(message, gpus)
        return f"{found.cause}: {found.step}." if found else "No node takes it now."
    if reason in {"BackOff", "Failed"}:
        return next((said for word, said in _BACK_OFF.items() if word in message[:40]), None)
    return _SENTENCES.get(reason)


def _moment(event: Manifest) -> datetime | None:
    for name in ("lastTimestamp", "eventTime", "firstTimestamp"):
        value = (event.get("series") or {}).get("lastObservedTime") if name == "eventTime" else None
        text = value or event.get(name)
        if text:
            try:
                at = datetime.fromisoformat(str(text))
            except ValueError:
                continue
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return None
