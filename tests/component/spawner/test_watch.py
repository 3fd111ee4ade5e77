"""The pods as KubeSpawner and hooks see them, and waiters for changes of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner.kube.pod_store import REMEMBERED, PodWatch
from dlspawner.spawner.kube.reflector import pack


def phase(name: str) -> Callable[[PodDict | None], bool]:
    return lambda pod: bool(pod) and pod["phase"] == name


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
