"""The pods as KubeSpawner and hooks see them, and waiters for changes of a pod."""

from __future__ import annotations

import pytest

from dlspawner.spawner.kube.pod_store import REMEMBERED, PodWatch
from dlspawner.spawner.kube.reflector import pack


async def test_a_waiter_that_gave_up_is_forgotten(watch: PodWatch) -> None:
    with pytest.raises(TimeoutError):
        await watch.until("jobs/a", bool, 0.01)

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
