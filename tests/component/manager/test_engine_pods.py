"""Jobs whose pods wait in the cluster for an engine, through the real Hub and Manager.

The engine's scheduler is the test: no other one serves its name. With the same steps on real schedulers:
`tests/component/manager/test_gang_hub.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import OPTIONS, TEMPLATE, QuotaHub, running
from tests.component.manager.test_queue_hub import ask
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person

pytestmark = pytest.mark.usefixtures("nothing_left")
SCHEDULER = """
scheduling: {priority_classes: {guaranteed: high, preemptible: low}}
scheduler: {name: hived, scheduler_name: nobody}
"""
TOKEN = "hivedscheduler.microsoft.com/pod-scheduling-enable"
EXTRA = 'c.JupyterHub.load_roles[-1]["scopes"].append("tokens")'
FULL = "insufficient capacity when scheduling in VC default"


class Cluster:
    """The pods of one Hub, and what the engine does to them."""

    def __init__(self, hub: QuotaHub) -> None:
        self.client = Client(hub.kubeconfig)
        self.path = f"/api/v1/namespaces/{hub.namespace}/pods"

    def pods(self, user: str = "") -> list[dict[str, Any]]:
        found = self.client.get(self.path)["items"]
        return [pod for pod in found if not user or pod["metadata"]["labels"]["dlspawner.dev/user"] == user]

    def waiting(self, user: str) -> dict[str, Any]:
        """The one pod of this person, which nothing has placed."""

        def one() -> dict[str, Any] | None:
            found = self.pods(user)
            return found[0] if len(found) == 1 and not found[0]["spec"].get("nodeName") else None

        return wait_for(one, f"{user} has a pod that waits")

    def place(self, pod: dict[str, Any]) -> None:
        node = self.client.get("/api/v1/nodes")["items"][0]["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
        name = pod["metadata"]["name"]
        self.client.create(f"{self.path}/{name}/binding", {**target, "metadata": {"name": name}})

    def say(self, pod: dict[str, Any], kind: str, status: str, reason: str, message: str) -> None:
        told = {"type": kind, "status": status, "reason": reason, "message": message}
        self.client.patched(f"{self.path}/{pod['metadata']['name']}/status", {"status": {"conditions": [told]}})


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuotaHub]:
    made = QuotaHub(tmp_path_factory.mktemp("engine"), settings=SETTINGS, extra=EXTRA, policy=SCHEDULER)
    made.own_templates = {"tiny": {**TEMPLATE, "options": OPTIONS}}
    with running(made):
        made.add_users(["ann", "bob", "cid", "dan"])
        yield made


@pytest.fixture
def cluster(hub: QuotaHub) -> Cluster:
    return Cluster(hub)


def waits(hub: QuotaHub, user: str) -> dict[str, Any]:
    answer = ask(Person(hub, user), "GET")
    return dict(answer.json()) if answer.ok else {}


def uid(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["uid"])


def tokens(hub: QuotaHub, user: str) -> int:
    """How many tokens this person's servers have."""
    found = hub.api("GET", f"/users/{user}/tokens").json()["api_tokens"]
    return sum(one["note"].startswith("Server at") for one in found)


def test_start_does_not_wait_for_the_engine_and_goes_on_with_the_same_pod(hub: QuotaHub, cluster: Cluster) -> None:
    told = hub.refusal("ann", hub.start_server("ann", gpus=2))
    assert told.startswith("HiveD has its pods, and has not placed them yet."), told
    assert "/services/jobs/wait/ann/" in told
    pod = cluster.waiting("ann")
    assert pod["spec"]["schedulerName"] == "nobody"
    limits = pod["spec"]["containers"][-1]["resources"]["limits"]
    assert {name: limits.get(name) for name in (TOKEN, "nvidia.com/gpu", "cpu", "memory")} == {
        **{TOKEN: "1", "nvidia.com/gpu": None},
        **{"cpu": "100m", "memory": "128Mi"},
    }
    cluster.say(pod, "PodScheduled", "False", "Unschedulable", FULL)
    wait_for(lambda: waits(hub, "ann").get("why") == f"HiveD has no place for it yet: {FULL}.", "the engine's words")
    assert (waits(hub, "ann")["state"], hub.servers()) == ("queued", {})
    cluster.place(pod)
    wait_for(lambda: hub.ready() == ["ann/"], "it is started", 60)
    assert [uid(one) for one in cluster.pods()] == [uid(pod)]
    assert hub.jobs() == {"ann": "running"}
    assert waits(hub, "ann") == {}
    assert tokens(hub, "ann") == 1


