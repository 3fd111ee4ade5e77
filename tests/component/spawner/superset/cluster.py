"""The cluster that both spawners are recorded on: the embedded API server, and a kubelet.

Every request of the spawners is written down; the kubelet binds pods, tells of them in events and lets them run when it
is told to, as the node's own would.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import randbelow
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, unquote, urlsplit

import aiohttp
import yaml

from dlspawner.devcluster import api

NODE = "node-1"
POD_IP = f"127.{64 + randbelow(186)}.{1 + randbelow(250)}.{1 + randbelow(250)}"  # nobody else's, and ours
PORTS = (8888, 9999)  # of the table's rows
WHEN = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:0")  # older events are cleared away
TOLD = ("Scheduled", "Pulling", "Started")  # the kubelet's events about every pod, a second apart
WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class Request:
    """One request as it was on the wire."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def writes(self) -> bool:
        return self.method in WRITES

    @property
    def namespace(self) -> str:
        words = self.path.split("/")  # /api/v1/namespaces/NAME/pods
        if len(words) > 4:
            return words[4]
        return str(json.loads(self.body)["metadata"]["name"]) if self.body else ""

    @property
    def resource(self) -> str:
        words = self.path.split("/")
        return words[5] if len(words) > 5 else words[3]


@dataclass
class Cluster:
    """What the tests see of it."""

    kubeconfig: Path
    authority: str  # reading the machine's own authorities takes KubeSpawner 60 ms for every watch
    session: aiohttp.ClientSession
    requests: list[Request] = field(default_factory=list)
    may_run: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    async def ask(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        """A request of our own, which is not recorded."""
        data = None if body is None else json.dumps(body)
        async with self.session.request(method, path, data=data, headers={"Content-Type": kind}) as answer:
            said = await answer.json()
            assert answer.status < 400 or answer.status in (404, 409), said
            return said

    def of(self, namespace: str) -> list[Request]:
        return [request for request in self.requests if request.namespace == namespace]


@asynccontextmanager
async def running(state: Path) -> AsyncIterator[Cluster]:
    server = await api.start(state)
    try:
        config = yaml.safe_load(server.kubeconfig.read_text())
        trust = ssl.create_default_context(cadata=_authority(config))
        session = aiohttp.ClientSession(
            server.url,
            headers={"Authorization": f"Bearer {config['users'][0]['user']['token']}"},
            connector=aiohttp.TCPConnector(ssl=trust, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        async with session:
            cluster = Cluster(server.kubeconfig, _file(state / "ca", config), session)
            # Cordoned: the scheduler leaves pods to the kubelet.
            await cluster.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}, "spec": {"unschedulable": True}})
            with _recorded(cluster):
                kubelet = asyncio.create_task(_kubelet(cluster), name="kubelet")
                servers = [await asyncio.start_server(_hang_up, POD_IP, port) for port in PORTS]
                try:
                    yield cluster
                finally:
                    kubelet.cancel()
                    await asyncio.wait({kubelet})
                    for listening in servers:
                        listening.close()
    finally:
        await server.stop()


def _file(path: Path, config: dict[str, Any]) -> str:
    path.write_text(_authority(config))
    return str(path)


def _authority(config: dict[str, Any]) -> str:
    cluster = config["clusters"][0]["cluster"]
    return base64.b64decode(cluster["certificate-authority-data"]).decode()


@contextmanager
def _recorded(cluster: Cluster) -> Iterator[None]:
    """Writes down every request of the spawners' client as it sends it."""
    original = aiohttp.ClientSession.request

    def request(session: aiohttp.ClientSession, method: str, url: str, **more: Any) -> Any:
        if session is not cluster.session:
            place, body = urlsplit(url), (more.get("data") or "").encode()
            query = tuple(sorted(parse_qsl(place.query)))
            cluster.requests.append(Request(method, unquote(place.path), query, body))
        return original(session, method, url, **more)

    with patch.object(aiohttp.ClientSession, "request", request):
        yield


async def _kubelet(cluster: Cluster) -> None:
    """Runs every pod when it may, and lets it go when it is deleted."""
    async with (
        asyncio.TaskGroup() as tasks,
        cluster.session.get("/api/v1/pods?watch=1") as watch,
    ):
        async for line in watch.content:
            event = json.loads(line)
            pod = event["object"]
            path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            if event["type"] == "ADDED":
                tasks.create_task(_run(cluster, path, pod))
            elif event["type"] == "MODIFIED" and pod["metadata"].get("deletionTimestamp"):
                tasks.create_task(cluster.ask("DELETE", path, {"gracePeriodSeconds": 0}))


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The pods' web servers: something answers."""
    writer.close()
    await writer.wait_closed()


async def _run(cluster: Cluster, path: str, pod: dict[str, Any]) -> None:
    about = pod["metadata"]
    binding = {"metadata": {"name": about["name"]}, "target": {"kind": "Node", "name": NODE}}
    await cluster.ask("POST", f"{path}/binding", binding)
    for second, reason in enumerate(TOLD):
        await cluster.ask("POST", path.rpartition("/pods/")[0] + "/events", _event(pod, reason, second))
    await cluster.may_run[about["namespace"]].wait()
    change = {"status": _status(pod["spec"]["containers"])}
    await cluster.ask("PATCH", f"{path}/status", change, kind="application/merge-patch+json")


def _event(pod: dict[str, Any], reason: str, second: int) -> dict[str, Any]:
    about, when = pod["metadata"], f"{WHEN}{second}Z"
    of = {"kind": "Pod", "name": about["name"], "namespace": about["namespace"], "uid": about["uid"]}
    return {
        "metadata": {"name": f"{about['name']}.{reason.lower()}"},
        "involvedObject": {**of, "apiVersion": "v1"},
        "type": "Normal",
        "reason": reason,
        "message": f"{reason} the pod",
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def _status(containers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    since = f"{WHEN}5Z"
    return {
        "phase": "Running",
        "podIP": POD_IP,
        "podIPs": [{"ip": POD_IP}],
        "hostIP": "10.0.0.1",
        "startTime": since,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": since}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "sha256:1",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": since}},
            }
            for container in containers
        ],
    }
