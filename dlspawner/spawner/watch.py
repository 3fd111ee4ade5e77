"""The pods of the namespace, and being woken when one of them changes.

KubeSpawner keeps its reflector's pods in a dictionary and looks at it again and again, up to five seconds apart. Here
the same dictionary wakes whoever waits for a pod, at the moment the watch's event arrives, and remembers for a while
what it last saw of a pod that went: why it went may be said nowhere else. Listing, watching and reconnecting stay
KubeSpawner's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from kubespawner.spawner import PodReflector
from traitlets import validate

PodDict = Mapping[str, Any]


REMEMBERED = 1000  # pods that went; the Hub asks about each within its poll_interval


class Gone(OrderedDict[str, PodDict]):
    """What was last seen of pods that went, the latest of them."""

    def remember(self, key: str, pod: PodDict) -> None:
        self[key] = pod
        self.move_to_end(key)
        if len(self) > REMEMBERED:
            self.popitem(last=False)


class PodTable(dict[str, PodDict]):
    """KubeSpawner's dictionary of pods by namespace/name; every change of a pod is told to ``wake``."""

    def __init__(self, pods: Mapping[str, PodDict], wake: Callable[[str], None], gone: Gone) -> None:
        super().__init__(pods)
        self._wake, self._gone = wake, gone

    def __setitem__(self, key: str, pod: PodDict) -> None:
        super().__setitem__(key, pod)
        self._wake(key)

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self._gone.remember(key, self[key])
        gone = super().pop(key, *default)
        self._wake(key)
        return gone


class PodWatch(PodReflector):
    """KubeSpawner's reflector of pods with a way to wait for one of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.gone = Gone()
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        super().__init__(*args, **kwargs)
        self.resources: dict[str, PodDict] = {}  # the default is not validated and would wake nobody

    @validate("resources")
    def _listed(self, proposal: Any) -> PodTable:
        table = PodTable(proposal.value, self.wake, self.gone)
        for key in (self.resources or {}).keys() - table.keys():
            self.gone.remember(key, self.resources[key])
        for key in list(self._waiting):
            self.wake(key)
        return table

    def wake(self, key: str) -> None:
        """Let everybody who waits for a pod look at it again."""
        for future in self._waiting.pop(key, ()):
            if not future.done():
                future.set_result(None)

    async def changed(self, key: str) -> None:
        """Return when the pod changes, appears or goes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[key].add(future)
        try:
            await future
        finally:
            if key in self._waiting:
                self._waiting[key].discard(future)
                if not self._waiting[key]:
                    del self._waiting[key]

    async def until(self, key: str, satisfied: Callable[[PodDict | None], bool], seconds: float) -> PodDict | None:
        """The pod, once ``satisfied`` by it (``None``: there is none); TimeoutError after so many seconds."""
        async with asyncio.timeout(seconds):
            while not satisfied(self.pods.get(key)):
                await self.changed(key)
        pod: PodDict | None = self.pods.get(key)
        return pod
