"""A stop while the watch does not show the pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes_asyncio import client

from tests.component.spawner.conftest import PATIENCE, bind, deletion
from tests.harness.spawner_builders import make_spawner


@pytest.fixture
async def spawner(core: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A spawner whose watch ended after an empty list."""
    made = make_spawner(monkeypatch)
    made.api = core
    await made._start_watching_pods()
    await made.pod_reflector.stop()
    yield made
    await made.pod_reflector.stop()


async def make_pod(core: client.CoreV1Api, spawner: Any) -> None:
    """Creates the server's pod, bound to a node."""
    containers = [{"name": "notebook", "image": "example.org/image:1"}]
    spec = {"schedulerName": "nobody", "terminationGracePeriodSeconds": 77, "containers": containers}
    metadata = {"name": spawner.pod_name, "labels": {"component": spawner.component_label}}
    await core.create_namespaced_pod("jobs", {"metadata": metadata, "spec": spec})
    await bind(core, spawner.pod_name)


async def test_a_pod_that_the_watch_does_not_show_is_deleted_with_its_grace_and_waited_for(
    core: client.CoreV1Api, spawner: Any
) -> None:
    await make_pod(core, spawner)
    stopping = asyncio.create_task(spawner.stop())

    assert await deletion(core, spawner.pod_name) == 77
    await asyncio.wait({stopping}, timeout=0.3)
    assert not stopping.done(), "the pod is still there"
    await core.delete_namespaced_pod(spawner.pod_name, "jobs", grace_period_seconds=0)
    await spawner.pod_reflector.start()
    await asyncio.wait_for(stopping, PATIENCE)


@pytest.mark.parametrize("later", [False, True], ids=["gone", "replaced"])
async def test_a_pod_that_ends_unseen_by_the_watch_is_not_waited_for(
    later: bool, core: client.CoreV1Api, spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlspawner.spawner.kube.pods._STUCK_SECONDS", 0.05)
    await make_pod(core, spawner)
    stopping = asyncio.create_task(spawner.stop())
    await deletion(core, spawner.pod_name)
    await core.delete_namespaced_pod(spawner.pod_name, "jobs", grace_period_seconds=0)
    if later:
        await make_pod(core, spawner)

    await asyncio.wait_for(stopping, PATIENCE)


async def test_without_a_pod_nothing_is_deleted(core: client.CoreV1Api, spawner: Any) -> None:
    async def delete(*_: Any, **__: Any) -> None:
        raise AssertionError("there is nothing")

    core.delete_namespaced_pod = delete
    spawner._outcome_unknown = True
    await asyncio.wait_for(spawner.stop(), PATIENCE)

    assert not spawner._outcome_unknown


async def test_without_the_right_to_list_pods_the_pod_is_deleted_and_not_waited_for(
    core: client.CoreV1Api, spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_pod(core, spawner)
    monkeypatch.setattr(type(spawner), "_has_listed_pods", lambda _spawner: False)
    await asyncio.wait_for(spawner.stop(), PATIENCE)

    assert await deletion(core, spawner.pod_name) == 77
