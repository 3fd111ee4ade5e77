"""Pods without a server, and when they are deleted; in a real Hub: test_restarts."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets.config import Config
from traitlets.config.loader import DeferredConfigString

from dlspawner.spawner import orphans as module
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pods import PodRequests
from dlspawner.spawner.orphans import Orphans, owned_pods, without_server
from tests.harness.spawner_builders import make_spawner

ADDRESS = "http://hub:8081/hub/api"


def pod(address: str = ADDRESS, person: str | None = "alice", **parts: Any) -> dict[str, Any]:
    env = [{"name": "JUPYTERHUB_API_URL", "value": address}]
    return {
        "metadata": {
            "uid": parts.get("uid", "u1"),
            "annotations": {"hub.jupyter.org/username": person} if person else None,
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if parts.get("ending") else {}),
        },
        "spec": {"containers": [{"name": "notebook", "env": env}]},
        "status": {"phase": parts.get("phase", "Running")},
    }


@pytest.mark.parametrize(
    ("found", "keep_ended", "orphan"),
    [
        pytest.param(pod(), True, True, id="a running pod"),
        pytest.param(pod(phase="Pending"), True, True, id="a pending pod"),
        pytest.param(pod("http://other:8081/hub/api"), True, False, id="a pod of another Hub"),
        pytest.param(pod(person=None), True, False, id="a pod without a user"),
        pytest.param(pod(ending=True), False, False, id="a pod that is ending"),
        pytest.param(pod(phase="Failed"), True, False, id="a pod that has ended and is kept"),
        pytest.param(pod(phase="Failed"), False, True, id="a pod that has ended and is not kept"),
    ],
)
def test_pods_without_a_server(found: dict[str, Any], keep_ended: bool, orphan: bool) -> None:
    assert list(without_server({"jobs/p": found}, set(), ADDRESS, keep_ended=keep_ended)) == ["jobs/p"] * orphan


async def test_servers_that_run_or_are_pending_own_their_pods() -> None:
    def server(name: str, **state: Any) -> Any:
        return SimpleNamespace(pod_key=f"jobs/{name}", **{"server": None, "pending": None, **state})

    spawners = {"": server("runs", server=object()), "b": server("stops", pending="stop"), "c": server("stopped")}
    assert await owned_pods({1: SimpleNamespace(spawners=spawners)}) == {"jobs/runs", "jobs/stops"}
    assert list(without_server({"jobs/runs": pod()}, {"jobs/runs"}, ADDRESS, keep_ended=False)) == []


def test_a_pod_is_due_after_the_whole_time_without_a_server() -> None:
    orphans, found, another = Orphans(900), {"jobs/p": pod()}, {"jobs/p": pod(uid="u2")}

    assert orphans.due(found, 100.0) == (["jobs/p"], [])
    assert orphans.due({}, 500.0) == ([], []), "it has a server in between"
    assert orphans.due(found, 1000.0) == (["jobs/p"], [])
    assert orphans.due(another, 1900.0) == (["jobs/p"], [])
    assert orphans.due(another, 2799.0) == ([], [])
    assert orphans.due(another, 2800.0) == ([], ["jobs/p"])


class Hub:
    """The attributes of a spawner that the check uses; ``pods`` are those of its watch."""

    orphan_seconds, delete_stopped_pods, enable_user_namespaces = 900, True, False

    def __init__(self, pods: dict[str, Any]) -> None:
        self.log = logging.getLogger("orphans")
        self.pod_reflector: Any = SimpleNamespace(pods=pods)
        self.user = SimpleNamespace(settings={"users": {}})
        self.pods = PodRequests(None, "jobs", "p", self.pod_reflector, self.log, 1, 1, 1)

    def configured(self, name: str) -> Any:
        return getattr(self, name)

    def get_env(self) -> dict[str, str]:
        return {module.ADDRESS: ADDRESS}

    def check(self) -> module.OrphanCheck:
        return module.OrphanCheck(self.pods, {}, ADDRESS, False, Orphans(0))


async def test_a_pod_without_a_server_is_reported_and_deleted_where_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = []

    async def delete(pods: PodRequests, pod: Any, seconds: int) -> None:
        ended.append((f"{pods.namespace}/{pods.name}", seconds))

    monkeypatch.setattr(PodRequests, "delete", delete)
    running = pod()
    running["spec"] |= {"nodeName": "node-1", "terminationGracePeriodSeconds": 77}
    await module._look(Hub({"other/p": running}).check())

    assert ended == [("other/p", 77)]
    assert "pod=other/p belongs to no server of this Hub" in caplog.text


async def test_a_failed_deletion_does_not_stop_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def delete(pods: PodRequests, pod: Any, seconds: int) -> None:
        asked.append(pods.name)
        raise StartRefused("not now", reason="cluster-error")

    monkeypatch.setattr(PodRequests, "delete", delete)
    await module._look(Hub({"jobs/p": pod(), "jobs/q": pod(uid="u2")}).check())

    assert asked == ["p", "q"]


@pytest.mark.parametrize("section", ["Spawner", "KubeSpawner", "DLSpawner"])
def test_the_configuration_counts_and_not_the_values_of_one_server(
    section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config({section: {"delete_stopped_pods": DeferredConfigString("False")}})
    spawner = make_spawner(monkeypatch, config={"config": config, "delete_stopped_pods": True, "orphan_seconds": 5})

    assert (spawner.delete_stopped_pods, spawner.orphan_seconds) == (True, 5)
    assert (spawner.configured("delete_stopped_pods"), spawner.configured("orphan_seconds")) == (False, 900)


async def test_a_pod_without_a_server_is_deleted_with_its_own_grace_and_no_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = list[module.OrphanCheck]()

    async def look(check: module.OrphanCheck) -> None:
        checks.append(check)

    monkeypatch.setattr(module, "_look_after", look)
    spawner = Hub({})
    spawner.pods = dataclasses.replace(spawner.pods, until=0.0, grace_seconds=1)
    module.look_after(spawner, "a test's")
    await module._tasks.pop("a test's")[1]

    assert checks[0].pods.grace({"spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 77}}) == 77
    assert checks[0].pods.requests.all_seconds == 1


@pytest.mark.parametrize(("option", "value"), [("orphan_seconds", 0), ("enable_user_namespaces", True)])
async def test_an_option_that_starts_no_check(option: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, option, value)
    module.look_after(Hub({}), "a test's")

    assert "a test's" not in module._tasks


async def test_a_server_that_starts_during_the_check_keeps_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SimpleNamespace(pod_key="jobs/p", server=None, pending=None)
    check = dataclasses.replace(Hub({"jobs/p": pod()}).check(), users={1: SimpleNamespace(spawners={"": server})})
    original = module.without_server

    def begins(*given: Any, **more: Any) -> Any:
        server.pending = "spawn"
        return original(*given, **more)

    monkeypatch.setattr(module, "without_server", begins)

    assert await module._found(check, check.pods.watch.pods) == {}
