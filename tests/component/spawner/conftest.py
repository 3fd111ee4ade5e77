"""A watch without a cluster, and a client of the embedded API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kubernetes_asyncio import client

from dlspawner.spawner.kube.pod_store import PodWatch
from tests.harness.live_cluster import running


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> PodWatch:
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: None)
    return PodWatch()


@pytest.fixture
async def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[client.CoreV1Api]:
    async with running(tmp_path) as cluster, cluster.client() as made:
        monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: made)
        yield made
