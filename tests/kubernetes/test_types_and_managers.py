"""Two rules on a real Kubernetes: every GPU type has a quota of its own, and of two Managers one acts at a time.

The scheduler places the pods by their resources and labels; the nodes with the GPUs are simulated.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.component.manager.crowds import queue, turns
from tests.component.manager.preempt_story import EXTRA
from tests.component.manager.quota import GPUS, QuotaHub, Sampler, running
from tests.contract import machines
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.ports import free_port
from tests.harness.spawner_hub import Person
from tests.kubernetes.conftest import Image
from tests.kubernetes.counted import MORE
from tests.kubernetes.failing import address, witnessed

pytestmark = pytest.mark.kubernetes
SECONDS = 120
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
ONLY = NVIDIA  # also the taint of the simulated nodes, as nodes with GPUs often have it
MINE = secrets.token_hex(3)
LABELS = {
    "a100": {"nvidia.com/gpu.product": f"A100-{MINE}"},
    "v100": {"nvidia.com/gpu.product": f"V100-{MINE}"},
    "mi300": {"amd.com/gpu.product-name": f"MI300-{MINE}"},
}
RESOURCES = {"a100": NVIDIA, "v100": NVIDIA, "mi300": AMD}
QUOTA = {"a100": 2, "v100": 1, "mi300": 1}
TEAMS = {"default": {"title": "Everybody"}, "vision": {"title": "Vision", "quota": QUOTA}}


@dataclass
class NodesHub(QuotaHub):
    """On simulated nodes, for its own pods only."""

    def described(self) -> list[dict[str, Any]]:
        """Three times as many GPUs as the team may have: a refusal cannot come from the scheduler."""
        return [{"name": f"gpus-{MINE}", "gpus": {self.resource: 3 * GPUS}}]

    def prepare(self) -> None:
        super().prepare()
        self.nodes = self.state / "nodes.json"
        shared = {"cpu": 8, "memory": "16Gi", "taints": [{"key": ONLY, "effect": "NoSchedule"}]}
        self.nodes.write_text(json.dumps({"nodes": [{**shared, **node} for node in self.described()]}))


@dataclass
class TypesHub(NodesHub):
    """A node of every type: two of one resource told apart by the product's label, and another vendor's."""

    def described(self) -> list[dict[str, Any]]:
        return [
            {"name": f"{kind}-{MINE}", "gpus": {RESOURCES[kind]: 8}, "labels": labels}
            for kind, labels in LABELS.items()
        ]

    def prepare(self) -> None:
        super().prepare()
        share = {"cpu_per_gpu": "50m", "memory_per_gpu": "64Mi", "tolerations": [{"key": ONLY, "operator": "Exists"}]}
        types = {
            kind: {"resource": RESOURCES[kind], "node_selector": labels, **share} for kind, labels in LABELS.items()
        }
        cluster = {
            "gpu_types": types,
            "cpu_only": {"cpu": {"default": "100m"}, "memory": {"default": "64Mi"}},
            "accounts": {"first_uid": 20000, "last_uid": 59999},
            "defaults": {"template": "tiny"},
        }
        (self.config / "cluster.yaml").write_text(json.dumps(cluster))

    def set_quota(self, gpus: int) -> None:
        (self.config / "teams.yaml").write_text(json.dumps({"teams": TEAMS}))


@dataclass
class TwoManagers(NodesHub):
    """The Hub reaches its Managers as in a cluster: through a Service, which knows the one that is ready."""

    ports: dict[str, int] = field(default_factory=lambda: {"manager": free_port(), "other": free_port()})

    def start_manager(self, name: str = "manager", port: int = 0) -> None:
        super().start_manager(name, port or self.ports[name])

    def acting(self) -> list[str]:
        return [name for name, port in self.ports.items() if is_ready(port)]


def is_ready(port: int) -> bool:
    """The result of a readiness probe."""
    try:
        return requests.get(f"http://127.0.0.1:{port}/services/jobs/ready", timeout=10).ok
    except requests.RequestException:
        return False


class Connection(socketserver.BaseRequestHandler):
    """One connection to the Service: to a pod that is ready when it is opened."""

    server: Service
    request: socket.socket

    def handle(self) -> None:
        port = next((port for port in self.server.ports if is_ready(port)), 0)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as manager:
            manager.settimeout(None)
            back = threading.Thread(target=copy, args=(manager, self.request), daemon=True)
            back.start()
            copy(self.request, manager)
            back.join()


class Service(socketserver.ThreadingTCPServer):
    """Stands for the Service before Managers that are processes of this machine."""

    allow_reuse_address = daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, ports: list[int]) -> None:
        super().__init__(("127.0.0.1", port), Connection)
        self.ports = ports


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def served(hub: TwoManagers) -> Iterator[None]:
    with Service(hub.manager_port, [*hub.ports.values()]) as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield
        finally:
            service.shutdown()
            thread.join()


@contextlib.contextmanager
def on_nodes(hub: NodesHub, kubernetes: Client) -> Iterator[None]:
    """Hub, Manager and proxy run, and the nodes are part of the cluster."""
    simulated = hub.state / "simulated"
    simulated.mkdir()
    with running(hub, cluster=False):
        assert hub.nodes is not None
        with machines.joined(kubernetes, hub.nodes, simulated):
            yield


@pytest.fixture
def settings(jobs_namespace: str, image: Image, kubernetes: Client, tmp_path: Path) -> dict[str, Any]:
    """The settings of every Hub here."""
    if not machines.is_here(kubernetes):
        pytest.skip("the API server runs on another machine")
    return {
        "state": tmp_path,
        "namespace": jobs_namespace,
        "cluster": kubernetes.kubeconfig,
        "address": address(kubernetes.kubeconfig),
        "extra": MORE.format(image=image("job")) + EXTRA,
        "db_url": f"sqlite:///{tmp_path / 'manager.sqlite'}",
    }


@pytest.fixture
def types(settings: dict[str, Any], kubernetes: Client) -> Iterator[TypesHub]:
    made = TypesHub(**settings)
    with on_nodes(made, kubernetes):
        yield made


@pytest.fixture
def managers(settings: dict[str, Any], kubernetes: Client) -> Iterator[TwoManagers]:
    made = TwoManagers(**{**settings, "settings": (), "resource": f"quota-{MINE}.example.com/gpu"})
    with served(made), on_nodes(made, kubernetes):
        made.start_manager("other")
        yield made


def test_who_has_all_of_one_type_waits_for_more_of_it_and_has_the_others_at_once(
    types: TypesHub, kubernetes: Client
) -> None:
    types.add_users(["ann"])
    types.api("POST", "/groups/vision", {})
    assert types.api("POST", "/groups/vision/users", {"users": ["ann"]}).status_code == 200
    ann = Person(types, "ann")
    with Sampler(types, NVIDIA) as nvidia, Sampler(types, AMD) as amd:
        ann.launch("all", SECONDS, gpus=2, gpu_type="a100")
        answer = ann.start("more", gpus=1, gpu_type="a100")
        assert answer.status_code == 429, answer.text
        said = str(answer.json()["message"])
        assert said.startswith("Team Vision uses 2 of its 2 GPUs of type a100; this job needs 1.")
        ann.launch("same-vendor", SECONDS, gpus=1, gpu_type="v100")
        ann.launch("other-vendor", SECONDS, gpus=1, gpu_type="mi300")
        assert [user for user, _, _ in queue(types)] == ["ann"], "for one more A100"
    assert (nvidia.most, amd.most) == (3, 1)

    kinds = {"all": "a100", "same-vendor": "v100", "other-vendor": "mi300"}
    for server, kind in kinds.items():
        pod = json.loads(types.kubectl("get", "pod", ann.pod_name(server), "-o", "json"))
        assert pod["spec"]["containers"][0]["resources"]["limits"][RESOURCES[kind]] == str(QUOTA[kind])
        labels = kubernetes.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")["metadata"]["labels"]
        assert labels.items() >= LABELS[kind].items()
    assert len(types.kubectl("get", "pods", "-o", "name").split()) == len(kinds)
    assert "Traceback" not in types.log


def test_when_the_manager_that_acts_is_killed_the_other_starts_who_waits_and_nothing_is_doubled(
    managers: TwoManagers, kubernetes: Client
) -> None:
    hub = managers
    hub.add_users(["holder", "next", "last"])
    with Sampler(hub) as sampler, witnessed(kubernetes, hub.namespace) as witness:
        hub.start_server("holder", gpus=GPUS)
        wait_for(lambda: hub.ready() == ["holder/"], "all GPUs are held", SECONDS)
        for user in ("next", "last"):
            hub.start_server(user, gpus=5)
        wait_for(lambda: len(queue(hub)) == 2, "two wait", 60)
        before = queue(hub)
        assert [user for user, _, _ in before] == ["next", "last"]

        (acts,) = wait_for(hub.acting, "one of them acts", 60)
        (other,) = hub.ports.keys() - {acts}
        hub.kill(acts)
        killed = time.monotonic()
        assert hub.api("DELETE", "/users/holder/server").status_code in {202, 204}
        wait_for(lambda: hub.acting() == [other], "the other one acts", 60)
        took = time.monotonic() - killed
        print(f"the other one acts {took:.1f} s after the kill, with the default lease")
        assert took < 15
        wait_for(lambda: hub.ready() == ["next/"], "it starts who was first", SECONDS)
        assert queue(hub) == before[1:], "five and five are more than eight"
        assert hub.held() == 5

        hub.start_manager(acts)  # it is back, and stands by
        assert hub.api("DELETE", "/users/next/server").status_code in {202, 204}
        wait_for(lambda: hub.ready() == ["last/"], "it starts who was second", SECONDS)
        assert hub.held() == 5
    assert sampler.most == GPUS
    seen = [json.loads(said) for _, _, said in witness.said]
    pods = {(one["metadata"]["name"], one["metadata"]["uid"]) for one in seen if one["kind"] == "Pod"}
    assert sorted(name for name, _ in pods) == ["jupyter-holder", "jupyter-last", "jupyter-next"], "one pod per server"
    assert turns(hub) == [job for _, job, _ in before]
    assert "Traceback" not in hub.log + "".join((hub.state / f"{name}.log").read_text() for name in hub.ports)
