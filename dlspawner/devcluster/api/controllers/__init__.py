"""The loops that make objects follow from other objects, in the API server's own process."""

import asyncio

from dlspawner.devcluster.api.controllers.base import Controller
from dlspawner.devcluster.api.controllers.endpoints import EndpointsController
from dlspawner.devcluster.api.controllers.events import EventExpiry, Recorder
from dlspawner.devcluster.api.controllers.garbage import GarbageCollector
from dlspawner.devcluster.api.controllers.namespaces import NamespaceController
from dlspawner.devcluster.api.controllers.nodes import NodeLifecycle
from dlspawner.devcluster.api.controllers.scheduler import Scheduler
from dlspawner.devcluster.api.controllers.volumes import VolumeBinder
from dlspawner.devcluster.api.registry import Registry


class Controllers:
    """All of them: started and stopped together."""

    def __init__(self, registry: Registry) -> None:
        self._controllers: list[Controller] = [
            Scheduler(registry, Recorder(registry)),
            EndpointsController(registry),
            VolumeBinder(registry),
            GarbageCollector(registry),
            NamespaceController(registry),
            NodeLifecycle(registry),
            EventExpiry(registry),
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for controller in self._controllers:
            controller.begin()
            self._tasks.append(asyncio.create_task(controller.run(), name=f"controller {type(controller).__name__}"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
