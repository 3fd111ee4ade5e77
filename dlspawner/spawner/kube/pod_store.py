"""The pods and events of the namespace, with waiters that wake when a pod changes.

``reflector`` follows the objects; this module keeps them, in the form that KubeSpawner and its hooks know (``pods``,
``events``). KubeSpawner polls its dictionary, up to five seconds apart; here every waiter for a pod wakes when the
watch's event arrives. The last state of a deleted pod is kept for a while: it may be the only record of the reason.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kubespawner.spawner import EventReflector, PodReflector

from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner.kube.reflector import (
    SLICE_SECONDS,
    CompactObject,
    CompactTable,
    LatestObjects,
    Object,
    ObjectReflector,
    key_of,
    pack,
)

REMEMBERED = 1000  # pods that went; the Hub asks about each within its poll_interval


class ChangeWaiters:
    """The waiters for changes of pods, by namespace/name."""

    def __init__(self) -> None:
        self.waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def wake(self, key: str) -> None:
        for future in self.waiting.pop(key, ()):
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        for key in list(self.waiting):
            self.wake(key)

    async def changed(self, key: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[key].add(future)
        try:
            await future
        finally:
            if key in self.waiting:
                self.waiting[key].discard(future)
                if not self.waiting[key]:
                    del self.waiting[key]


class PodTable(CompactTable):
    """The pods by namespace/name; ``wake`` gets every change of one, and those that go are remembered."""

    def __init__(self, wake: Callable[[str], None], gone: LatestObjects) -> None:
        super().__init__()
        self._wake, self._gone = wake, gone

    def put(self, key: str, packed: CompactObject) -> None:
        super().put(key, packed)
        self._wake(key)

    def drop(self, key: str) -> None:
        self._gone.put(key, self.kept[key])
        super().drop(key)
        self._wake(key)


class PodWatch(ObjectReflector, PodReflector):
    """A reflector of pods with a way to wait for one of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.gone = LatestObjects(REMEMBERED)
        self._waiters = ChangeWaiters()
        self._table = PodTable(self._waiters.wake, self.gone)
        self._queue, self._asked = asyncio.Lock(), 0.0
        super().__init__(*args, **kwargs)

    @property
    def resources(self) -> PodTable:
        return self._table

    @resources.setter
    def resources(self, pods: Mapping[str, PodDict]) -> None:
        """Set by KubeSpawner and its hooks; `on_list` does not use it."""
        self._drop_others(pods, 0)
        self._table.kept.update({key: pack(pod) for key, pod in pods.items()})
        self._waiters.wake_all()

    async def on_list(self, objects: dict[str, CompactObject], version: int) -> None:
        kept = self._table.kept
        for key, packed in objects.items():
            if packed.replaces(kept.get(key)):
                self._table.put(key, packed)
            await self.yield_loop()
        self._drop_others(objects, version)

    def _drop_others(self, objects: Collection[str], version: int) -> None:
        """Drops the pods that were not listed; pods learned from answers since that ``version`` stay."""
        for key, packed in list(self._table.kept.items()):
            if key not in objects and not (version and packed.version > version):
                self._table.drop(key)

    def on_event(self, change: str, found: Object) -> None:
        key, packed = key_of(found), pack(found)
        known = self._table.kept.get(key)
        if not packed.replaces(known):
            return
        if change != "DELETED":
            self._table.put(key, packed)
            return
        if known is not None:
            self._table.drop(key)
        self.gone.put(key, packed)  # newer than the known state

    def learn(self, pod: PodDict) -> None:
        """Adds a pod from an answer of the API server: the watch may be behind it, or have no connection now.

        A pod that is learned of here and missing in the next list has gone; no watch would report its end.
        """
        labels = pod["metadata"].get("labels") or {}
        followed = all(labels.get(name) == value for name, value in self.labels.items())
        if followed and pack(pod).replaces(self.gone.kept.get(key_of(pod))):
            self.on_event("MODIFIED", pod)

    def forget(self, pod: PodDict) -> None:
        """Removes a pod that the API server has reported as gone."""
        key = key_of(pod)
        known = self._table.get(key)
        if known is not None and known["metadata"]["uid"] == pod["metadata"]["uid"]:
            self._table.drop(key)

    def wake(self, key: str) -> None:
        self._waiters.wake(key)

    async def changed(self, key: str) -> None:
        """Returns when the pod changes, appears or is deleted."""
        await self._waiters.changed(key)

    async def turn(self) -> None:
        """Returns when the caller may read pods, each of which takes a moment to parse.

        The first list wakes all servers of a restarted Hub at once.
        """
        now = asyncio.get_running_loop().time
        async with self._queue:
            if now() - self._asked > SLICE_SECONDS:
                await asyncio.sleep(0)  # with the others behind us
                self._asked = now()

    async def until(self, key: str, satisfied: Callable[[PodDict | None], bool], seconds: float) -> PodDict | None:
        """Returns the pod as soon as ``satisfied`` accepts it (``None``: no pod); TimeoutError after ``seconds``."""
        async with asyncio.timeout(seconds):
            while True:
                pod: PodDict | None = self.pods.get(key)
                if satisfied(pod):
                    return pod
                await self.changed(key)


class EventWatch(ObjectReflector, EventReflector):
    """A reflector of the events of pods, by pod; Kubernetes deletes events after an hour."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pods = defaultdict[str, dict[str, CompactObject]](dict)
        super().__init__(*args, **kwargs)

    @property
    def resources(self) -> dict[str, Object]:
        return {key: packed.read() for told in self._pods.values() for key, packed in told.items()}

    @property
    def events(self) -> list[Object]:
        """All events, oldest first, parsed at each access; ``of`` returns those of one pod."""
        return sorted(self.resources.values(), key=_when)

    def of(self, pod: str) -> list[Object]:
        """Returns the events of the pod namespace/name, oldest first."""
        return sorted((packed.read() for packed in self._pods.get(pod, {}).values()), key=_when)

    async def on_list(self, objects: dict[str, CompactObject], version: int) -> None:
        pods = defaultdict[str, dict[str, CompactObject]](dict)
        for key, packed in objects.items():
            pods[packed.about][key] = packed
        self._pods = pods

    def on_event(self, change: str, found: Object) -> None:
        key, packed = key_of(found), pack(found)
        told = self._pods[packed.about]
        if packed.replaces(told.get(key)):
            told[key] = packed
            if change == "DELETED":
                del told[key]
        if not told:
            del self._pods[packed.about]


def _when(event: Object) -> str:
    """The time of an event. Kubernetes sets one of the two fields; events of other programs may have neither."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")
