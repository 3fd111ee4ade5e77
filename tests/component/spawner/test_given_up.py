"""A start that is given up: its reason is kept, and the Hub's stop ends the pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import ClientConnectionError
from kubernetes_asyncio import client
from kubernetes_asyncio.client.rest import ApiException

from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.start import StartingSpawner
from tests.component.spawner.conftest import PATIENCE, bind, deletion, until
from tests.harness.spawner_builders import make_spawner

SHORT = {"start_timeout": 4, "k8s_api_request_retry_timeout": 1, "scheduler_name": "nobody"}
Make = Callable[..., Any]


@pytest.fixture
async def make(core: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes spawners without templates and database."""
    monkeypatch.setattr(StartingSpawner, "save_state", lambda _: None)
    made = []

    def one(**config: Any) -> Any:
        spawner = make_spawner(monkeypatch, settings=None, config={**SHORT, **config})
        spawner.api = core
        made.append(spawner)
        return spawner

    yield one
    for spawner in made:
        await spawner.pod_reflector.stop()


async def refusal(spawner: Any) -> StartRefused:
    with pytest.raises(StartRefused) as refused:
        await asyncio.wait_for(spawner.start(), PATIENCE)
    return refused.value


async def ends(core: client.CoreV1Api, spawner: Any) -> None:
    """The Hub's stop asks the pod to end, and waits for it."""
    stopping = asyncio.create_task(spawner.stop())
    await deletion(core, spawner.pod_name)
    await core.delete_namespaced_pod(spawner.pod_name, "jobs", grace_period_seconds=0)
    await asyncio.wait_for(stopping, PATIENCE)


async def on_a_node(core: client.CoreV1Api, spawner: Any) -> None:
    await until(lambda: spawner.pod_reflector is not None and spawner.pod() is not None)
    await bind(core, spawner.pod_name)


@pytest.mark.parametrize(
    "config",
    [{"services_enabled": True}, {"after_pod_created_hook": lambda _spawner, _pod: None}],
    ids=["with a Service", "with a hook"],
)
async def test_the_reason_does_not_wait_for_the_end_of_the_pod(
    config: dict[str, Any], core: client.CoreV1Api, make: Make
) -> None:
    spawner = make(**config)
    bound = asyncio.create_task(on_a_node(core, spawner))
    refused = await refusal(spawner)
    await bound

    assert refused.reason == "start-timeout"
    assert spawner._ended == refused.message
    await ends(core, spawner)


async def remove(core: client.CoreV1Api, spawner: Any) -> None:
    """Deletes the pod, and waits until the watch has seen it."""
    await core.delete_namespaced_pod(spawner.pod_name, "jobs", grace_period_seconds=0)
    await until(lambda: spawner.pod() is None)


@pytest.mark.parametrize("moment", ["before its Service", "as soon as it is made"])
async def test_a_pod_that_is_removed_during_the_start_fails_it_and_keeps_the_watch(
    moment: str, core: client.CoreV1Api, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner = make(services_enabled=True, start_timeout=60)
    await spawner._start_watching_pods()
    watch, made = spawner.pod_reflector, core.create_namespaced_service

    async def slowly(*given: Any, **named: Any) -> Any:
        await remove(core, spawner)
        return await made(*given, **named)

    if moment == "before its Service":
        monkeypatch.setattr(core, "create_namespaced_service", slowly)
    else:
        monkeypatch.setattr(spawner, "_ensure_owned_objects", lambda _pod: remove(core, spawner))
    refused = await refusal(spawner)

    assert refused.reason == "job-failed"
    assert "removed from outside" in refused.message
    assert not watch.watch_task.done()


async def test_a_late_pod_of_the_first_try_is_stopped_though_a_later_try_was_refused(
    core: client.CoreV1Api, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, tries = core.create_namespaced_pod, []
    spawner = make(start_timeout=60, k8s_api_request_retry_timeout=30)

    async def refused_at_last(*given: Any, **named: Any) -> None:
        tries.append((given, named))
        if len(tries) == 1:
            raise ClientConnectionError
        raise ApiException(403, "exceeded quota")

    monkeypatch.setattr(core, "create_namespaced_pod", refused_at_last)
    await refusal(spawner)
    assert len(tries) == 2
    assert await spawner.poll() is None, "the Hub has to stop the pod of the first try"

    given, named = tries[0]
    await create(*given, **named)
    await on_a_node(core, spawner)
    await ends(core, spawner)
