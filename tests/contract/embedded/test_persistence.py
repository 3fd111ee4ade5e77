"""The embedded server after SIGKILL, and what its state directory holds."""

import http.client
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.client import Client, node, pod
from tests.contract.conftest import Server

MAPS = "/api/v1/namespaces/jobs/configmaps"
PODS = "/api/v1/namespaces/jobs/pods"


def _restarted(server: Server) -> Client:
    server.kill()
    return server.start()


def test_objects_and_versions_survive_sigkill(server: Server) -> None:
    client = server.start()
    kept = client.create(MAPS, {"metadata": {"name": "kept"}, "data": {"u": "ü ß"}})
    last = client.create(MAPS, {"metadata": {"name": "gone"}})["metadata"]["resourceVersion"]
    client.delete(f"{MAPS}/gone")
    client = _restarted(server)
    assert client.get(f"{MAPS}/kept") == kept
    assert client.request("GET", f"{MAPS}/gone").code == 404
    newer = client.create(MAPS, {"metadata": {"name": "gone"}})["metadata"]["resourceVersion"]
    assert int(newer) > int(last) + 1


@pytest.mark.slow
@pytest.mark.faults
def test_acknowledged_writes_survive_sigkill(server: Server) -> None:
    client = server.start()
    acknowledged: list[str] = []
    enough = threading.Event()

    def write(worker: int) -> None:
        for number in range(1_000):
            name = f"w-{worker}-{number}"
            try:
                answer = client.request("POST", MAPS, {"metadata": {"name": name}, "data": {"k": "x" * 5_000}})
            except (OSError, http.client.HTTPException):
                return
            assert answer.code == 201
            acknowledged.append(name)
            if len(acknowledged) > 60:
                enough.set()

    with ThreadPoolExecutor(4) as threads:
        written = threads.map(write, range(4))
        assert enough.wait(60)
        server.kill()
        list(written)
    found = server.start().get(MAPS)["items"]
    names = {item["metadata"]["name"] for item in found}
    versions = [int(item["metadata"]["resourceVersion"]) for item in found]
    assert set(acknowledged) <= names
    assert len(names) <= len(acknowledged) + 4
    assert len(set(versions)) == len(versions)


@pytest.mark.slow
@pytest.mark.faults
def test_watch_resumes_across_sigkill(server: Server) -> None:
    client = server.start()
    version = client.create(MAPS, {"metadata": {"name": "a", "labels": {"l": "1"}}})["metadata"]["resourceVersion"]
    client.patched(f"{MAPS}/a", {"metadata": {"labels": {"l": "2"}}})
    client.delete(f"{MAPS}/a")
    client = _restarted(server)
    with client.watch(MAPS, resourceVersion=version) as watch:
        assert [watch.next()[0] for _ in range(2)] == ["MODIFIED", "DELETED"]
    with client.watch(MAPS, resourceVersion=version, labelSelector="l=2") as watch:
        assert [watch.next()[0] for _ in range(2)] == ["ADDED", "DELETED"]


@pytest.mark.slow
@pytest.mark.faults
def test_node_ports_and_credentials_stay(server: Server) -> None:
    client = server.start()
    spec = {"type": "NodePort", "ports": [{"port": 1}]}
    services = "/api/v1/namespaces/jobs/services"
    port = client.create(services, {"metadata": {"name": "s"}, "spec": spec})["spec"]["ports"][0]["nodePort"]
    before = server.kubeconfig.read_text()
    client = _restarted(server)
    assert server.kubeconfig.read_text() == before
    taken = {"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}
    client.expect(422, "POST", services, {"metadata": {"name": "t"}, "spec": taken})


@pytest.mark.slow
@pytest.mark.faults
def test_dependents_of_a_deleted_owner_go_after_a_restart(server: Server) -> None:
    client = server.start()
    owner = client.create(MAPS, {"metadata": {"name": "owner"}})["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    held = {"name": "child", "ownerReferences": [reference], "finalizers": ["example.org/hold"]}
    client.create(MAPS, {"metadata": held})
    client.delete(f"{MAPS}/owner")
    client = _restarted(server)
    client.until(f"{MAPS}/child", lambda found: "deletionTimestamp" in found["metadata"])


def test_scheduling_counts_what_is_there_after_a_restart(server: Server) -> None:
    client = server.start()
    client.create("/api/v1/nodes", node("n", {}, **{"example.org/gpu": "1"}))
    limits = {"limits": {"example.org/gpu": "1"}}
    one = pod("one", nodeSelector={}, containers=[{"name": "c", "image": "i:1", "resources": limits}])
    client.create(PODS, one)
    client.until(f"{PODS}/one", lambda found: found["spec"].get("nodeName") == "n")
    client = _restarted(server)
    client.create(PODS, one | {"metadata": {"name": "two"}})
    waiting = client.until(f"{PODS}/two", lambda found: bool(found["status"].get("conditions")))
    message = waiting["status"]["conditions"][0]["message"]
    assert message == "0/1 nodes are available: 1 Insufficient example.org/gpu."


def test_secrets_of_the_state_directory_are_private(server: Server) -> None:
    server.start()
    for name in ("kubeconfig", "token", "server.key"):
        assert stat.S_IMODE((server.state / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(server.state.stat().st_mode) == 0o700
    assert not [name for name in os.listdir(server.state) if name.startswith(".")]  # noqa: PTH208 - names are enough


def test_kubeconfigs_namespace_exists(server: Server) -> None:
    client = server.start()
    names = {item["metadata"]["name"] for item in client.get("/api/v1/namespaces")["items"]}
    assert {"default", "kube-system", "kube-node-lease", "jobs"} <= names


def test_stopped_server_ends_its_watches(server: Server) -> None:
    client = server.start()
    version = client.get(MAPS)["metadata"]["resourceVersion"]
    with client.watch(MAPS, resourceVersion=version) as watch:
        assert server.stop() == 0
        assert watch.rest() == []
