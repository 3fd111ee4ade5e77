"""A Hub that only stops, for tests of who has to leave: pods end as DLSpawner ends them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dlspawner.clients.hub import HubError
from dlspawner.clients.kubernetes import PODS, KubernetesClient, ObjectNotFound
from dlspawner.core import naming
from tests.component.manager.manager_harness import NAMESPACE, FakeHub


@dataclass
class StoppingHub(FakeHub):
    """``troubles`` are raised first, one for each request; ``deaf``: it says yes and does nothing."""

    cluster: KubernetesClient | None = None
    troubles: list[HubError] = field(default_factory=list)
    deaf: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def stop_server(self, user: str, server: str = "") -> bool:
        self.asked.append((user, server))
        if self.troubles:
            raise self.troubles.pop(0)
        assert self.cluster is not None
        if self.deaf:
            return False
        for pod in await self.cluster.list(PODS, NAMESPACE):
            job = naming.read_job(pod["metadata"])
            if job is not None and (job.user, job.server) == (user, server):
                await end(self.cluster, pod)
        return True


async def end(cluster: KubernetesClient, pod: dict[str, Any]) -> None:
    """The pod is gone, as after its grace period."""
    try:
        await cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
    except ObjectNotFound:
        return
