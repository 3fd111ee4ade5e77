"""The embedded server after SIGKILL, and what its state directory holds."""

import os
import stat

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