@pytest.mark.parametrize(
    "at", ["placed", *(pytest.param(at, marks=pytest.mark.slow) for at in ("the first start", "waiting"))]
)
def test_hub_that_is_killed_leaves_one_pod_and_one_server(hub: QuotaHub, cluster: Cluster, at: str) -> None:
    hub.api("POST", "/users/bob/server", {"user_options": {"gpus": 1}})
    pod = cluster.waiting("bob")
    if at != "the first start":
        wait_for(lambda: waits(hub, "bob").get("state") == "queued", "it waits")
    hub.kill("hub")
    if at == "waiting":
        hub.kill("manager")
        hub.start_manager()
    if at == "placed":
        cluster.place(pod)
        wait_for(lambda: hub.jobs() == {"bob": "running"}, "it runs without a Hub", 60)
    hub.start_hub()
    if at != "placed":
        wait_for(lambda: waits(hub, "bob").get("state") == "queued", "it waits")
        cluster.place(pod)
    wait_for(lambda: hub.ready() == ["bob/"], "it is started", 60)
    assert [uid(one) for one in cluster.pods()] == [uid(pod)]
    assert hub.jobs() == {"bob": "running"}


def test_cancelled_job_leaves_no_pod(hub: QuotaHub, cluster: Cluster) -> None:
    hub.refusal("cid", hub.start_server("cid", gpus=1))
    wait_for(lambda: not hub.servers(), "the start has left its pod", 60)
    again = hub.refusal("cid", hub.start_server("cid", gpus=2))
    assert "waits in the cluster already, with other options" in again
    wait_for(lambda: not hub.servers(), "the Hub has cleared up", 60)
    assert ask(Person(hub, "cid"), "DELETE").status_code == 204
    wait_for(lambda: not cluster.pods() and not hub.jobs(), "nothing is left")


def test_jobs_that_wait_in_one_engine_are_taken_to_another_and_back(hub: QuotaHub, cluster: Cluster) -> None:
    """The cluster has no API of the other engine."""
    hub.refusal("ann", hub.start_server("ann", gpus=1))
    cluster.place(cluster.waiting("ann"))
    wait_for(lambda: hub.ready() == ["ann/"], "a job runs", 60)
    hub.refusal("cid", hub.start_server("cid", gpus=1))
    cluster.waiting("cid")
    before = hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'cid' AND state <> 'ended'")
    runs = cluster.pods("ann")
    file = hub.config / "cluster.yaml"
    file.write_text(file.read_text().replace("name: hived", "name: volcano"))
    wait_for(lambda: not cluster.pods("cid"), "the pod that waits for HiveD goes", 60)
    wait_for(lambda: "Volcano does not take this job now." in waits(hub, "cid").get("why", ""), "Volcano is asked")
    assert hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'cid' AND state <> 'ended'") == before
    assert [uid(one) for one in cluster.pods("ann")] == [uid(one) for one in runs]
    file.write_text(file.read_text().replace("name: volcano", "name: hived"))
    cluster.waiting("cid")
    # JupyterHub's stop of a server that starts fails if the next start begins within a second of it
    wait_for(lambda: list(hub.servers()) == ["ann/"], "the start has left its pod", 60)
    assert ask(Person(hub, "cid"), "DELETE").status_code == 204
