"""Servers of a Hub that may not list pods, or not yet: they have not ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes_asyncio import client

from dlspawner.spawner import lifecycle, orphans, start
from dlspawner.spawner.kube.errors import StartRefused
from tests.component.spawner.conftest import PATIENCE, until
from tests.harness.http_servers import answering, never
from tests.harness.scripted_api import ScriptedApi, listed, pod
from tests.harness.spawner_builders import make_spawner

RUNS = pod("jupyter-alice", 1, metadata={"annotations": {}}, spec={"containers": []}, status={"phase": "Running"})


@pytest.fixture(params=[401, 403, 404])
def api(request: pytest.FixtureRequest, api: ScriptedApi) -> ScriptedApi:
    api.lists = deque([request.param])
    return api


@pytest.fixture(params=[False, True], ids=["one namespace", "user namespaces"])
async def spawner(
    request: pytest.FixtureRequest, api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """Of a restarted Hub, with a short back-off."""
    monkeypatch.setattr(start, "delays", lambda **_: iter([0.01] * 10_000))
    where = {"enable_user_namespaces": request.param, "user_namespace_template": "jobs"}
    made = make_spawner(monkeypatch, config=where)
    yield made
    for reflector in made.reflectors.values():
        await reflector.stop()


async def test_servers_are_alive_and_no_pod_is_taken_for_an_orphan(
    spawner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = list[Any]()
    monkeypatch.setattr(orphans, "look_after", lambda *given: checks.append(given))

    assert [await spawner.poll() for _ in range(3)] == [None] * 3
    assert not spawner._has_listed_pods()
    assert checks == []


async def test_every_start_is_refused(spawner: Any) -> None:
    for _ in range(2):
        with pytest.raises(StartRefused, match="may not see its pods"):
            await spawner._start_watching_pods()


async def test_a_resumed_start_waits_for_a_list(spawner: Any, api: ScriptedApi) -> None:
    with pytest.raises(StartRefused):
        await spawner._start_watching_pods()
    waits = asyncio.ensure_future(spawner._wait_for_pods())
    seen = api.listings
    await until(lambda: api.listings >= seen + 3)
    assert not waits.done()
    api.lists = deque([listed(10, RUNS)])
    await asyncio.wait_for(waits, PATIENCE)

    assert spawner.pod()["metadata"]["uid"] == RUNS["metadata"]["uid"]
    assert spawner._has_listed_pods()


async def test_a_start_stops_waiting_for_the_first_list_before_its_own_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(never) as url, client.ApiClient(client.Configuration(host=url)) as session:
        monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: client.CoreV1Api(session))
        monkeypatch.setattr(lifecycle.LifecycleSpawner, "reflectors", {})
        spawner = make_spawner(
            monkeypatch, settings=None, config={"start_timeout": 2, "k8s_api_request_retry_timeout": 600}
        )
        with pytest.raises(StartRefused, match="cannot start jobs at the moment"):
            await asyncio.wait_for(spawner.start(), PATIENCE)
        await spawner.pod_reflector.stop()
