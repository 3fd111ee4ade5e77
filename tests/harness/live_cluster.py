"""The embedded API server in the test's own event loop, and KubeSpawner's client of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from kubernetes_asyncio import client, config

from dlspawner.devcluster.api import server
from tests.harness.ports import free_port


class Cluster:
    """An API server at an address that it keeps when it is started again."""

    def __init__(self, state: Path) -> None:
        self.state, self.port = state, free_port()
        self.running: server.RunningApi | None = None

    async def start(self) -> None:
        self.running = await server.start(self.state, self.port)

    async def stop(self) -> None:
        if self.running is not None:
            await self.running.stop()
        self.running = None

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[client.CoreV1Api]:
        configuration = client.Configuration()
        await config.load_kube_config(str(self.state / "kubeconfig"), client_configuration=configuration)
        async with client.ApiClient(configuration) as session:
            yield client.CoreV1Api(session)


@contextlib.asynccontextmanager
async def running(state: Path) -> AsyncIterator[Cluster]:
    made = Cluster(state)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
