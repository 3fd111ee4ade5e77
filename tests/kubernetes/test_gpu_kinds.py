"""Kinds of GPUs on a real Kubernetes: MIG by a device plugin of ours, and claims by a DRA driver of ours."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.component.manager.rest import TEAMS, RestHub
from tests.contract.client import Client
from tests.kubernetes import counted
from tests.kubernetes.cluster import record
from tests.kubernetes.conftest import Image, Kubectl
from tests.kubernetes.instance import ENVIRONMENT, Instance
from tests.kubernetes.kubelet_plugins import device_plugin, dra_driver

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(ENVIRONMENT not in os.environ, reason="the kubelets' directories are not ours"),
]
MIG, DRIVER = "nvidia.com/mig-1g.10gb", "gpu.example.com"
EACH = {"cpu_per_gpu": "50m", "memory_per_gpu": "64Mi"}
QUOTAS = TEAMS.replace("quota: {gpu: 4}", "quota: {gpu: 4, part: 1, claimed: 2}")
DRA = "/apis/resource.k8s.io/v1"


def instance() -> Instance:
    return Instance.load(Path(os.environ[ENVIRONMENT]))


def files_of_node() -> Path:
    """The root directory of the node's own mounts."""
    holder = next(one["pid"] for one in record(instance().number).entries() if one.get("name") == "holder")
    return Path(f"/proc/{holder}/root")


@dataclass
class KindsHub(RestHub):
    """A Hub with GPU types of several kinds."""

    teams: str = QUOTAS

    def prepare(self) -> None:
        super().prepare()
        file = self.config / "cluster.yaml"
        cluster = yaml.safe_load(file.read_text())
        on_node = {"kubernetes.io/hostname": instance().node_name}
        cluster["gpu_types"] |= {
            "part": {"resource": MIG, "share": "1/7", **EACH},
            "claimed": {"claim_template": "h100-or-a100", "gpus_per_node": 2, "node_selector": on_node, **EACH},
        }
        file.write_text(yaml.safe_dump(cluster))

    def pods_by_user(self, kubernetes: Client) -> dict[str, dict[str, Any]]:
        """The pods of jobs, by user."""
        listed = kubernetes.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return {one["metadata"]["annotations"]["hub.jupyter.org/username"]: one for one in listed}

    def waits_for_quota(self, user: str, gpus: int, kind: str) -> str:
        """The sentence about a job that its team's quota has no room for."""
        body = {"server": "", "options": {"template": "tiny", "gpus": gpus, "gpu_type": kind}}
        answer = self.ask(user, "POST", "jobs", body)
        assert answer.json().get("state") == "queued", answer.text
        return str(answer.json()["why"])


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path) -> Iterator[KindsHub]:
    settings = ("--Manager.lease_seconds=3",)
    with counted.hub(KindsHub, kubernetes, jobs_namespace, image("job"), tmp_path, settings=settings) as made:
        yield made


def test_parts_by_a_device_plugin_are_counted_and_given_to_the_container(
    hub: KindsHub, kubernetes: Client, kubectl: Kubectl
) -> None:
    at = instance()
    with device_plugin(files_of_node() / "var/lib/kubelet", MIG, [f"MIG-{number}" for number in range(14)]):
        path = f"/api/v1/nodes/{at.node_name}"
        kubernetes.until(path, lambda seen: seen["status"]["allocatable"].get(MIG) == "14", "the kubelet shows them")
        job = hub.runs("alice", 2, gpu_type="part")
        assert (job["gpus"], job["gpu_type"]) == (0.284, "part")
        pod = hub.pods_by_user(kubernetes)["alice"]["metadata"]["name"]
        seen = kubectl("exec", "-n", hub.namespace, pod, "--", "printenv").splitlines()
        (given,) = (line.partition("=")[2].split(",") for line in seen if line.startswith("TEST_DEVICES="))
        assert len(given) == 2
        assert not [line for line in seen if line.startswith("NVIDIA_VISIBLE_DEVICES")], "the plugin's to say"
        kinds = {one["name"]: one for one in hub.ask("alice", "GET", "cluster").json()["gpu_types"]}
        assert (kinds["part"]["total"], kinds["part"]["free"]) == (1.988, 1.704)
        why = hub.waits_for_quota("vera", 6, "part")
        assert why == "Team Vision uses 0.284 of its 0.994 GPUs of type part; this job needs 0.852."
        hub.clear()


@contextlib.contextmanager
def devices(kubernetes: Client, namespace: str) -> Iterator[None]:
    """An H100 and an A100 of a driver of ours, and the template of claims for one of them, the H100 if it is free."""

    def of_kind(name: str) -> dict[str, Any]:
        wanted = f'device.attributes["{DRIVER}"].productName == "{name}"'
        return {"name": name.lower(), "deviceClassName": DRIVER, "selectors": [{"cel": {"expression": wanted}}]}

    products = {"gpu-0": "A100", "gpu-1": "H100"}
    listed = [{"name": name, "attributes": {"productName": {"string": product}}} for name, product in products.items()]
    node = instance().node_name
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    slice_ = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": listed}
    of_driver = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    requests = [{"name": "gpu", "firstAvailable": [of_kind("H100"), of_kind("A100")]}]
    stop = threading.Event()

    def publish() -> None:
        """As drivers do: a kubelet deletes, some time after its start, what the drivers before it had published."""
        while not stop.wait(1):
            kubernetes.request("POST", f"{DRA}/resourceslices", {"metadata": {"name": DRIVER}, "spec": slice_})

    kubernetes.create(f"{DRA}/deviceclasses", {"metadata": {"name": DRIVER}, "spec": of_driver})
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        template = {"metadata": {"name": "h100-or-a100"}, "spec": {"spec": {"devices": {"requests": requests}}}}
        kubernetes.create(f"{DRA}/namespaces/{namespace}/resourceclaimtemplates", template)
        yield
    finally:
        stop.set()
        publisher.join()
        kubernetes.request("DELETE", f"{DRA}/resourceslices/{DRIVER}")
        kubernetes.delete(f"{DRA}/deviceclasses/{DRIVER}")


def test_claims_are_allocated_by_kubernetes_and_counted_by_the_manager(hub: KindsHub, kubernetes: Client) -> None:
    with dra_driver(instance().run / "kubelet", DRIVER) as prepared, devices(kubernetes, hub.namespace):
        job = hub.runs("alice", 2, gpu_type="claimed")
        assert (job["gpus"], job["gpu_type"]) == (2, "claimed")
        claims = kubernetes.get(f"{DRA}/namespaces/{hub.namespace}/resourceclaims")["items"]
        results = [one["status"]["allocation"]["devices"]["results"][0] for one in claims]
        assert sorted((one["request"], one["device"]) for one in results) == [
            ("gpu/a100", "gpu-0"),
            ("gpu/h100", "gpu-1"),
        ]
        assert sorted(prepared) == sorted(one["metadata"]["name"] for one in claims)
        env = hub.pods_by_user(kubernetes)["alice"]["spec"]["containers"][0]["env"]
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in env, "claimed devices come by CDI"
        why = hub.waits_for_quota("vera", 1, "claimed")
        assert why == "Team Vision uses 2 of its 2 GPUs of type claimed; this job needs 1."
        hub.clear()
