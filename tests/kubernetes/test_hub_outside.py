"""A Hub outside the cluster's network: jobs are reached by the NodePort of their node, and only by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person
from tests.kubernetes.conftest import Image
from tests.kubernetes.failing import running_hub, wait_until_gone

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path) -> Iterator[Hub]:
    more = 'c.DLSpawner.http_service_type = "nodeport"\n'
    with running_hub(tmp_path, jobs_namespace, image("job"), kubernetes.kubeconfig, seconds=180, more=more) as made:
        yield made


def node_port(hub: Hub, pod: str) -> str:
    """Returns the job's address by Kubernetes."""
    host = hub.kubectl("get", "pod", pod, "-o", "jsonpath={.status.hostIP}")
    port = hub.kubectl("get", "service", f"{pod}-http", "-o", "jsonpath={.spec.ports[0].nodePort}")
    return f"http://{host}:{port}"


def routes(hub: Hub, server: str) -> set[str]:
    """Returns the proxy's target for a server."""
    return set(re.findall(rf"/user/alice/{server}/ => (http://\S+)", hub.log))


def test_a_notebook_by_nodeport_behind_the_login(hub: Hub) -> None:
    alice = Person(hub, "alice")
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
