"""Events as the kubelet writes them; the same thing said again raises the count of the event that is there.

Events never hold anything up: they are queued, written by one task, and given up when the API refuses them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dlspawner.clients.kubernetes import EVENTS, KubernetesClient, KubernetesError
from dlspawner.devcluster.node.status import timestamp

log = logging.getLogger(__name__)

QUEUE = 10_000
REMEMBERED = 2_000


@dataclass(frozen=True, slots=True)
class Note:
    """One thing worth telling about a pod or node."""

    type: str
    reason: str
    message: str
    about: Mapping[str, Any]
    field_path: str
    host: str
    at: datetime

    @property
    def key(self) -> tuple[str, ...]:
        return (self.about["uid"], self.field_path, self.type, self.reason, self.message)


class Recorder:
    """`note` from anywhere, `run` as a task."""

    def __init__(self, cluster: KubernetesClient) -> None:
        self._cluster = cluster
        self._queue: asyncio.Queue[Note] = asyncio.Queue(QUEUE)
        self._known: OrderedDict[tuple[str, ...], tuple[str, int]] = OrderedDict()

    def note(  # noqa: PLR0913  (the fields of an event)
        self, manifest: Mapping[str, Any], host: str, type: str, reason: str, message: str, *, field_path: str = ""
    ) -> None:
        metadata = manifest["metadata"]
        about = {
            "apiVersion": "v1",
            "kind": manifest.get("kind", "Pod"),
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        if "namespace" in metadata:
            about["namespace"] = metadata["namespace"]
        note = Note(type, reason, message[:1024], about, field_path, host, datetime.now(UTC))
        try:
            self._queue.put_nowait(note)
        except asyncio.QueueFull:
            log.warning("event dropped reason=%s pod=%s", reason, metadata["name"])

    async def run(self) -> None:
        while True:
            note = await self._queue.get()
            try:
                await self._write(note)
            except KubernetesError as error:
                log.info("event not written reason=%s error=%s", note.reason, error)
            finally:
                self._queue.task_done()

    async def flush(self, seconds: float) -> None:
        """Wait for what is queued, but not for long."""
        try:
            async with asyncio.timeout(seconds):
                await self._queue.join()
        except TimeoutError:
            log.info("events not written in time count=%d", self._queue.qsize())

    async def _write(self, note: Note) -> None:
        namespace = note.about.get("namespace", "default")
        now = timestamp(note.at)
        name, count = self._known.get(note.key, ("", 0))
        if name:
            try:
                await self._cluster.patch(EVENTS, name, {"count": count + 1, "lastTimestamp": now}, namespace)
            except KubernetesError:
                name, count = "", 0  # expired, or its namespace is gone
        if not name:
            name = f"{note.about['name']}.{secrets.token_hex(8)}"
            about = dict(note.about) | ({"fieldPath": note.field_path} if note.field_path else {})
            await self._cluster.create(EVENTS, _event(note, name, namespace, about, now), namespace)
        self._known[note.key] = (name, count + 1)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _event(note: Note, name: str, namespace: str, about: Mapping[str, Any], now: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": about,
        "type": note.type,
        "reason": note.reason,
        "message": note.message,
        "source": {"component": "kubelet", "host": note.host},
        "reportingComponent": "kubelet",
        "reportingInstance": note.host,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
