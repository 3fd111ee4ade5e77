"""A kubelet for pods that run nowhere, and something at their address that answers: `python -m tests.bench.kwok`.

As kwok does, it binds every pod of the scheduler "kwok" to its node, says after a moment that the pod runs, and removes
pods that are deleted. All of them have this machine's loopback address, where one server answers for all. So what is
measured is the Hub, its spawner and the API server. It follows the cluster of $KUBECONFIG until it is terminated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientTimeout
from kubernetes_asyncio import client, config

from tests.bench.figures import ROOT

SCHEDULER = "kwok"
START_SECONDS = 0.1
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def running(pod: dict[str, Any], address: str = "127.0.0.1") -> dict[str, Any]:
    """The status of a pod that runs, as a kubelet writes it."""
    at = now()
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    conditions = [{"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": at} for kind in kinds]
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"docker.io/library/{container['name']}@sha256:{'5e' * 32}",
            "containerID": f"containerd://{'c0' * 32}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": at}},
            "lastState": {},
        }
        for container in pod["spec"]["containers"]
    ]
    addresses = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": address, "startTime": at}
    return {
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": containers,
    } | addresses


def preferred_node(pod: dict[str, Any]) -> str | None:
    """The node that the Manager has reserved for the pod."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    fields = [one for term in terms for one in term["preference"].get("matchFields") or ()]
    return next((one["values"][0] for one in fields if one["key"] == "metadata.name"), None)


class Kubelet:
    """One task per pod, on the node that it prefers, else on ``node``; a pod that is deleted is removed at once."""

    def __init__(self, core: Any, node: str, address: str) -> None:
        self.core, self.node, self.address = core, node, address
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def follow(self) -> None:
        """A watch that the API server ends, for one who is slow or for its age, begins anew with all that is there."""
        while True:
            with contextlib.suppress(ClientError):
                await self.watch()

    async def watch(self) -> None:
        answer = await self.core.list_pod_for_all_namespaces(
            watch=True,
            field_selector=f"spec.schedulerName={SCHEDULER}",
            _preload_content=False,
            _request_timeout=ClientTimeout(total=None),
        )
        async for line in answer.content:
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            pod, uid = event["object"], event["object"]["metadata"]["uid"]
            goes = pod["metadata"].get("deletionTimestamp")
            if event["type"] == "ADDED" and not goes and uid not in self.tasks:
                self.tasks[uid] = asyncio.create_task(self.run(pod))
            elif event["type"] in ("ADDED", "MODIFIED") and goes and f"{uid} goes" not in self.tasks:
                self.tasks[f"{uid} goes"] = asyncio.create_task(self.remove(pod))

    async def run(self, pod: dict[str, Any]) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        target = {"target": {"kind": "Node", "name": preferred_node(pod) or self.node}, "metadata": {"name": name}}
        await self.core.create_namespaced_pod_binding(name, namespace, target, _preload_content=False)
        await asyncio.sleep(START_SECONDS)
        await self.core.patch_namespaced_pod_status(name, namespace, {"status": running(pod, self.address)})

    async def remove(self, pod: dict[str, Any]) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        await self.core.delete_namespaced_pod(name, namespace, grace_period_seconds=0, _preload_content=False)


async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65536)
    writer.write(ANSWER)
    await writer.drain()
    writer.close()


async def main(node: str, port: int, address: str = "127.0.0.1") -> None:
    await config.load_kube_config(os.environ["KUBECONFIG"])
    async with client.ApiClient() as session, await asyncio.start_server(respond, address, port, backlog=512):
        print("follows", flush=True)
        await Kubelet(client.CoreV1Api(session), node, address).follow()


@contextlib.contextmanager
def kubelet(kubeconfig: Path, node: str, port: int, address: str = "127.0.0.1") -> Iterator[None]:
    """This module as a process: pods run, on this node if they prefer none, and answer at this address."""
    command = [sys.executable, "-m", "tests.bench.kwok", node, str(port), address]
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "follows"
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
