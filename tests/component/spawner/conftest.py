"""A watch without a cluster, API servers that keep objects and that are scripted, and a client of the embedded one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client, config

from dlspawner.devcluster import api as embedded
from dlspawner.spawner import lifecycle
from dlspawner.spawner.kube import reflector
from dlspawner.spawner.kube.pod_store import PodWatch
from tests.harness.scripted_api import ScriptedApi, listed
from tests.harness.spawner_builders import Answered, Client

PATIENCE = 90.0


class Kept(Client):
    """The objects of an API server: names are unique, deletions insist on a uid; ``asked`` in order."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, dict[str, Any]] = {}  # by kind/name
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        verb, _, kind = name.partition("_namespaced_")

        async def answer(*given: Any, _preload_content: bool = True, _request_timeout: Any = None, **more: Any) -> Any:
            self.asked.append(f"{verb} {kind}")
            return getattr(self, f"on_{verb}")(kind, *given, **more)

        return answer

    def on_create(self, kind: str, _namespace: str, manifest: dict[str, Any]) -> Answered:
        key = f"{kind}/{manifest['metadata']['name']}"
        if key in self.objects:
            return Answered({"message": "it exists"}, 409)
        self.objects[key] = {**manifest, "metadata": {**manifest["metadata"], "uid": f"uid-{len(self.asked)}"}}
        return Answered(self.objects[key], 201)

    def on_read(self, kind: str, name: str, _namespace: str) -> Answered:
        found = self.objects.get(f"{kind}/{name}")
        return Answered(found) if found else Answered({"message": "not found"}, 404)

    def on_patch(self, kind: str, name: str, _namespace: str, change: dict[str, Any]) -> Answered:
        self.objects[f"{kind}/{name}"] = change
        return Answered(change)

    def on_delete(self, kind: str, name: str, _namespace: str, body: dict[str, Any]) -> Answered:
        gone = self.objects.pop(f"{kind}/{name}")
        assert body["preconditions"]["uid"] == gone["metadata"]["uid"]
        return Answered(gone)


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> PodWatch:
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: None)
    return PodWatch()


@pytest.fixture
async def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[client.CoreV1Api]:
    server = await embedded.start(tmp_path)
    configuration = client.Configuration()
    await config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as session:
        made = client.CoreV1Api(session)
        monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: made)
        monkeypatch.setattr(lifecycle.LifecycleSpawner, "reflectors", {})
        yield made
    await server.stop()


async def bind(core: client.CoreV1Api, name: str) -> None:
    """Binds a pod to a node, so that only the node can remove it."""
    target: Any = {"target": {"kind": "Node", "name": "node-1"}, "metadata": {"name": name}}
    await core.create_namespaced_pod_binding(name, "jobs", target, _preload_content=False)


async def deletion(core: client.CoreV1Api, name: str) -> int:
    """Waits for the deletion of a pod; its grace period."""
    async with asyncio.timeout(PATIENCE):
        while True:
            pod = await core.read_namespaced_pod(name, "jobs")
            if pod.metadata.deletion_timestamp:
                return int(pod.metadata.deletion_grace_period_seconds)
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    """Polls what has no event to wait for."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedApi]:
    """The API server of reflectors that are made from now on, without pods; they ask again soon."""
    async with (
        ScriptedApi(deque([listed(10)])).serving() as served,
        client.ApiClient(client.Configuration(host=served.url)) as session,
    ):
        monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: client.CoreV1Api(session))
        monkeypatch.setattr(lifecycle.LifecycleSpawner, "reflectors", {})
        monkeypatch.setattr(reflector, "delays", lambda **_: iter([0.01] * 10_000))
        yield served
