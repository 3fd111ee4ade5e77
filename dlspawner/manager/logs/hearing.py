"""Hears what Kubernetes tells of jobs' pods, and keeps it with the job: Kubernetes itself forgets it within an hour."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dlspawner.cluster import EVENTS, KubernetesClient, WatchEvent
from dlspawner.core import naming
from dlspawner.manager import podeventrows
from dlspawner.manager.kept import PodEventMessage
from dlspawner.manager.ledger import JobRepository
from dlspawner.manager.logs.happenings import ended, read_event
from dlspawner.manager.logs.sources import read_source
from dlspawner.manager.store import DatabaseRejected, DatabaseUnavailable

_MOST = 5000  # that wait to be written down, or for the pod that they are about to be known
_PATIENCE = timedelta(seconds=60)
_EVERY_SECONDS = 1.0
_OF_PODS = "involvedObject.kind=Pod"
log = logging.getLogger("dlspawner.manager")


@dataclass(frozen=True, slots=True)
class _Heard:
    at: datetime
    one: PodEventMessage
    job: str | None  # which its pod was known to be then: it may be gone before this is written down


@dataclass(slots=True)
class PodEventCollector:
    """What is heard in one epoch; `run` never ends by itself."""

    cluster: KubernetesClient
    ledger: JobRepository
    epoch: int
    namespaces: Sequence[str]
    job_of: Callable[[str], str | None]
    gpus: Callable[[], Collection[str]]
    now: Callable[[], datetime]
    _heard: dict[tuple[str, str], _Heard] = field(default_factory=dict)  # by pod and key

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for namespace in self.namespaces:
                group.create_task(self._listen(namespace), name=f"hear of pods in {namespace}")
            while True:
                await asyncio.sleep(_EVERY_SECONDS)
                await self._keep()

    def observe(self, change: WatchEvent) -> None:
        """A pod as the watch tells it: containers that have ended."""
        if change.type in {"SYNCED", "DELETED"}:
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
            self._heard[pod, one.key] = _Heard(self.now(), one, self.job_of(pod))

    async def _keep(self) -> None:
        """Write down what is heard of pods that are known to be jobs; others have a minute to become it."""
        heard, now = self._heard, self.now()
        known = [(job, said.one) for key, said in heard.items() if (job := said.job or self.job_of(key[0]))]
        if not known:
            self._heard = {key: said for key, said in heard.items() if now - said.at < _PATIENCE}
            return
        self._heard = {
            key: said
            for key, said in heard.items()
            if not (said.job or self.job_of(key[0])) and now - said.at < _PATIENCE
        }
        try:
            await self.ledger.write_as_leader(
                self.epoch, lambda connection: podeventrows.write_pod_events(connection, known)
            )
        except DatabaseRejected:  # now or ever
            log.exception("what happened to %d pods cannot be written down", len(known))
        except DatabaseUnavailable as problem:
            log.warning("what happened to pods is not written down yet: %s", problem)
            self._heard = heard | self._heard
