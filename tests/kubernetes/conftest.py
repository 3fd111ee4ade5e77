"""What tests on a real cluster share: they know $KUBECONFIG and the images' names, not how the cluster was made.

So the same tests run on the cluster of `python -m tests.kubernetes with` and on any other. Objects live in namespaces
of their own, which go when the test ends (nobody waits for it: a namespace takes about ten seconds to go).
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.client import Client
from tests.kubernetes.instance import GPU_LABELS

Kubectl = Callable[..., str]
Image = Callable[[str], str]

IMAGE_PREFIX = os.environ.get("DLSPAWNER_IMAGE_PREFIX", "dlspawner")
IMAGE_TAG = os.environ.get("DLSPAWNER_IMAGE_TAG", "0.1.0")

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="session")
def kubernetes() -> Client:
    """The cluster of $KUBECONFIG, as its administrator; the marker `kubernetes` skips tests where there is none."""
    return Client(Path(os.environ["KUBECONFIG"]))


@pytest.fixture(scope="session")
def kubectl(kubernetes: Client) -> Kubectl:
    """`kubectl("get", "pods", input=…)`: what it printed; a failure shows what it said."""

    def run(*arguments: str, input: str | None = None, timeout: float = 120) -> str:
        command = [os.environ.get("DLSPAWNER_KUBECTL", "kubectl"), "--kubeconfig", str(kubernetes.kubeconfig)]
        done = subprocess.run(
            [*command, *arguments], check=False, input=input, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def image() -> Image:
    """The full name of one of the project's images: image("job")."""
    return lambda name: f"{IMAGE_PREFIX}/{name}:{IMAGE_TAG}"


@pytest.fixture
def fake_node(kubernetes: Client) -> Iterator[str]:
    """A second node, Ready for 40 seconds, on which nothing ever runs: for the scheduler to choose wrongly.

    It is tainted with `test=<its name>`, so that only pods that tolerate this can get there; it has as many GPUs, the
    same labels as the node of our clusters, and its name as the label kubernetes.io/hostname.
    """
    name = f"fake-{secrets.token_hex(4)}"
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
    node = {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **GPU_LABELS},
        },
        "spec": {"taints": [{"key": "test", "value": name, "effect": "NoSchedule"}]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": None}],
        },
    }
    kubernetes.create("/api/v1/nodes", node)
    path = f"/api/v1/nodes/{name}"
    kubernetes.until(
        path, lambda seen: [taint["key"] for taint in seen["spec"]["taints"]] == ["test"], "only its taint"
    )
    yield name
    kubernetes.delete(path)


@pytest.fixture
def jobs_namespace(kubernetes: Client) -> Iterator[str]:
    """A fresh namespace that enforces Pod Security *restricted*, as the product's namespace of jobs does."""
    name = f"jobs-{secrets.token_hex(4)}"
    kubernetes.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": RESTRICTED}})
    kubernetes.until(f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda account: True)
    yield name
    kubernetes.request("DELETE", f"/api/v1/namespaces/{name}")
