"""Pods that run, on the node of the embedded cluster, and jobs that print what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlspawner.clients.kubernetes import PODS, KubernetesClient
from dlspawner.core.job import JobState
from dlspawner.core.resources import strip_manifest
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.db import logs
from dlspawner.manager.db.logs import StoredLog
from dlspawner.manager.db.repository import JobRepository
from tests.component.manager.manager_harness import (
    NAMESPACE,
    Leader,
    ManagerHarness,
    make_namespace,
    pod_of,
    prepare,
    until,
    wants,
)
from tests.harness.spawner_hub import ROOT

# Says goodbye when it is stopped, not before its log can have been opened.
WAITS = "trap 'sleep 1; echo goodbye; exit 0' TERM; while :; do sleep 0.05; done"


class PrintingHarness(ManagerHarness):
    """Jobs are shell scripts; a log is kept when its container has ended or is being stopped."""

    async def start(
        self, leader: Leader, request: AdmissionRequest, script: str, *, restart: str = "Never", **more: Any
    ) -> dict[str, Any]:
        """The pod of a job that was let in."""
        assert (await leader.ask(request)).decision == "admit"
        pod = pod_of(request)
        container = {**pod["spec"]["containers"][0], "command": ["sh", "-c", script], **more}
        pod["spec"].update(containers=[container], restartPolicy=restart, terminationGracePeriodSeconds=20)
        return await self.cluster.create(PODS, pod, NAMESPACE)

    async def gone(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        await until(lambda: self._gone(name), f"{name} is gone")

    async def _gone(self, name: str) -> bool:
        return name not in await self.pods()


def job(user: str = "alice", **more: Any) -> AdmissionRequest:
    """One without a GPU: the node has none that this template's type is."""
    request = wants(user, 0, **more)
    container = {
        **request.pods[0]["spec"]["containers"][0],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
    }
    return replace(request, pods=(strip_manifest({"spec": {"containers": [container]}}),))


@contextlib.asynccontextmanager
async def printing(folder: Path, db_url: str) -> AsyncIterator[PrintingHarness]:
    """All of it; its Kubernetes is `$KUBECONFIG` meanwhile."""
    state = folder / "cluster"
    command = [sys.executable, "-m", "dlspawner.devcluster", f"--state={state}"]
    with (folder / "cluster.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=log, stderr=log)
    try:
        await until(lambda: b"Cluster ready" in (folder / "cluster.log").read_bytes(), "the cluster", 60)
        prepare(folder)
        async with await KubernetesClient.connect(state / "kubeconfig") as cluster:
            await make_namespace(cluster)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("KUBECONFIG", str(state / "kubeconfig"))
                yield PrintingHarness(folder, db_url, cluster)
    finally:
        process.terminate()
        await process.wait()


async def kept(repository: JobRepository, request: AdmissionRequest) -> list[StoredLog]:
    return await repository.read(lambda connection: logs.of_job(connection, request.job))


async def text(repository: JobRepository, request: AdmissionRequest, number: int = -1) -> str:
    """What is kept of a job's newest log, or of another one of its logs."""
    found = await kept(repository, request)
    if not found:
        return ""
    return (await repository.read(lambda connection: logs.text(connection, found[number].id))).decode(errors="replace")


async def printed(repository: JobRepository, request: AdmissionRequest, words: str) -> None:
    """Until these words are kept."""

    async def there() -> bool:
        return words in await text(repository, request)

    await until(there, f"{words!r} is kept")


async def until_ended(leader: Leader, request: AdmissionRequest) -> None:
    async def ended() -> bool:
        found = await leader.repository.find(request.job)
        return found is not None and found.job.state is JobState.ENDED

    await until(ended, "the job has ended")


async def shown(leader: Leader, request: AdmissionRequest, words: str) -> None:
    """Until a running job has printed these words."""

    async def there() -> bool:
        assert leader.log_reader is not None
        runs = await leader.log_reader.runs(request.job)
        return bool(runs) and words.encode() in (await leader.log_reader.text(runs[-1])).body

    await until(there, f"{words!r} is printed")
