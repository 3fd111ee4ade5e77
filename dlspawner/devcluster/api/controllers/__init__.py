"""The loops that make objects follow from other objects, in the API server's own process."""

import asyncio

from dlspawner.devcluster.api.registry import Registry


class Controllers:
    """All of them: started and stopped together."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        return

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
