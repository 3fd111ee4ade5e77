"""The deadlock of kube-batch's article: Kubernetes' own scheduler lets two jobs hold what the other one needs.

That engines of gangs start one job whole, while the other one waits whole, is in
`tests/component/manager/test_gang_hub.py`, on the real ones.
"""

from __future__ import annotations

import pytest

from tests.contract.client import RESTRICTED_CONTAINER, Client, node
from tests.e2e.people import wait_for
from tests.kubernetes import planes
from tests.kubernetes.conftest import leased

pytestmark = pytest.mark.slow

GPU = "nvidia.com/gpu"
PODS = f"/api/v1/namespaces/{planes.NAMESPACE}/pods"
JOBS = {"a": 3, "b": 4}  # pods of one GPU each, and the node has four


def make_pod(client: Client, name: str) -> None:
    security = {**RESTRICTED_CONTAINER, "runAsUser": 1000}
    resources = {"limits": {GPU: "1", "cpu": "100m", "memory": "64Mi"}}
    container = {"name": "main", "image": "example.org/image:1", "resources": resources, "securityContext": security}
    client.create(PODS, {"metadata": {"name": name}, "spec": {"containers": [container]}})


def test_default_scheduler_lets_both_jobs_hold_what_the_other_needs() -> None:
    plane = planes.take()
    client = Client(plane.kubeconfig)
    client.create("/api/v1/nodes", node("gpus", {"kubernetes.io/hostname": "gpus"}, **{GPU: "4"}))
    client.until("/api/v1/nodes/gpus", lambda seen: not seen["spec"].get("taints"), "no taint")

    def placed() -> str:
        pods = client.get(PODS)["items"]
        return "".join(sorted(pod["metadata"]["name"][0] for pod in pods if pod["spec"].get("nodeName")))

    try:
        with leased(client, "gpus"):
            for number in range(max(JOBS.values())):
                for job, pods in JOBS.items():
                    if number < pods:
                        make_pod(client, f"{job}-{number}")
            wait_for(lambda: len(placed()) == 4, "all GPUs are taken", 60)
            assert placed() == "aabb"
    finally:
        planes.give_back(plane)
