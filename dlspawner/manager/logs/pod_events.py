"""Hears what Kubernetes tells of jobs' pods, and keeps it with the job: Kubernetes itself forgets it within an hour.

What Kubernetes itself writes holds addresses, paths and sometimes credentials: it is read for facts and not quoted, but
for what a scheduler says that is not known here.
An event of a kind that is not known here is left out.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from dlspawner.clients.kubernetes import EVENTS, KubernetesClient, WatchEvent
from dlspawner.core import naming, pod_events, text
from dlspawner.core.units import Manifest
from dlspawner.manager.db import pod_events as pod_event_rows
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import DatabaseRejected, DatabaseUnavailable
from dlspawner.manager.logs.sources import LoggedContainer, PodLogSource, read_source
from dlspawner.manager.model.job_history import PodEventMessage

_MOST = 5000  # that wait to be written down, or for the pod that they are about to be known
_PATIENCE = timedelta(seconds=60)
WRITE_SECONDS = 1.0
_OF_PODS = "involvedObject.kind=Pod"
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class _Heard:
    at: datetime
    one: PodEventMessage
    owner: tuple[str, str] | None  # as it was known then: the pod may be gone before this is written down


@dataclass(slots=True)
class PodEventCollector:
    """Collects the pod events of one term: `watch` never ends by itself, `write` runs every `WRITE_SECONDS`.

    `owner_of` returns the job of a pod, by its uid, and the pod's name in a job of several: its events begin with it.
    """

    cluster: KubernetesClient
    repository: JobRepository
    term: int
    namespaces: Sequence[str]
    owner_of: Callable[[str], tuple[str, str] | None]
    gpus: Callable[[], Collection[str]]
    now: Callable[[], datetime]
    _heard: dict[tuple[str, str], _Heard] = field(default_factory=dict)  # by pod and key

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            for namespace in self.namespaces:
                group.create_task(self._listen(namespace), name=f"watch events in {namespace}")

    def observe(self, change: WatchEvent) -> None:
        """A pod as the watch tells it: containers that have ended."""
        if change.type == "DELETED":
            return
        if naming.JOB_LABEL in (change.object["metadata"].get("labels") or {}):
            source = read_source(change.object)
            for container in source.containers:
                if container.ended:
                    self._hear(source.uid, ended(source, container, self.now()))

    async def _listen(self, namespace: str) -> None:
        async for change in self.cluster.watch(EVENTS, namespace, fields=_OF_PODS):
            if change.type in {"ADDED", "MODIFIED"}:
                found = read_event(change.object, self.gpus())
                if found is not None:
                    self._hear(str((change.object.get("involvedObject") or {}).get("uid") or ""), found)

    def _hear(self, pod: str, one: PodEventMessage) -> None:
        if len(self._heard) < _MOST:
            self._heard[pod, one.key] = _Heard(self.now(), one, self.owner_of(pod))

    async def write(self) -> None:
        """Write down what is heard of pods that are known to be jobs; others have a minute to become it."""
        heard, now = self._heard, self.now()
        known, self._heard = list[tuple[str, PodEventMessage]](), {}
        for key, said in heard.items():
            owner = said.owner or self.owner_of(key[0])
            if owner:
                job, pod = owner
                known.append((job, replace(said.one, sentence=f"{pod}: {said.one.sentence}") if pod else said.one))
            elif now - said.at < _PATIENCE:
                self._heard[key] = said
        if not known:
            return
        try:
            await self.repository.write_as_leader(
                self.term, lambda connection: pod_event_rows.write_pod_events(connection, known)
            )
        except DatabaseRejected:  # now or ever
            log.exception("what happened to %d pods cannot be written down", len(known))
        except DatabaseUnavailable as problem:
            log.warning("what happened to pods is not written down yet: %s", problem)
            self._heard = heard | self._heard


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
        how = f"ended with {text.ended_by(container.code)}" if container.code else "has ended"
    return PodEventMessage(key, now, container.why[:64] or "Ended", f"The container {container.name} {how}.")


def _sentence(reason: str, message: str, gpus: Collection[str]) -> str | None:
    if reason == "Scheduled":
        node = _NODE.search(message)
        return f"Scheduled on node {node[1]}." if node else "Scheduled."
    if reason == "FailedScheduling":
        found = pod_events.explain_unschedulable(message, gpus)
        return f"{found.cause}: {found.step}." if found else f"No node takes it now: {text.quoted(message)}"
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
