"""The manifests' NetworkPolicies under a real engine, kube-router, on the node of our cluster; nightly.

What they mean is judged for all pods and ports in test_policies.py; here real packets show a way of each kind.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.kubernetes import build, cluster, packages
from tests.kubernetes.conftest import BASE, Image, Kubectl
from tests.kubernetes.instance import ENVIRONMENT, cache
from tests.kubernetes.manifests import JOBS, PRODUCT, as_list
from tests.kubernetes.node import Node

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

MODULE = build.Module("policies", "kube-router", ("github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",))
SERVES = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"
REACHES = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
WAYS = {  # from, to, port
    "the gateway to a job's sshd": ("gateway", "job", 2222, True),
    "a job to another job's sshd": ("other", "job", 2222, False),
    "the Manager to a job's sshd": ("manager", "job", 2222, False),
    "a job to the Manager": ("job", "manager", 8082, True),
    "a job to the proxy's API": ("job", "proxy", 8001, False),
    "the Manager to the proxy's API": ("manager", "proxy", 8001, False),
}


@dataclass
class Pods:
    """A pod of each kind that answers at its port."""

    kubectl: Kubectl
    places: dict[str, str]  # their namespaces
    addresses: dict[str, str]

    def reach(self, source: str, target: str, port: int) -> bool:
        address = self.addresses[target]
        command = ("exec", "-n", self.places[source], source, "--", "python3", "-c", REACHES, address, str(port))
        with contextlib.suppress(AssertionError):  # kubectl's, with the command's exit status
            self.kubectl(*command)
            return True
        return False

    def ways(self) -> dict[str, bool]:
        return {name: self.reach(*way[:3]) for name, way in WAYS.items()}


@pytest.fixture
def node() -> Node:
    if not os.environ.get(ENVIRONMENT):
        pytest.skip("the engine is started on the node of our own cluster alone")
    return cluster._node()


@pytest.fixture
def pods(kubernetes: Client, kubectl: Kubectl, image: Image) -> Iterator[Pods]:
    """With the manifests' policies, which nothing enforces yet."""
    with kubernetes.namespace("product", {}) as product, kubernetes.namespace("jobs", {}) as jobs:
        made, places = [], {}
        for name, port in {"proxy": 8001, "manager": 8082, "gateway": 8080, "job": 2222, "other": 2222}.items():
            ours = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "dlspawner"}
            is_job = name in {"job", "other"}
            places[name] = jobs if is_job else product
            labels = {"dlspawner.dev/job": name} if is_job else ours
            container = {"name": "c", "image": image("job"), "command": ["python3", "-c", SERVES, str(port)]}
            container |= {"ports": [{"name": "ssh" if is_job else "http", "containerPort": port}]}
            spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
            metadata = {"name": name, "namespace": places[name], "labels": labels}
            made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        text = "\n---\n".join((BASE / f"network-{name}.yaml").read_text() for name in ("jobs", "product"))
        text = text.replace(f"namespace: {JOBS}", f"namespace: {jobs}").replace(
            f"metadata.name: {JOBS}", f"metadata.name: {jobs}"
        )
        text = text.replace(f"namespace: {PRODUCT}}}", f"namespace: {product}}}")
        text = text.replace(f"metadata.name: {PRODUCT}}}", f"metadata.name: {product}}}")
        kubectl("apply", "-f", "-", input=as_list([*made, *filter(None, yaml.safe_load_all(text))]))
        for name, where in places.items():
            kubectl("wait", "-n", where, "--for=condition=Ready", f"pod/{name}", "--timeout=110s")
        found = {name: kubernetes.get(f"/api/v1/namespaces/{where}/pods/{name}") for name, where in places.items()}
        yield Pods(kubectl, places, {name: pod["status"]["podIP"] for name, pod in found.items()})


@contextlib.contextmanager
def engine(node: Node) -> Iterator[None]:
    """kube-router enforces the policies of the cluster; its rules stay on the node, which is for this test alone."""
    program = build.built(MODULE, print) / "kube-router"
    folder = cache() / "ipset"
    with build.made_once(folder, print, "ipset") as partial:
        if partial:
            packages.install("--unpack", str(partial), "ipset", "libipset13")
    libraries = next((folder / "usr" / "lib").glob("*-linux-gnu"))
    env = node.programs.environment()
    env |= {"PATH": f"{folder / 'usr' / 'sbin'}:{env['PATH']}", "NODE_NAME": node.instance.node_name}
    env["LD_LIBRARY_PATH"] += f":{libraries}"
    command = [
        *(program, "--run-router=false", "--run-service-proxy=false", "--run-firewall=true"),
        *(f"--kubeconfig={node.instance.kubeconfig()}", f"--hostname-override={node.instance.node_name}"),
        f"--service-cluster-ip-range={node.instance.service_cidr}",
    ]
    node.starter.start("kube-router", node._inside(*command), env=env)
    yield
    node.kill("kube-router")


def test_an_engine_lets_the_named_ways_through_and_no_other(pods: Pods, node: Node) -> None:
    assert pods.ways() == dict.fromkeys(WAYS, True), "without an engine all is open"
    with engine(node):
        wanted = {name: way[3] for name, way in WAYS.items()}
        wait_for(lambda: not pods.reach("other", "job", 2222), "the engine has begun", 120)
        assert pods.ways() == wanted, json.dumps(pods.addresses)
