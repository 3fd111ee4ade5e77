"""One pod on a simulated node: its address, GPUs and volumes, its containers in their order, its status, its end.

`Pod.life` is the pod's task; a second task writes the status whenever something changed, one write at a time, always
the whole truth. Restarting the node loses no pod: what an earlier life left in the API is where `Pod` begins.
Refused: deciding anything twice. What a status looks like is `status.py`, what a command looks like `env.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from dlspawner.backoff import delays
from dlspawner.clients.kubernetes import (
    PODS,
    KubernetesClient,
    KubernetesError,
    KubernetesRejected,
    KubernetesUnavailable,
    ObjectNotFound,
)
from dlspawner.devcluster.node import env, status, volumes
from dlspawner.devcluster.node.container import Backoff, Container, now
from dlspawner.devcluster.node.env import Facts
from dlspawner.devcluster.node.machine import facts, image
from dlspawner.devcluster.node.machine.devices import NotEnough
from dlspawner.devcluster.node.runner import Command

log = logging.getLogger(__name__)

# A Secret or claim that is made a moment after the pod is nothing to complain about.
QUIET_SECONDS = 1.0
ADMISSION_SECONDS = 10.0


class Host(Protocol):
    """The services that a node offers its pods."""

    name: str
    ip: str
    cluster: KubernetesClient
    directory: Path
    hidden: tuple[str, ...]
    backoff: Backoff
    capacity: Mapping[str, str]

    def address(self, uid: str, wanted: str) -> str: ...
    def devices(self, uid: str, container: Mapping[str, Any]) -> list[str]: ...
    def release(self, uid: str, *, address: bool = True) -> None: ...
    def note(self, manifest: Mapping[str, Any], type: str, reason: str, message: str, field_path: str) -> None: ...


class Failed(Exception):
    """The whole pod fails, with a reason for its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Pod:
    """Also the `Housing` of its containers."""

    def __init__(self, host: Host, manifest: Mapping[str, Any]) -> None:
        self.host = host
        self.manifest = manifest
        self.backoff = host.backoff
        self.ip = ""
        self.patience = float(manifest["spec"].get("terminationGracePeriodSeconds", 30))
        metadata, before = manifest["metadata"], manifest.get("status") or {}
        self.uid: str = metadata["uid"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self._before = before
        self._started = before.get("startTime") or now()
        self._failed: Failed | None = None
        spec = manifest["spec"]
        policy = spec.get("restartPolicy", "Always")
        inits = spec.get("initContainers") or []
        self.init = [self._container(c, c.get("restartPolicy") or _init_policy(policy)) for c in inits]
        self.main = [self._container(c, policy) for c in spec["containers"]]
        self._volumes: dict[str, Path] = {}
        self._dirty = asyncio.Event()
        self._deleted = asyncio.Event()
        self._gone = asyncio.Event()
        self._written = asyncio.Event()
        self._over = before.get("phase") in {"Succeeded", "Failed"}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def containers(self) -> list[Container]:
        return [*self.init, *self.main]

    @property
    def ready(self) -> bool:
        return not self._deleted.is_set() and bool(self.main) and all(c.run.ready for c in self.main)

    @property
    def finished(self) -> bool:
        return self._phase() in {"Succeeded", "Failed"}

    # What the node tells the pod

    def update(self, manifest: Mapping[str, Any]) -> None:
        """The object changed: perhaps it is being deleted, perhaps with less patience than before."""
        self.manifest = manifest
        metadata = manifest["metadata"]
        if metadata.get("deletionTimestamp"):
            grace = float(metadata.get("deletionGracePeriodSeconds", 30))
            if self._deleted.is_set():
                for container in self.containers:
                    container.shorten(grace)
            self._deleted.set()
        self.changed()

    def vanished(self) -> None:
        """The object is gone (deleted by force): nothing waits for the processes any more."""
        self._gone.set()
        self._deleted.set()
        for container in self.containers:
            container.shorten(0)

    # What its containers ask of the pod

    def changed(self) -> None:
        self._dirty.set()

    def note(self, type: str, reason: str, message: str, container: str = "") -> None:
        field = f"spec.containers{{{container}}}" if container else ""
        if container and any(container == c.name for c in self.init):
            field = f"spec.initContainers{{{container}}}"
        self.host.note(self.manifest, type, reason, message, field)

    def directory(self, container: str) -> Path:
        return self.host.directory / "pods" / self.uid / "containers" / container

    def log_path(self, container: str, restarts: int) -> Path:
        name = f"{self.namespace}_{self.name}_{self.uid}"
        return self.host.directory / "logs" / name / container / f"{restarts}.log"

    async def command(self, container: Mapping[str, Any], directory: Path) -> Command:
        """Everything about one start of a container; raises `env.ConfigError` for what is missing."""
        variables = env.variables(container, await self._facts(container))
        try:
            gpus = self.host.devices(self.uid, container)
        except NotEnough as error:
            raise env.ConfigError(str(error)) from error
        return image.command(
            container,
            pod=self.manifest,
            ip=self.ip,
            variables=variables,
            gpus=gpus,
            directory=directory,
            shared=self.host.directory / "hosts",
            mounts=tuple(volumes.mounts(container, self.manifest, self._volumes, variables)),
            hidden=self.host.hidden,
        )

    # The pod's life

    async def life(self) -> None:
        """Until the pod has ended and, when it was deleted, its object is gone."""
        publisher = asyncio.create_task(self._publish(), name=f"status of {self.name}")
        living = asyncio.create_task(self._live(), name=f"containers of {self.name}")
        deleted = asyncio.create_task(self._deleted.wait(), name=f"deletion of {self.name}")
        try:
            if self.manifest["metadata"].get("deletionTimestamp"):
                self.update(self.manifest)
            await asyncio.wait({living, deleted}, return_when=asyncio.FIRST_COMPLETED)
            if not self._deleted.is_set():
                await self._flush(publisher)
                self.host.release(self.uid)
                await deleted
            await self._stop_everything(self._grace(), living)
            await self._flush(publisher)
            await self._remove()
        finally:
            for task in (publisher, living, deleted, *self._tasks):
                task.cancel()
            await asyncio.gather(publisher, living, deleted, *self._tasks, return_exceptions=True)

    async def halt(self, grace: float) -> None:
        """The node is stopping: end the processes, leave the object as it is."""
        await asyncio.gather(*(container.stop(grace) for container in self.containers))
        for container in self.containers:
            if container.log:
                container.log.close()

    def clean(self) -> None:
        """Remove what belongs to the pod alone."""
        volumes.remove_tree(self.host.directory / "pods" / self.uid)

    async def _live(self) -> None:
        try:
            if self.finished:
                return
            async with asyncio.timeout(self._deadline()):
                main = await self._start()
                if main:
                    await asyncio.wait(main)
        except TimeoutError:
            self._failed = Failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            self.note("Normal", "DeadlineExceeded", str(self._failed))
        except Failed as failure:
            self._failed = failure
            self.note("Warning", failure.reason, str(failure))
        except KubernetesError as error:
            log.warning("pod=%s error=%s", self.name, error)
            self._failed = Failed("NodeError", str(error))
        await asyncio.gather(*(container.stop(self._grace()) for container in self.containers))
        self.changed()

    async def _start(self) -> set[asyncio.Task[None]]:
        """From the address to the running containers; their tasks are never cancelled, only stopped."""
        for container in self.main:
            code = container.run.exit_code  # of before the node was restarted
            container.run.final = code is not None and not status.restarts_again(self._policy(), code)
        remaining = [container for container in self.main if not container.run.final]
        if not remaining:
            return set()
        host_network = self.manifest["spec"].get("hostNetwork")
        self.ip = self.host.ip if host_network else self.host.address(self.uid, self._before.get("podIP", ""))
        await self._admit()
        self.changed()
        await self._prepare_volumes()
        for container in self.init:
            await self._initialize(container)
        return {self._begin(container) for container in remaining}

    def _begin(self, container: Container) -> asyncio.Task[None]:
        task = asyncio.create_task(container.life(), name=f"container {container.name} of {self.name}")
        self._tasks.add(task)
        return task

    async def _admit(self) -> None:
        """Take the GPUs. Those of a pod that was deleted by force are free only when its processes are gone."""
        clock = asyncio.get_running_loop().time
        until = clock() + ADMISSION_SECONDS
        for wait in delays(0.02, 0.5):
            try:
                for container in self.containers:
                    self.host.devices(self.uid, container.spec)
                return
            except NotEnough as error:
                self.host.release(self.uid, address=False)
                if clock() > until:
                    text = f"Allocate failed due to {error}, which is unexpected"
                    raise Failed("UnexpectedAdmissionError", text) from error
            await asyncio.sleep(wait)

    async def _initialize(self, container: Container) -> None:
        task = self._begin(container)
        if container.spec.get("restartPolicy") == "Always":
            await container.up.wait()
            return
        await asyncio.wait({task})
        if container.run.exit_code != 0:
            raise Failed("", f"init container {container.name} failed")

    async def _prepare_volumes(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        told = ""
        for wait in delays(0.02, 2.0):
            try:
                known = await self._facts({})
                directory = self.host.directory / "pods" / self.uid / "volumes"
                self._volumes = await volumes.prepare(self.host.cluster, known, directory)
                return
            except volumes.MountError as error:
                if clock() - began > QUIET_SECONDS and str(error) != told:
                    told = str(error)
                    self.note("Warning", "FailedMount", told)
            except KubernetesUnavailable as error:
                log.warning("pod=%s volumes wait error=%s", self.name, error)
            await asyncio.sleep(wait)

    async def _facts(self, container: Mapping[str, Any]) -> Facts:
        host = self.host
        objects = await facts.objects(host.cluster, self.namespace, container)
        return Facts(self.manifest, self.ip, host.ip, host.capacity, objects)

    async def _stop_everything(self, grace: float, living: asyncio.Task[None]) -> None:
        """Main containers first, sidecars after them; then nothing of the pod runs."""
        await asyncio.gather(*(container.stop(grace) for container in self.main))
        await asyncio.gather(*(container.stop(grace) for container in self.init))
        living.cancel()
        await asyncio.gather(living, *self._tasks, return_exceptions=True)

    async def _remove(self) -> None:
        """Take the object away; until the API has heard it, the pod still counts."""
        for wait in delays():
            if self._gone.is_set():
                break
            try:
                await self.host.cluster.delete(PODS, self.name, self.namespace, grace=0, uid=self.uid)
                break
            except KubernetesUnavailable as error:
                log.warning("pod=%s deletion waits error=%s", self.name, error)
                await asyncio.sleep(wait)
            except KubernetesError as error:
                if not isinstance(error, ObjectNotFound):
                    log.warning("pod=%s deletion refused error=%s", self.name, error)
                break
        self.host.release(self.uid)
        await asyncio.to_thread(self.clean)

    # Its status

    def _status(self) -> dict[str, Any]:
        if self._over:
            return dict(self._before)
        ours = {condition["type"] for condition in self._before.get("conditions") or []}
        foreign = [c for c in (self.manifest.get("status") or {}).get("conditions") or [] if c["type"] not in ours]
        before = dict(self._before) | {"conditions": [*(self._before.get("conditions") or []), *foreign]}
        result = status.pod_status(
            spec=self.manifest["spec"],
            init=[container.run for container in self.init],
            main=[container.run for container in self.main],
            before=before,
            pod_ip=self.ip or self._before.get("podIP", ""),
            host_ip=self.host.ip,
            started=self._started,
            now=now(),
        )
        if self._failed:
            result["phase"] = "Failed"
            if self._failed.reason:
                result |= {"reason": self._failed.reason, "message": str(self._failed)}
        return result

    async def _publish(self) -> None:
        waits = delays()
        written: Mapping[str, Any] = self._before
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            current = self._status()
            if current == written:
                continue
            patch = {"metadata": {"uid": self.uid}, "status": current}
            try:
                await self.host.cluster.patch(PODS, self.name, patch, self.namespace, subresource="status")
                self._before = written = current
                self._written.set()
                waits = delays()
            except ObjectNotFound:
                self.vanished()
                self._written.set()
                return
            except KubernetesRejected as error:
                log.warning("pod=%s status refused error=%s", self.name, error)
            except KubernetesError as error:
                log.warning("pod=%s status waits error=%s", self.name, error)
                self._dirty.set()
                await asyncio.sleep(next(waits))

    async def _flush(self, publisher: asyncio.Task[None]) -> None:
        """Until the status that holds now is written (or there is no reader left)."""
        clock = asyncio.get_running_loop().time
        until = clock() + 10
        self._dirty.set()
        while not publisher.done() and not self._gone.is_set() and self._status() != self._before:
            self._written.clear()
            try:
                async with asyncio.timeout(until - clock()):
                    await self._written.wait()
            except TimeoutError:
                log.warning("pod=%s its last status could not be written in time", self.name)
                return

    def _container(self, spec: Mapping[str, Any], policy: str) -> Container:
        why = status.INITIALIZING if self.manifest["spec"].get("initContainers") else status.CREATING
        run = status.previous(self._before, spec["name"], spec.get("image", ""), now(), why, policy=policy)
        return Container(self, spec, run, policy=policy)

    def _phase(self) -> str:
        if self._failed:
            return "Failed"
        if self._over:
            return str(self._before["phase"])
        return status.phase(self.manifest["spec"], [c.run for c in self.init], [c.run for c in self.main])

    def _policy(self) -> str:
        return str(self.manifest["spec"].get("restartPolicy", "Always"))

    def _grace(self) -> float:
        return float(self.manifest["metadata"].get("deletionGracePeriodSeconds", self.patience))

    def _deadline(self) -> float | None:
        seconds = self.manifest["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return None
        started = datetime.strptime(self._started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return max(0.0, float(seconds) - (datetime.now(UTC) - started).total_seconds())


def _init_policy(policy: str) -> str:
    # An init container has to succeed once: "Always" means "until it does".
    return "Never" if policy == "Never" else "OnFailure"
