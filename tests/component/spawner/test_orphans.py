"""Which pods belong to no server, and when they are ended; in a real Hub: test_spawner_restarts."""

from __future__ import annotations

import asyncio
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
    ("case", "found", "orphan"),
    [
        ("a pod of nobody", pod(), True),
        ("one that waits for a node", pod(phase="Pending"), True),
        ("another Hub's", pod("http://other:8081/hub/api"), False),
        ("one without a person", pod(person=None), False),
        ("one that is ending", pod(ending=True), False),
        ("one that has ended and is kept", pod(phase="Failed"), False),
    ],
)
def test_a_pod_without_a_server(case: str, found: dict[str, Any], orphan: bool) -> None:
    assert list(without_server({"jobs/p": found}, set(), ADDRESS, keep_ended=True)) == ["jobs/p"] * orphan, case


def test_a_pod_that_has_ended_is_kept_only_where_the_administrator_said_so() -> None:
    assert list(without_server({"jobs/p": pod(phase="Failed")}, set(), ADDRESS, keep_ended=False)) == ["jobs/p"]


async def test_the_pods_of_servers_that_are_or_may_become() -> None:
    def server(name: str, **state: Any) -> Any:
        return SimpleNamespace(pod_key=f"jobs/{name}", **{"server": None, "pending": None, **state})

    spawners = {"": server("runs", server=object()), "b": server("stops", pending="stop"), "c": server("stopped")}
    assert await owned_pods({1: SimpleNamespace(spawners=spawners)}) == {"jobs/runs", "jobs/stops"}
    assert list(without_server({"jobs/runs": pod()}, {"jobs/runs"}, ADDRESS, keep_ended=False)) == []


def test_it_is_ended_when_it_had_no_server_all_the_time() -> None:
    orphans = Orphans(900)

    assert orphans.due({"jobs/p": pod()}, 100.0) == (["jobs/p"], [])
    assert orphans.due({"jobs/p": pod()}, 999.0) == ([], [])
    assert orphans.due({"jobs/p": pod()}, 1000.0) == ([], ["jobs/p"])


def test_a_server_in_between_or_another_pod_begins_the_time_again() -> None:
    orphans = Orphans(900)
    orphans.due({"jobs/p": pod()}, 100.0)
    orphans.due({}, 500.0)

    assert orphans.due({"jobs/p": pod()}, 1000.0) == (["jobs/p"], [])
    assert orphans.due({"jobs/p": pod(uid="u2")}, 1900.0) == (["jobs/p"], [])


RUNS = {"spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 77}}


class Hub:
    """A spawner, as much of one as is looked at; ``pods`` are those that its watch follows."""

    orphan_seconds, delete_stopped_pods, asked = 900, True, 0

    def __init__(self, pods: dict[str, Any], *, enable_user_namespaces: bool = False) -> None:
        self.enable_user_namespaces, self.log = enable_user_namespaces, logging.getLogger("orphans")
        self.pod_reflector: Any = SimpleNamespace(pods=pods)
        self.user = SimpleNamespace(settings={"users": {}})
        self.pods = PodRequests(None, "jobs", "p", self.pod_reflector, self.log, 1, 1, 1)

    def configured(self, name: str) -> Any:
        return getattr(self, name)

    def get_env(self) -> dict[str, str]:
        Hub.asked += 1
        return {module.ADDRESS: ADDRESS}

    def looking(self, seconds: float = 0) -> module.OrphanCheck:
        return module.OrphanCheck(self.pods, {}, ADDRESS, False, self.enable_user_namespaces, Orphans(seconds))


@pytest.mark.parametrize("everywhere", [False, True], ids=["one namespace", "all namespaces"])
async def test_pods_of_all_namespaces_may_be_another_hubs(
    everywhere: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = []

    async def delete(pods: PodRequests, pod: Any, seconds: int) -> None:
        ended.append((f"{pods.namespace}/{pods.name}", seconds))

    monkeypatch.setattr(PodRequests, "delete", delete)
    running = pod()
    running["spec"] |= {"nodeName": "node-1", "terminationGracePeriodSeconds": 77}
    await module._look(Hub({"other/p": running}, enable_user_namespaces=everywhere).looking())

    assert ended == ([] if everywhere else [("other/p", 77)])
    assert "pod=other/p belongs to no server of this Hub" in caplog.text
    assert ("left alone" in caplog.text) is everywhere


async def test_one_that_cannot_be_ended_now_does_not_keep_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def delete(pods: PodRequests, pod: Any, seconds: int) -> None:
        asked.append(pods.name)
        raise StartRefused("not now", reason="cluster-error")

    monkeypatch.setattr(PodRequests, "delete", delete)
    await module._look(Hub({"jobs/p": pod(), "jobs/q": pod(uid="u2")}).looking())

    assert asked == ["p", "q"]


async def test_another_watch_has_another_to_look_after_its_pods_and_the_one_before_ends() -> None:
    earlier, later = Hub({}), Hub({})
    module.look_after(earlier, "a test's")
    first = module._tasks["a test's"][1]
    module.look_after(later, "a test's")
    await asyncio.wait({first}, timeout=60)
    module._tasks.pop("a test's")[1].cancel()

    assert first.cancelled()


@pytest.mark.parametrize("section", ["Spawner", "KubeSpawner", "DLSpawner"])
def test_what_one_server_has_of_its_own_is_no_rule_for_all(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubespawner.spawner.load_config", lambda **_: None)
    config = Config({section: {"orphan_seconds": 77, "delete_stopped_pods": False}})
    spawner = make_spawner(monkeypatch, config={"config": config, "delete_stopped_pods": True, "orphan_seconds": 5})

    assert (spawner.delete_stopped_pods, spawner.orphan_seconds) == (True, 5)
    assert (spawner.configured("delete_stopped_pods"), spawner.configured("orphan_seconds")) == (False, 77)


def test_what_is_not_configured_is_the_default_and_a_command_line_is_understood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config({"DLSpawner": {"delete_stopped_pods": DeferredConfigString("False")}})
    spawner = make_spawner(monkeypatch, config={"config": config, "orphan_seconds": 5})

    assert (spawner.configured("delete_stopped_pods"), spawner.configured("orphan_seconds")) == (False, 900)


async def test_a_pod_without_a_server_ends_with_its_own_grace_and_nobodys_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = list[module.OrphanCheck]()

    async def look(looking: module.OrphanCheck) -> None:
        begun.append(looking)

    monkeypatch.setattr(module, "_look_after", look)
    spawner = Hub({})
    spawner.pods = dataclasses.replace(spawner.pods, until=0.0, grace_seconds=1)
    module.look_after(spawner, "a test's")
    await module._tasks.pop("a test's")[1]

    assert begun[0].pods.grace(RUNS) == 77
    assert begun[0].pods.requests.all_seconds == 1


async def test_who_looks_for_none_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "orphan_seconds", 0)
    module.look_after(Hub({}), "a test's")

    assert "a test's" not in module._tasks


async def test_a_server_that_begins_while_pods_are_looked_at_has_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SimpleNamespace(pod_key="jobs/p", server=None, pending=None)
    looking = dataclasses.replace(Hub({"jobs/p": pod()}).looking(), users={1: SimpleNamespace(spawners={"": server})})
    judge = module.without_server

    def begins(*given: Any, **more: Any) -> Any:
        server.pending = "spawn"
        return judge(*given, **more)

    monkeypatch.setattr(module, "without_server", begins)

    assert await module._found(looking, looking.pods.watch.pods) == {}
