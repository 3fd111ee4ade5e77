"""One simulated node: registers itself, keeps its lease, and runs the pods that are bound to it.

Everything it knows about the cluster comes from one watch (`spec.nodeName`), as with a real kubelet. It is the `Host`
of its pods; what several nodes of this process share (addresses, events, the checkpoint) belongs to the `Agent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from dlspawner.backoff import delays
from dlspawner.clients.kubernetes import (
    LEASES,
    NODES,
    PODS,
    Conflict,
    KubernetesClient,
    KubernetesError,
    ObjectNotFound,
)
from dlspawner.devcluster.node.container import Backoff, now
from dlspawner.devcluster.node.machine import devices
from dlspawner.devcluster.node.machine.description import NodeDescription
from dlspawner.devcluster.node.machine.gpu_metrics import Exporter, Holder
from dlspawner.devcluster.node.pod import Pod
from dlspawner.devcluster.node.recorder import Recorder
from dlspawner.devcluster.node.streaming import serving
from dlspawner.devcluster.node.streaming.endpoint import Endpoint

log = logging.getLogger(__name__)

PORT = 10250
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW_SECONDS = 10.0
STATUS_EVERY = 30  # renewals
GOODBYE_SECONDS = 0.5
INSTANCE_TYPE = "devcluster"
VERSION = "v1.34.0-devcluster"


class NameTaken(Exception):
    """Another process keeps a node of this name alive in the cluster; a sentence."""


class Shared(Protocol):
    """The parts that the nodes of one process share."""

    cluster: KubernetesClient
    directory: Path
    hidden: tuple[str, ...]
    backoff: Backoff
    recorder: Recorder

    def take_address(self, uid: str, wanted: str) -> str: ...
    def free_address(self, uid: str) -> None: ...
    def checkpoint(self) -> None: ...


class Kubelet:
    """`start` it, and its pods live until `stop`."""

    def __init__(self, shared: Shared, description: NodeDescription, ip: str) -> None:
        self.shared = shared
        self.description = description
        self.name, self.ip = description.name, ip
        self.cluster, self.directory = shared.cluster, shared.directory
        self.hidden, self.backoff = shared.hidden, shared.backoff
        self.capacity: Mapping[str, str] = description.capacity
        self.holdings = devices.Holdings(
            {name: devices.inventory(self.name, name, count) for name, count in description.gpus.items()}
        )
        self.synced = asyncio.Event()
        self._pods: dict[str, Pod] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._endpoint = Endpoint(self.find)
        model = next((value for key, value in description.labels.items() if key.endswith("gpu.product")), "GPU")
        devices_ = [device for all_ in self.holdings.devices.values() for device in all_]
        self._exporter = Exporter(self.name, model, devices_, self._holders) if devices_ else None
        self._port = PORT

    @property
    def pods(self) -> list[Pod]:
        return list(self._pods.values())

    def find(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)

    async def start(self) -> None:
        """Returns when the node is registered and its first pods are known."""
        await self._require_own_name()
        doorkeeper = await serving.doorkeeper(self.cluster, self.name, self.ip, self.directory)
        try:
            await self._endpoint.start(doorkeeper, self.ip, PORT)
        except OSError:  # a real kubelet listens on every address of the machine
            await self._endpoint.start(doorkeeper, self.ip, 0)
        self._port = self._endpoint.port
        await self._export()
        await self._register()
        await self._renew()
        self._tasks = [
            asyncio.create_task(self._heartbeat(), name=f"lease of {self.name}"),
            asyncio.create_task(self._watch(), name=f"pods of {self.name}"),
        ]
        await self.synced.wait()

    async def stop(self, grace: float) -> None:
        """End all processes; no object is changed but the lease, so that another start may take the name at once."""
        tasks = [*self._tasks, *self._lives.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(pod.halt(grace) for pod in self.pods))
        await self._endpoint.stop()
        if self._exporter:
            await self._exporter.stop()
        await self._end_lease()

    async def _export(self) -> None:
        if self._exporter:
            try:
                await self._exporter.start(self.ip)
            except OSError as error:
                log.warning("node=%s serves no metrics of GPUs: %s", self.name, error)

    def _holders(self) -> Iterator[Holder]:
        for pod in self.pods:
            held = self.holdings.held.get(pod.uid, {})
            for container in pod.containers:
                mine = tuple(device for all_ in held.get(container.name, {}).values() for device in all_)
                if mine:
                    pid = container.process.pid if container.process else None
                    yield Holder(pod.namespace, pod.name, container.name, mine, pid)

    # The Host of its pods

    def address(self, uid: str, wanted: str) -> str:
        return self.shared.take_address(uid, wanted)

    def devices(self, uid: str, container: Mapping[str, Any]) -> list[str]:
        wanted = devices.wanted(container, self.holdings.devices)
        if not wanted:
            return []
        before = self.holdings.held.get(uid, {}).get(container["name"])
        assigned = self.holdings.assign(uid, container["name"], wanted)
        if before is None:
            self.shared.checkpoint()
        return assigned

    def release(self, uid: str, *, address: bool = True) -> None:
        self.holdings.release(uid)
        if address:
            self.shared.free_address(uid)
        self.shared.checkpoint()

    def note(self, manifest: Mapping[str, Any], type: str, reason: str, message: str, field_path: str) -> None:
        self.shared.recorder.note(manifest, self.name, type, reason, message, field_path=field_path)

    # Its pods

    async def _watch(self) -> None:
        async for change in self.cluster.watch(PODS, fields=f"spec.nodeName={self.name}"):
            if change.type == "SYNCED":
                self.synced.set()
                continue
            uid = change.object["metadata"]["uid"]
            pod = self._pods.get(uid)
            if change.type == "DELETED":
                if pod:
                    pod.vanished()
            elif pod:
                pod.update(change.object)
            else:
                self._begin(uid, change.object)

    def _begin(self, uid: str, manifest: Mapping[str, Any]) -> None:
        pod = self._pods[uid] = Pod(self, manifest)
        self._lives[uid] = asyncio.create_task(self._live(pod), name=f"pod {pod.namespace}/{pod.name}")

    async def _live(self, pod: Pod) -> None:
        try:
            await pod.life()
        except Exception:
            log.exception("pod=%s/%s its task failed", pod.namespace, pod.name)  # a task's root
        self._pods.pop(pod.uid, None)
        self._lives.pop(pod.uid, None)

    # Itself

    async def _require_own_name(self) -> None:
        """Two processes that both run what is bound to a node would run everything twice."""
        try:
            node = await self.cluster.get(NODES, self.name)
            lease = await self.cluster.get(LEASES, self.name, LEASE_NAMESPACE)
        except ObjectNotFound:
            return
        addresses = (node.get("status") or {}).get("addresses") or []
        theirs = next((entry["address"] for entry in addresses if entry["type"] == "InternalIP"), self.ip)
        if theirs != self.ip and _is_held(lease["spec"], datetime.now(UTC)):
            raise NameTaken(f"the cluster has a node {self.name} already ({theirs}): give others with --nodes")

    async def _register(self) -> None:
        description = self.description
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": INSTANCE_TYPE,
            **description.labels,
        }
        manifest = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"taints": [dict(taint) for taint in description.taints]} if description.taints else {},
        }
        try:
            await self.cluster.create(NODES, manifest)
        except Conflict:
            await self.cluster.patch(NODES, self.name, {"metadata": {"labels": labels}})
        await self._report()
        about = {"kind": "Node", "metadata": {"name": self.name, "uid": self.name}}
        self.note(about, "Normal", "NodeReady", f"Node {self.name} status is now: NodeReady", "")

    async def _report(self) -> None:
        await self.cluster.patch(NODES, self.name, {"status": self._status()}, subresource="status")

    def _status(self) -> dict[str, Any]:
        uname = os.uname()
        capacity = dict(self.capacity)
        return {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": self.ip},
                {"type": "Hostname", "address": self.name},
            ],
            "conditions": _conditions(now()),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": {
                "architecture": platform.machine(),
                "bootID": "",
                "containerRuntimeVersion": "devcluster://0",
                "kernelVersion": uname.release,
                "kubeProxyVersion": VERSION,
                "kubeletVersion": VERSION,
                "machineID": self.name,
                "operatingSystem": "linux",
                "osImage": "this machine",
                "systemUUID": self.name,
            },
        }

    async def _heartbeat(self) -> None:
        waits = delays()
        beats = 0
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            beats += 1
            try:
                await self._renew()
                if beats % STATUS_EVERY == 0:
                    await self._report()
                waits = delays()
            except ObjectNotFound:
                await self._register_again()
            except KubernetesError as error:
                log.warning("node=%s heartbeat error=%s", self.name, error)
                await asyncio.sleep(next(waits))

    async def _register_again(self) -> None:
        """The node's object was deleted."""
        try:
            await self._register()
        except KubernetesError as error:
            log.warning("node=%s cannot register: %s", self.name, error)

    async def _renew(self) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": moment}
        try:
            await self.cluster.patch(LEASES, self.name, {"spec": spec}, LEASE_NAMESPACE)
        except ObjectNotFound:
            metadata = {"name": self.name, "namespace": LEASE_NAMESPACE}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
            await self.cluster.create(LEASES, lease)

    async def _end_lease(self) -> None:
        with contextlib.suppress(KubernetesError, TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self.cluster.patch(LEASES, self.name, {"spec": {"leaseDurationSeconds": 1}}, LEASE_NAMESPACE)


def _is_held(lease: Mapping[str, Any], moment: datetime) -> bool:
    renewed = datetime.fromisoformat(lease.get("renewTime") or "1970-01-01T00:00:00Z")
    return (moment - renewed).total_seconds() < int(lease.get("leaseDurationSeconds", LEASE_SECONDS))


def _conditions(moment: str) -> list[dict[str, str]]:
    wanted = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": moment,
            "lastTransitionTime": moment,
        }
        for kind, status, reason, message in wanted
    ]
