"""A Hub that stops servers: their pods end as DLSpawner ends them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from dlspawner.clients.hub import HubError
from dlspawner.clients.kubernetes import PODS, KubernetesClient, ObjectNotFound
from dlspawner.core import naming
from tests.component.manager.manager_harness import NAMESPACE, FakeHub


@dataclass
class StoppingHub(FakeHub):
    """``errors`` are raised first, one for each request; with ``ignores_stops`` it accepts a stop and does nothing."""

    cluster: KubernetesClient | None = None
    errors: list[HubError] = field(default_factory=list)
    ignores_stops: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def stop_server(self, user: str, server: str = "") -> bool:
        self.asked.append((user, server))
        if self.errors:
            raise self.errors.pop(0)
        assert self.cluster is not None
        if self.ignores_stops:
            return False
        for pod in await self.cluster.list(PODS, NAMESPACE):
            job = naming.read_job(pod["metadata"])
            if job is not None and (job.user, job.server) == (user, server):
                with contextlib.suppress(ObjectNotFound):
                    await self.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
        return True
