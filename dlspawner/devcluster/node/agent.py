"""The process that plays all nodes: what they share, in which order it comes up, and how it goes away.

Owns the state directory (a lock, the checkpoint of addresses and GPUs, pods' directories and logs) and the tasks that
are not a pod's. A task that ends unexpectedly is reported through `failed` and ends the process: half a node is worse
than none.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.devcluster.node.container import Backoff
from dlspawner.devcluster.node.kubelet import Kubelet
from dlspawner.devcluster.node.machine import devices
from dlspawner.devcluster.node.machine.addresses import Block
from dlspawner.devcluster.node.machine.description import DEFAULT, NodeDescription
from dlspawner.devcluster.node.machine.provision import Provisioner
from dlspawner.devcluster.node.pod import Pod
from dlspawner.devcluster.node.recorder import Recorder
from dlspawner.devcluster.node.runner import NOTHING, Command, Root, StartError, start
from dlspawner.devcluster.node.streaming.forward import Forwarder

log = logging.getLogger(__name__)

# A user waits after Ctrl-C: less than a pod's own grace period.
STOP_SECONDS = 2.0


class CannotStart(Exception):
    """A sentence for the user that started it."""


class Agent:
    """All simulated nodes of one cluster."""

    def __init__(  # noqa: PLR0913 - settings, all but three by keyword
        self,
        cluster: KubernetesClient,
        state: Path,
        nodes: Sequence[NodeDescription] = DEFAULT,
        *,
        backoff: Backoff | None = None,
        hide: Sequence[Path] = (),
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.cluster = cluster
        self.directory = state.absolute() / "node"
        self.hidden: tuple[str, ...] = tuple(str(path.absolute()) for path in (state, *hide))
        self.backoff = backoff or Backoff()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop_seconds = stop_seconds
        self._volumes = state.absolute() / "volumes"
        self._descriptions = nodes
        self.recorder = Recorder(cluster)
        self._tasks: list[asyncio.Task[None]] = []
        self._lock = -1
        self._writing = threading.Lock()
        self._block: Block | None = None
        self.nodes: list[Kubelet] = []

    @property
    def pods(self) -> list[Pod]:
        return [pod for node in self.nodes for pod in node.pods]

    async def start(self) -> None:
        """Returns when every node is registered, Ready, and runs what is bound to it; raises `CannotStart`."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._acquire()
        await self._try_sandbox()
        self._block = Block.acquire(self.directory / "block")
        self.nodes = [
            Kubelet(self, description, self._block.node(index)) for index, description in enumerate(self._descriptions)
        ]
        self._restore()
        forwarder = Forwarder(self.cluster, [node.ip for node in self.nodes], lambda: self.pods)
        self._spawn(self.recorder.run(), "events")
        self._spawn(Provisioner(self.cluster, self._volumes).run(), "provisioner")
        await asyncio.gather(*(node.start() for node in self.nodes))
        self._spawn(forwarder.run(), "node ports")
        await asyncio.to_thread(self._sweep)

    async def stop(self) -> None:
        """End every process; the objects stay as they are, so that a new start begins where this one ended."""
        await asyncio.gather(*(node.stop(self._stop_seconds) for node in self.nodes))
        await self.recorder.flush(0.5)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._block:
            self._block.release()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # What the nodes share

    def take_address(self, uid: str, wanted: str) -> str:
        block = self._addresses()
        known = block.taken()
        address = block.take(uid, wanted)
        if uid not in known:
            self.checkpoint()
        return address

    def free_address(self, uid: str) -> None:
        self._addresses().free(uid)

    def checkpoint(self) -> None:
        """Addresses and GPUs must be the same after a crash: written before their first use."""
        with self._writing:  # a start sweeps in a thread while the first pods take addresses
            held = devices.checkpoint({node.name: node.holdings for node in self.nodes})
            text = json.dumps({"addresses": self._addresses().taken(), "devices": json.loads(held)})
            draft = self.directory / "checkpoint.new"
            draft.write_text(text, encoding="utf-8")
            draft.replace(self.directory / "checkpoint.json")

    def _restore(self) -> None:
        try:
            saved = json.loads((self.directory / "checkpoint.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return
        self._addresses().restore(saved["addresses"])
        devices.restore(json.dumps(saved["devices"]), {node.name: node.holdings for node in self.nodes})

    def _addresses(self) -> Block:
        if self._block is None:
            raise CannotStart("the node has not been started")
        return self._block

    def _acquire(self) -> None:
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise CannotStart(
                f"the state directory {self.directory.parent} is in use by another node process"
            ) from None

    async def _try_sandbox(self) -> None:
        """Better one sentence now than a puzzling status in every pod."""
        trial = self.directory / "trial"
        shutil.rmtree(trial, ignore_errors=True)
        for name in ("root", "tmp"):
            (trial / name).mkdir(parents=True)
        root = Root(str(trial / "root"), str(trial / "tmp"), "trial", 1000, 1000)
        try:
            process = await start(Command(["/bin/true"], {}, root=root), stdin=NOTHING, stdout=NOTHING, stderr=NOTHING)
        except StartError as error:
            raise CannotStart(f"pods cannot be run as processes here: {error}") from error
        await process.wait()

    def _sweep(self) -> None:
        """Directories of pods that went while the node was down."""
        known = {pod.uid for pod in self.pods}
        for path in (self.directory / "pods").glob("*"):
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)
        for path in (self.directory / "logs").glob("*"):
            if path.name.rpartition("_")[2] not in known:
                shutil.rmtree(path, ignore_errors=True)
        for uid in self._addresses().taken().keys() - known:
            self._addresses().free(uid)
        for node in self.nodes:
            for uid in node.holdings.held.keys() - known:
                node.holdings.release(uid)
        self.checkpoint()

    def _spawn(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.failed.done():
            return
        log.error("the task %s ended unexpectedly", task.get_name(), exc_info=task.exception())
        self.failed.set_result(None)
