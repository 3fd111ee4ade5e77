"""A real embedded API and real nodes in the test's own event loop; pods are real processes."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dlspawner.clients.kubernetes import EVENTS, PODS, KubernetesClient
from dlspawner.devcluster import api
from dlspawner.devcluster.node import Agent, Backoff, NodeDescription

NODES = (
    NodeDescription(
        "gpu-1", cpu="8", memory="16Gi", gpus={"nvidia.com/gpu": 4}, labels={"nvidia.com/gpu.product": "T"}
    ),
    NodeDescription("cpu-1", cpu="8", memory="16Gi"),
)
SECONDS = 60.0  # a busy machine may need them; an idle one needs a fraction of one
Json = dict[str, Any]


@dataclass
class EmbeddedCluster:
    """A cluster and its client."""

    cluster: KubernetesClient
    agent: Agent
    state: Path
    kubeconfig: Path

    async def pod(self, name: str, command: str | list[str], **fields: Any) -> Json:
        """A pod of one container ``main``: fields with ``spec_`` in front are the pod spec's, the others its own."""
        args = ["sh", "-c", command] if isinstance(command, str) else command
        spec = {key.removeprefix("spec_"): value for key, value in fields.items() if key.startswith("spec_")}
        container = {key: value for key, value in fields.items() if not key.startswith("spec_")}
        ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        container["env"] = [ip, *container.get("env", [])]
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "jobs", "labels": {"app": name}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "machine", "command": args, **container}],
                **spec,
            },
        }
        return await self.cluster.create(PODS, manifest)

    async def until(self, name: str, wanted: Callable[[Json], Any]) -> Json:
        """The pod as soon as it is as wanted."""
        last: Json = {}
        try:
            async with asyncio.timeout(SECONDS):
                async for change in self.cluster.watch(PODS, "jobs", fields=f"metadata.name={name}"):
                    last = change.object or last
                    if change.type in {"ADDED", "MODIFIED"} and wanted(change.object):
                        return change.object
        except TimeoutError:
            pytest.fail(f"pod {name} never was as wanted; last: {last.get('status')}")
        raise AssertionError("a watch never ends")

    async def phase(self, name: str, phase: str) -> Json:
        return await self.until(name, lambda pod: pod["status"].get("phase") == phase)

    async def ready(self, name: str) -> Json:
        return await self.until(name, is_ready)

    async def gone(self, name: str) -> None:
        async with asyncio.timeout(SECONDS):
            async for change in self.cluster.watch(PODS, "jobs", fields=f"metadata.name={name}"):
                if change.type == "DELETED":
                    return
                if change.type == "SYNCED" and not await self.cluster.list(
                    PODS, "jobs", fields=f"metadata.name={name}"
                ):
                    return

    async def output(self, name: str, command: str | list[str], **fields: Any) -> str:
        """Run a pod to its end; what it printed."""
        await self.pod(name, command, **fields)
        pod = await self.until(name, lambda pod: pod["status"].get("phase") in {"Succeeded", "Failed"})
        text = self.log(name)
        assert pod["status"]["phase"] == "Succeeded", text or pod["status"]
        return text

    def log(self, name: str, container: str = "main") -> str:
        files = sorted((self.state / "node" / "logs").glob(f"jobs_{name}_*/{container}/*.log"))
        lines = files[-1].read_text(encoding="utf-8").splitlines() if files else []
        return "\n".join(line.split(" ", 3)[3] for line in lines)

    async def said(self, name: str) -> str:
        """What a pod that goes on has printed, once there is something."""
        async with asyncio.timeout(SECONDS):
            while not (text := self.log(name)):  # noqa: ASYNC110  (files have no events)
                await asyncio.sleep(0.01)
        return text

    async def event(self, name: str, reason: str) -> Json:
        async with asyncio.timeout(SECONDS):
            async for change in self.cluster.watch(EVENTS, "jobs", fields=f"involvedObject.name={name}"):
                if change.object.get("reason") == reason:
                    return change.object
        raise AssertionError("a watch never ends")

    async def kubectl(self, *args: str, program: str = "kubectl", stdin: bytes = b"") -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            program,
            *args,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
        )
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await process.communicate(stdin)
        except TimeoutError:
            process.kill()
            await process.wait()
            pytest.fail(f"kubectl {args} did not end")
        return process.returncode or 0, output.decode()


def is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def main_status(pod: Json) -> Json:
    return next(iter(pod["status"].get("containerStatuses") or [{}]))


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    state = tmp_path / "state"
    server = await api.start(state)
    async with await KubernetesClient.connect(server.kubeconfig) as cluster:
        agent = Agent(cluster, state, NODES, backoff=Backoff(first=0.2, most=1.0), stop_seconds=0.1)
        await agent.start()
        embedded = EmbeddedCluster(cluster, agent, state, server.kubeconfig)
        try:
            yield embedded
        finally:
            await embedded.agent.stop()
            await server.stop()


def _kubectls() -> list[str]:
    found = [os.environ.get("DLSPAWNER_KUBECTL"), shutil.which("kubectl")]
    return list(dict.fromkeys(path for path in found if path))


@pytest.fixture(params=_kubectls() or [None])
def kubectl(request: pytest.FixtureRequest) -> str:
    """Every kubectl there is: the one on PATH and ``$DLSPAWNER_KUBECTL``."""
    if request.param is None:
        pytest.skip("no kubectl")
    return str(request.param)
