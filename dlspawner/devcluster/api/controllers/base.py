"""What every controller is: it observes changes, and reconciles when there is something to do.

`observe` is called inside the write that it tells about and may only note things; `reconcile` runs in the controller's
own task and may write. A pass is one synchronous stretch, so it must be short: work that can be long is cut into
batches by returning 0.
"""

import asyncio
import logging
from abc import ABC, abstractmethod

from dlspawner.devcluster.api.errors import ApiError
from dlspawner.devcluster.api.objects.resources import Resource
from dlspawner.devcluster.api.registry import Registry
from dlspawner.devcluster.api.store import Change, ChangeType

log = logging.getLogger(__name__)

BATCH = 50
_FIRST_RETRY, _LAST_RETRY = 0.05, 5.0


class Controller(ABC):
    """A loop over objects of the kinds it `watches`."""

    watches: tuple[Resource, ...] = ()

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.store = registry.store
        self.awake = asyncio.Event()

    def begin(self) -> None:
        """Shows the controller everything that exists."""
        self.store.listeners.append(self._listen)
        for resource in self.watches:
            for version in self.store.values(resource):
                self.observe(Change(ChangeType.ADDED, version, None))
        self.awake.set()

    def _listen(self, change: Change) -> None:
        if not self.watches or change.version.resource in self.watches:
            self.observe(change)
            self.awake.set()

    @abstractmethod
    def observe(self, change: Change) -> None: ...

    @abstractmethod
    def reconcile(self) -> float | None:
        """One pass; the seconds after which it wants another even if nothing changes (None: never)."""

    async def run(self) -> None:
        retry = _FIRST_RETRY
        while True:
            self.awake.clear()
            try:
                delay = self.reconcile()
                retry = _FIRST_RETRY
            except ApiError as error:
                # Another writer was faster; the next pass sees it.
                log.debug("%s tries again: %s", type(self).__name__, error)
                delay, retry = retry, min(retry * 2, _LAST_RETRY)
            except Exception:  # a task's root: nothing but this loop would see it
                log.exception("%s failed", type(self).__name__)
                delay, retry = retry, min(retry * 2, _LAST_RETRY)
            await self._rest(delay)

    async def _rest(self, delay: float | None) -> None:
        if delay == 0:
            await asyncio.sleep(0)  # others first
            return
        try:
            async with asyncio.timeout(delay):
                await self.awake.wait()
        except TimeoutError:
            return
