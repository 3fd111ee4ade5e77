"""What tests on a real cluster share: they know $KUBECONFIG and the images' names, not how the cluster was made.

So the same tests run on the cluster of `python -m tests.kubernetes with` and on any other. Objects live in namespaces
of their own, which go when the test ends (without waiting: a namespace takes about ten seconds to go).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.contract.client import RESTRICTED, Client, node
from tests.kubernetes.instance import GPU_LABELS
from tests.kubernetes.manifests import JOBS, PRODUCT, Object, as_list, moved, of_kind

Kubectl = Callable[..., str]
Image = Callable[[str], str]

IMAGE_PREFIX = os.environ.get("DLSPAWNER_IMAGE_PREFIX", "dlspawner")
IMAGE_TAG = os.environ.get("DLSPAWNER_IMAGE_TAG", "0.1.0")

MANIFESTS = Path(__file__).parents[2] / "hub_config" / "kubernetes"
BASE, DEMO = MANIFESTS / "base", MANIFESTS / "overlays" / "demo"


@dataclass
class Scratch:
    """Two namespaces like the product's, and its objects for them."""

    product: str
    jobs: str
    objects: list[Object]

    def real(self, namespace: str) -> str:
        return {PRODUCT: self.product, JOBS: self.jobs}.get(namespace, namespace)


@pytest.fixture(scope="session")
def kubernetes() -> Client:
    """The cluster of $KUBECONFIG, as its administrator; the marker `kubernetes` skips tests where there is none."""
    return Client(Path(os.environ["KUBECONFIG"]))


def run_kubectl(*arguments: str, input: str | None = None, timeout: float = 120) -> str:
    """Returns what it printed; a later --namespace wins over an earlier one."""
    command = [os.environ.get("DLSPAWNER_KUBECTL", "kubectl"), *arguments]
    done = subprocess.run(command, check=False, input=input, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def kubectl(kubernetes: Client) -> Kubectl:
    """`kubectl("get", "pods", input=…)` on the cluster of $KUBECONFIG."""
    return run_kubectl


@pytest.fixture(scope="session")
def demo(kubectl: Kubectl) -> list[Object]:
    """What the demo overlay applies."""
    return list(yaml.safe_load_all(kubectl("kustomize", str(DEMO))))


@pytest.fixture(scope="module")
def scratch(demo: list[Object], kubectl: Kubectl) -> Iterator[Scratch]:
    """With the product's accounts and rights."""
    name = f"manifests-{secrets.token_hex(4)}"
    made = Scratch(name, f"{name}-jobs", moved(demo, name, f"{name}-jobs"))
    kubectl("create", "-f", "-", input=as_list(of_kind(made.objects, "Namespace")))
    try:
        access = of_kind(made.objects, "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
        kubectl("create", "-f", "-", input=as_list(access))
        yield made
    finally:
        kubectl("delete", "namespace", made.product, made.jobs, "--wait=false")
        kubectl("delete", "clusterrole,clusterrolebinding", f"{name}-manager", "--ignore-not-found")


@pytest.fixture(scope="session")
def image() -> Image:
    """The full name of one of the project's images: image("job")."""
    return lambda name: f"{IMAGE_PREFIX}/{name}:{IMAGE_TAG}"


@contextlib.contextmanager
def made_node(kubernetes: Client) -> Iterator[str]:
    """A node without a kubelet, tainted with `test=<its name>`, so that only pods that tolerate this can get there.

    It has as many GPUs and the same labels as the node of our clusters, and its name as kubernetes.io/hostname.
    """
    name = f"fake-{secrets.token_hex(4)}"
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **GPU_LABELS}
    made = node(name, labels, **{"nvidia.com/gpu": "8"})
    made["spec"] = {"taints": [{"key": "test", "value": name, "effect": "NoSchedule"}]}
    kubernetes.create("/api/v1/nodes", made)
    path = f"/api/v1/nodes/{name}"
    try:
        kubernetes.until(
            path, lambda seen: [taint["key"] for taint in seen["spec"]["taints"]] == ["test"], "only its taint"
        )
        yield name
    finally:
        kubernetes.delete(path)


@contextlib.contextmanager
def leased(kubernetes: Client, *names: str, seconds: float = 10) -> Iterator[None]:
    """These nodes stay Ready: the lease of each is renewed as often as a kubelet does it."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    for name in names:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40}
        kubernetes.create(leases, {"metadata": {"name": name}, "spec": spec})
    stop = threading.Event()

    def renew() -> None:
        for name in itertools.cycle(names):
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            kubernetes.patched(f"{leases}/{name}", {"spec": {"renewTime": now}}, "merge")
            if stop.wait(seconds / len(names)):
                return

    with ThreadPoolExecutor(1) as threads:
        renewing = threads.submit(renew)
        try:
            yield
        finally:
            stop.set()
            renewing.result(60)
            for name in names:
                kubernetes.request("DELETE", f"{leases}/{name}")  # or gone with its node


@pytest.fixture
def healthy_node(kubernetes: Client) -> Iterator[str]:
    """A second node that stays Ready, and on which nothing ever runs: Kubernetes gives up one node of many only."""
    with made_node(kubernetes) as name, leased(kubernetes, name):
        yield name


@pytest.fixture(scope="session")
def priority_classes(kubernetes: Client) -> Iterator[None]:
    """The classes that our cluster.yaml names; those that were not there go again."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    wanted = list(yaml.safe_load_all((BASE / "priorities.yaml").read_text()))
    made = [one for one in wanted if kubernetes.request("POST", path, one).code == 201]
    yield
    for one in made:
        kubernetes.request("DELETE", f"{path}/{one['metadata']['name']}")


@pytest.fixture
def jobs_namespace(kubernetes: Client, priority_classes: None) -> Iterator[str]:
    """One that enforces Pod Security *restricted*, as the product's namespace of jobs does."""
    with kubernetes.namespace("jobs", RESTRICTED) as name:
        yield name
