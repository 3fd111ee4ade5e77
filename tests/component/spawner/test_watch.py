"""The pods as KubeSpawner and hooks see them, waiters, and a watch of the embedded API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client

from dlspawner.spawner.kube.pod_status import PodDict
from dlspawner.spawner.kube.pod_store import REMEMBERED, EventWatch, PodWatch
from dlspawner.spawner.kube.reflector import PAGE, pack
from tests.harness.live_cluster import Cluster, running

PATIENCE = 30.0


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> PodWatch:
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: None)
    return PodWatch()


def phase(name: str) -> Callable[[PodDict | None], bool]:
    return lambda pod: bool(pod) and pod["phase"] == name


async def test_a_pod_that_satisfies_already_is_not_waited_for(watch: PodWatch) -> None:
    watch.resources = {"jobs/a": {"phase": "Running"}}

    assert await watch.until("jobs/a", phase("Running"), 0.01) == {"phase": "Running"}


async def test_an_event_of_its_pod_wakes_a_waiter(watch: PodWatch) -> None:
    waiting = asyncio.ensure_future(watch.until("jobs/a", phase("Running"), 5))
    await asyncio.sleep(0)
    watch.resources["jobs/b"] = {"phase": "Running"}
    watch.resources["jobs/a"] = {"phase": "Pending"}
    await asyncio.sleep(0)
    assert not waiting.done()
    watch.resources["jobs/a"] = {"phase": "Running"}

    assert await waiting == {"phase": "Running"}


@pytest.mark.parametrize("by", ["event", "list"])
async def test_the_end_of_its_pod_wakes_a_waiter(by: str, watch: PodWatch) -> None:
    watch.resources = {"jobs/a": {"phase": "Running"}}
    waiting = asyncio.ensure_future(watch.until("jobs/a", lambda pod: pod is None, 5))
    await asyncio.sleep(0)
    if by == "event":
        watch.resources.pop("jobs/a", None)
    else:
        watch.resources = {}

    assert await waiting is None


async def test_a_waiter_that_gave_up_is_forgotten(watch: PodWatch) -> None:
    with pytest.raises(TimeoutError):
        await watch.until("jobs/a", phase("Running"), 0.01)

    assert not watch._waiters.waiting


async def test_the_last_version_of_a_pod_that_is_gone_is_remembered(watch: PodWatch) -> None:
    watch.resources = {"jobs/a": {"phase": "Running"}, "jobs/b": {"phase": "Running"}}
    watch.resources["jobs/a"] = {"phase": "Failed"}
    watch.resources.pop("jobs/a", None)
    watch.resources = {}  # a new list, without the other

    assert watch.gone == {"jobs/a": {"phase": "Failed"}, "jobs/b": {"phase": "Running"}}


async def test_few_pods_that_are_gone_are_remembered(watch: PodWatch) -> None:
    for number in range(REMEMBERED + 5):
        watch.resources[f"jobs/{number}"] = {"phase": "Running"}
        watch.resources.pop(f"jobs/{number}")

    assert len(watch.gone) == REMEMBERED
    assert "jobs/0" not in watch.gone


async def test_hooks_see_a_dictionary_of_whole_pods(watch: PodWatch) -> None:
    pod = {
        "metadata": {"name": "a", "managedFields": [{"manager": "kubelet"}], "labels": {"é": "ü"}},
        "spec": {"x": None},
    }
    watch.resources = {"jobs/a": pod}
    seen = {"metadata": {"name": "a", "labels": {"é": "ü"}}, "spec": {"x": None}}

    assert dict(watch.pods) == {"jobs/a": seen}
    assert list(watch.pods.items()) == [("jobs/a", seen)]
    assert [*watch.pods.values(), watch.pods.get("jobs/a")] == [seen, seen]
    assert (len(watch.pods), "jobs/a" in watch.pods, watch.pods.get("jobs/b")) == (1, True, None)
    assert type(watch.pods["jobs/a"]) is dict
    with pytest.raises(KeyError):
        watch.pods["jobs/b"]


async def test_a_pod_that_is_read_is_a_copy(watch: PodWatch) -> None:
    watch.resources = {"jobs/a": {"metadata": {"name": "a"}}}
    watch.pods["jobs/a"]["metadata"]["name"] = "changed"

    assert watch.pods["jobs/a"]["metadata"]["name"] == "a"
    assert pack({"metadata": {"managedFields": []}}).read() == {"metadata": {}}


async def test_pods_are_never_in_a_log(watch: PodWatch) -> None:
    watch.resources = {"jobs/a": {"spec": {"env": "secret"}}}

    assert "secret" not in f"{watch.pods} {watch.pods!r} {watch.gone!r}"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def core(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[client.CoreV1Api]:
    async with cluster.client() as made:
        monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: made)
        yield made


def manifest(name: str, **labels: str) -> dict[str, Any]:
    spec = {"schedulerName": "nobody", "containers": [{"name": "notebook", "image": "example.org/image:1"}]}
    return {"metadata": {"name": name, "labels": {"component": "test", **labels}}, "spec": spec}


@pytest.fixture
async def live(core: client.CoreV1Api) -> AsyncIterator[PodWatch]:
    made = PodWatch(namespace="jobs", labels={"component": "test"})
    yield made
    await made.stop()


def there(pod: PodDict | None) -> bool:
    return pod is not None


async def test_many_pods_are_listed_and_then_followed(core: client.CoreV1Api, live: PodWatch) -> None:
    names = [f"p{number:03}" for number in range(2 * PAGE + 3)]
    for name in names:
        await core.create_namespaced_pod("jobs", manifest(name))
    await core.create_namespaced_pod("jobs", manifest("stranger", component="other"))
    await live.start()
    assert list(live.pods) == [f"jobs/{name}" for name in names]

    await core.create_namespaced_pod("jobs", manifest("new"))
    await live.until("jobs/new", there, PATIENCE)
    await core.patch_namespaced_pod("new", "jobs", {"metadata": {"annotations": {"k": "v"}}})
    await live.until("jobs/new", lambda pod: bool(pod and pod["metadata"].get("annotations") == {"k": "v"}), PATIENCE)
    await core.delete_namespaced_pod("new", "jobs", grace_period_seconds=0)
    assert await live.until("jobs/new", lambda pod: pod is None, PATIENCE) is None
    assert live.gone["jobs/new"]["metadata"]["annotations"] == {"k": "v"}


async def test_a_restarted_api_server_is_followed_again(
    cluster: Cluster, core: client.CoreV1Api, live: PodWatch
) -> None:
    await core.create_namespaced_pod("jobs", manifest("old"))
    await live.start()
    for name in ("a", "b"):
        await cluster.stop()
        await cluster.start()
        await core.create_namespaced_pod("jobs", manifest(name))
        await live.until(f"jobs/{name}", there, PATIENCE)

    assert list(live.pods) == ["jobs/old", "jobs/a", "jobs/b"]


async def test_pods_of_all_namespaces_are_followed_together(core: client.CoreV1Api) -> None:
    watch = PodWatch(labels={"component": "test"}, omit_namespace=True)
    await core.create_namespaced_pod("jobs", manifest("a"))
    await watch.start()
    await core.create_namespaced_pod("default", manifest("a"))
    await watch.until("default/a", there, PATIENCE)
    await watch.stop()

    assert sorted(watch.pods) == ["default/a", "jobs/a"]


async def test_events_of_pods_are_followed(core: client.CoreV1Api) -> None:
    watch = EventWatch(namespace="jobs", fields={"involvedObject.kind": "Pod"})
    await watch.start()
    for kind in ("Pod", "Node"):
        involved = {"kind": kind, "namespace": "jobs", "name": "a"}
        event = {
            "metadata": {"name": f"of-{kind.lower()}"},
            "involvedObject": involved,
            "message": "pulled",
            "type": "Normal",
        }
        await core.create_namespaced_event("jobs", {**event, "lastTimestamp": "2026-01-01T00:00:00Z"})
    async with asyncio.timeout(PATIENCE):
        while not watch.of("jobs/a"):
            await watch.changed("jobs/a")
    await watch.stop()

    assert [event["metadata"]["name"] for event in watch.events] == ["of-pod"]
