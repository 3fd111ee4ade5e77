"""Quota on a real Kubernetes: a crowd through a real Hub, a Manager that is killed, and eight GPUs that stay eight."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.edges.test_manager.quota import GPUS, QuotaHub, Sampler, running
from tests.kubernetes.conftest import Image
from tests.kubernetes.failing import address

pytestmark = pytest.mark.kubernetes
RESOURCE = f"quota-{secrets.token_hex(3)}.example.com/gpu"  # of nobody else's, and more of it than the quota
CROWD = 30
MORE = """
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = "IfNotPresent"
"""


@pytest.fixture
def gpus(kubernetes: Client) -> Iterator[None]:
    """Three times as many on one node as the team may have: it is not the scheduler who says no."""
    name = kubernetes.get("/api/v1/nodes")["items"][0]["metadata"]["name"]
    path, amount = f"/api/v1/nodes/{name}/status", str(3 * GPUS)
    kinds = ("capacity", "allocatable")
    kubernetes.patched(path, {"status": {kind: {RESOURCE: amount} for kind in kinds}}, "merge")
    yield
    kubernetes.patched(path, {"status": {kind: {RESOURCE: None} for kind in kinds}}, "merge")


@pytest.fixture
def hub(
    gpus: None, jobs_namespace: str, image: Image, kubernetes: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[QuotaHub]:
    folder = tmp_path_factory.mktemp("quota")
    made = QuotaHub(
        folder,
        namespace=jobs_namespace,
        cluster=kubernetes.kubeconfig,
        address=address(kubernetes.kubeconfig),
        extra=MORE.format(image=image("job")),
        db_url=f"sqlite:///{folder / 'manager.sqlite'}",
        settings=("--Manager.lease_seconds=3",),
        resource=RESOURCE,
    )
    with running(made, cluster=False):
        yield made


def test_of_a_crowd_eight_get_a_gpu_also_when_the_manager_is_killed_meanwhile(hub: QuotaHub) -> None:
    users = [f"user{number}" for number in range(CROWD)]
    hub.add_users(users)
    with Sampler(hub) as sampler:
        statuses = hub.storm(users[: CROWD // 2], gpus=1)
        wait_for(lambda: len(hub.ready()) == GPUS, "eight are ready", 120)
        hub.kill("manager")
        hub.start_manager()
        hub.api("DELETE", f"/users/{hub.ready()[0].rstrip('/')}/server")

        def seven() -> bool:
            return len(hub.servers()) == GPUS - 1 == hub.held()

        wait_for(seven, "one is stopped and gone", 120)

        def again() -> bool:
            return any(status in {201, 202} for status in hub.storm(users[CROWD // 2 :], gpus=1))

        wait_for(again, "the new Manager has seen that", 120)
        wait_for(lambda: len(hub.ready()) == GPUS == hub.held(), "eight are ready again", 120)
    assert sampler.most == GPUS
    assert 429 in statuses
    for name in hub.servers():
        hub.api("DELETE", f"/users/{name.rstrip('/')}/server")
    wait_for(lambda: not hub.held(), "all are gone", 120)
