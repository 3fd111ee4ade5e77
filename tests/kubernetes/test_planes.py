"""A control plane goes from test to test as if it were new, and may lose its power."""

from __future__ import annotations

import pytest

from tests.contract.client import Client, pod
from tests.harness.spawner_hub import CLAIM
from tests.kubernetes import planes

pytestmark = pytest.mark.kubernetes
JOBS = f"/api/v1/namespaces/{planes.NAMESPACE}"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 20001,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
MAIN = {"name": "main", "image": "example.org/image:1", "securityContext": RESTRICTED}
STAYS = {"name": "stays", "finalizers": ["test.example.com/stays"]}
MADE = {
    "/api/v1/nodes": {"metadata": {"name": "left"}},
    "/api/v1/namespaces": {"metadata": {"name": "left"}},
    CLASSES: {"metadata": {"name": "left"}, "value": 1},
    f"{JOBS}/pods": pod("left", nodeName="left", containers=[MAIN]),
    f"{JOBS}/persistentvolumeclaims": {"metadata": {"name": "left"}, "spec": CLAIM},
    f"{JOBS}/secrets": {"metadata": {"name": "left"}},
}


def test_what_a_test_left_is_not_there_for_the_next_one_which_a_power_cut_does_not_change() -> None:
    plane = planes.take()
    client = Client(plane.kubeconfig)
    for path, one in MADE.items():
        client.create(path, one)
    plane.kill()
    with pytest.raises(ConnectionRefusedError):
        client.get("/api/v1/nodes")
    plane.start()
    for path in MADE:
        assert client.get(f"{path}/left")
    planes.give_back(plane)

    again = planes.take()
    assert again is plane
    for path in MADE:
        assert client.request("GET", f"{path}/left").code == 404
    planes.give_back(again)


def test_what_cannot_be_emptied_is_given_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "PATIENCE", 0.5)
    plane = planes.take()
    client = Client(plane.kubeconfig)
    client.create(f"{JOBS}/secrets", {"metadata": STAYS})
    planes.give_back(plane)
    with pytest.raises(ConnectionRefusedError):
        client.get("/api/v1/nodes")
    other = planes.take()
    assert other is not plane
    planes.give_back(other)
