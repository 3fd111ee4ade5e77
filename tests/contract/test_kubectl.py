"""Everyday kubectl, with every kubectl at hand: the one on PATH and the one that $DLSPAWNER_KUBECTL names."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.client import Client, pod
from tests.contract.conftest import NodeMaker

KUBECTLS = sorted({path for path in (shutil.which("kubectl"), os.environ.get("DLSPAWNER_KUBECTL")) if path})
pytestmark = pytest.mark.skipif(not KUBECTLS, reason="no kubectl here")

Kubectl = Callable[..., str]


@pytest.fixture(params=KUBECTLS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def environment(cluster: Client, tmp_path: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(program: str, environment: dict[str, str], namespace: str) -> Iterator[Start]:
    """Starts a kubectl that runs beside the test."""
    started = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [program, "--namespace", namespace, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def kubectl(program: str, environment: dict[str, str], namespace: str) -> Kubectl:
    def run(*arguments: str, given: str | None = None, fails: bool = False) -> str:
        command = [program, "--namespace", namespace, *arguments]
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, timeout=60, env=environment
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: one}}
spec:
  schedulerName: nobody
  containers: [{name: main, image: "i:1", env: [{name: A, value: "1"}]}]
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: s}
spec:
  type: NodePort
  selector: {app: one}
  ports:
  - name: ssh
    port: 22
"""


def test_apply_creates_then_leaves_then_changes(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", given=f"{POD}---\n{SERVICE}").split("\n")[:2] == [
        "pod/p created",
        "service/s created",
    ]
    assert "pod/p unchanged" in kubectl("apply", "-f", "-", given=POD)
    assert "pod/p configured" in kubectl("apply", "-f", "-", given=POD.replace("i:1", "i:2").replace("one", "two"))
    assert kubectl("get", "pod", "p", "-o", "jsonpath={.spec.containers[0].image} {.metadata.labels.app}") == "i:2 two"
    more = f"{SERVICE}  - name: web\n    port: 80\n"
    assert "service/s configured" in kubectl("apply", "-f", "-", given=more)
    assert "service/s configured" in kubectl("apply", "-f", "-", given=SERVICE)
    assert kubectl("get", "service", "s", "-o", "jsonpath={.spec.ports[*].name}") == "ssh"


def test_get_prints_tables(kubectl: Kubectl, cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    cluster.create(pods, pod("p", nodeName=node))
    entry = {"name": "main", "ready": True, "restartCount": 2, "image": "i", "imageID": "", "state": {"running": {}}}
    status = {"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": [entry]}
    cluster.patched(f"{pods}/p/status", {"status": status})
    header, row = kubectl("get", "pods", "-o", "wide").splitlines()
    assert header.split()[:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
    assert [row.split()[index] for index in (0, 1, 2, 3, 5, 6)] == ["p", "1/1", "Running", "2", "10.1.2.3", node]
    assert kubectl("get", "pods", "--no-headers", "-o", "custom-columns=N:.metadata.name").split() == ["p"]
    kubectl("cordon", node)
    assert "Ready,SchedulingDisabled" in kubectl("get", "node", node).replace("NotReady", "Ready")
    for kind in ("services", "secrets", "configmaps", "pvc", "pv", "events", "namespaces", "endpoints", "leases", "sa"):
        kubectl("get", kind)
    names = kubectl("get", "all", "-o", "name").split()
    assert names == ["pod/p"]


def test_get_watch_follows_a_pod(kubectl: Kubectl, start: Start, cluster: Client, pods: str) -> None:
    kubectl("apply", "-f", "-", given=POD)
    lines = start("get", "pods", "--watch").stdout
    assert lines
    assert lines.readline().split()[:3] == ["NAME", "READY", "STATUS"]
    assert lines.readline().split()[:3] == ["p", "0/1", "Pending"]
    cluster.patched(f"{pods}/p/status", {"status": {"phase": "Running"}})
    assert lines.readline().split()[:3] == ["p", "0/1", "Running"]


def test_describe_shows_events_and_fields(kubectl: Kubectl, cluster: Client, pods: str, make_node: NodeMaker) -> None:
    node = make_node()
    cluster.create(pods, pod(nodeSelector={"contract/node": node}))
    cluster.until(f"{pods}/p", lambda found: found["spec"].get("nodeName") == node)
    told = f"{pods.removesuffix('/pods')}/events?fieldSelector=involvedObject.name=p,reason=Scheduled"
    cluster.until(told, lambda events: bool(events["items"]), "the event")
    described = kubectl("describe", "pod", "p")
    assert f"Successfully assigned {pods.split('/')[-2]}/p to {node}" in described
    assert "Node-Selectors:" in described
    assert "Allocatable:" in kubectl("describe", "node", node)
    kubectl("apply", "-f", "-", given=SERVICE)
    assert "NodePort:" in kubectl("describe", "service", "s")


def test_wait_sees_a_condition_and_a_deletion(kubectl: Kubectl, start: Start, cluster: Client, pods: str) -> None:
    kubectl("apply", "-f", "-", given=POD)
    waiting = start("wait", "pod/p", "--for=condition=Ready", "--timeout=60s")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    cluster.patched(f"{pods}/p/status", {"status": {"conditions": [ready]}})
    assert waiting.communicate(timeout=60)[0] == "pod/p condition met\n"
    assert kubectl("delete", "pod", "p").startswith('pod "p" deleted')
    assert not kubectl("get", "pods", "-o", "name")


def test_everyday_creation(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c", "--from-literal=a=b")
    kubectl("create", "secret", "generic", "s", "--from-literal=token=abc")
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "service", "nodeport", "door", "--tcp=22:2222")
    assert kubectl("get", "service", "door", "-o", "jsonpath={.spec.ports[0].targetPort}") == "2222"
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.token}") == "YWJj"
    assert kubectl("get", "configmap", "c", "-o", "jsonpath={.data.a}") == "b"
    kubectl("run", "quick", "--image=i:1", "--overrides", '{"spec": {"schedulerName": "nobody"}}')
    assert kubectl("auth", "can-i", "get", "pods").strip() == "yes"
    kubectl("delete", "pod/quick", "configmap/c", "secret/s", "serviceaccount/robot", "service/door")


def test_discovery(kubectl: Kubectl) -> None:
    assert "coordination.k8s.io/v1" in kubectl("api-versions")
    resources = kubectl("api-resources", "--no-headers")
    assert any(line.split()[:2] == ["pods", "po"] for line in resources.splitlines())
    assert json.loads(kubectl("version", "-o", "json"))["serverVersion"]["major"] == "1"
    assert kubectl("get", "--raw", "/healthz") == "ok"
