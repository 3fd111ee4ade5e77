"""`python -m dlspawner.devcluster.node --kubeconfig FILE --state DIR [--nodes FILE]`: simulated nodes for any cluster.

Runs until SIGINT or SIGTERM, then stops every process of every pod; killed with SIGKILL, the kernel does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlspawner.clients.kubernetes import KubernetesClient, KubernetesError
from dlspawner.devcluster.node import DEFAULT, Agent, Backoff, CannotStart, NodeDescription
from dlspawner.devcluster.node.kubelet import NameTaken
from dlspawner.devcluster.node.machine import description
from dlspawner.devcluster.node.machine.addresses import BlockTaken

READY = "Nodes ready:"
_PR_SET_PDEATHSIG = 1


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m dlspawner.devcluster node", description=__doc__)
    result.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG"), help="the cluster to join ($KUBECONFIG)")
    result.add_argument("--state", type=Path, required=True, help="directory for volumes, logs and checkpoints")
    result.add_argument("--nodes", type=Path, help="YAML or JSON file that describes the nodes")
    result.add_argument("--hide", type=Path, action="append", default=[], help="directory that no pod may see")
    result.add_argument("--verbose", action="store_true", help="log more")
    result.add_argument("--backoff", type=float, default=10.0, help="first CrashLoopBackOff delay in seconds")
    result.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    if options.parent:
        die_with(options.parent)
    _many_descriptors()
    try:
        asyncio.run(_serve(options))
    except (CannotStart, BlockTaken, NameTaken, KubernetesError, description.InvalidDescription, OSError) as error:
        sys.exit(str(error))


def die_with(parent: int) -> None:
    """End with the process that started this one, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that started the nodes is gone")


def read_nodes(path: Path | None) -> tuple[NodeDescription, ...]:
    """The description in a file, or the default; raises `InvalidDescription` with the file's name."""
    if path is None:
        return DEFAULT
    try:
        return description.parse(path.read_text(encoding="utf-8"))
    except description.InvalidDescription as error:
        raise description.InvalidDescription(f"{path}: {error}") from error


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    nodes = read_nodes(options.nodes)
    async with await KubernetesClient.connect(options.kubeconfig) as cluster:
        agent = Agent(cluster, options.state, nodes, backoff=Backoff(first=options.backoff), hide=options.hide)
        try:
            await agent.start()
            gc.freeze()  # modules and models of the Kubernetes package: never garbage
            sys.stdout.write(f"{READY} {', '.join(node.name for node in agent.nodes)}\n")
            sys.stdout.flush()
            stopped = asyncio.create_task(stop.wait(), name="signal")
            waiting: set[asyncio.Future[Any]] = {stopped, agent.failed}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        finally:
            await agent.stop()
        if agent.failed.done() and not stop.is_set():
            raise CannotStart("the nodes stopped because a task of theirs failed; see the log above")


def _many_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
