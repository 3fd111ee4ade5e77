"""A Hub outside the cluster's network: jobs are reached by the NodePort of their node, and only by it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import requests

from tests.contract.client import RESTRICTED, Client
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person, running
from tests.kubernetes.conftest import Image
from tests.kubernetes.failing import make_hub, wait_until_gone

pytestmark = pytest.mark.kubernetes

LAB = """
title: Notebook
command: [/bin/sh, -c, "export HOME=/tmp JUPYTERHUB_ROOT_DIR=/tmp; exec jupyterhub-singleuser"]
grace_period_seconds: 5
pod:
  containers:
    - name: notebook
      resources: {requests: {cpu: 50m, memory: 256Mi}, limits: {cpu: "2", memory: 1Gi}}
"""


@pytest.fixture(scope="module")
def hub(kubernetes: Client, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    state = tmp_path_factory.mktemp("hub")
    more = 'c.DLSpawner.http_service_type = "nodeport"\n'
    with kubernetes.namespace("jobs", RESTRICTED) as namespace:
        made = make_hub(
            state, namespace, image("job"), kubernetes.kubeconfig, gpu="example.com/gpu", seconds=180, more=more
        )
        (made.templates / "jobs" / "lab.yaml").write_text(LAB)
        with running(made, cluster=False) as started:
            yield started


@pytest.fixture(scope="module")
def alice(hub: Hub) -> Person:
    return Person(hub, "alice")


def node_port(hub: Hub, pod: str) -> str:
    """Returns the job's address by Kubernetes."""
    host = hub.kubectl("get", "pod", pod, "-o", "jsonpath={.status.hostIP}")
    port = hub.kubectl("get", "service", f"{pod}-http", "-o", "jsonpath={.spec.ports[0].nodePort}")
    return f"http://{host}:{port}"


def routes(hub: Hub, server: str) -> set[str]:
    """Returns the proxy's target for a server."""
    return set(re.findall(rf"/user/alice/{server}/ => (http://\S+)", hub.log))


def test_a_notebook_by_nodeport_behind_the_login(hub: Hub, alice: Person) -> None:
    alice.launch("train", 180, template="lab")
    pod = alice.pod_name("train")
    address = node_port(hub, pod)
    pod_address = hub.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")

    assert routes(hub, "train") == {address}
    assert f"://{pod_address}" not in hub.log
    assert alice.get("/user/alice/train/lab").status_code == 200

    anonymous = requests.get(f"{address}/user/alice/train/api/contents", timeout=30, allow_redirects=False)
    assert anonymous.status_code == 403
    page = requests.get(f"{address}/user/alice/train/lab", timeout=30, allow_redirects=False)
    assert "/hub/api/oauth2/authorize" in page.headers["Location"]

    hub.stop("hub")
    hub.start_hub()
    wait_for(lambda: alice.server("train").get("ready"), "the Hub finds the job again", 60)
    assert alice.get("/user/alice/train/lab").status_code == 200
    assert routes(hub, "train") == {address}
    assert f"://{pod_address}" not in hub.log

    alice.stop("train")
    wait_until_gone(alice, "train")
