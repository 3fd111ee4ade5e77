"""`python -m dlspawner.devcluster --state DIR [--port N] [--nodes FILE]`: API server and nodes in one command.

The API server runs in this process, the nodes in a child: they talk over HTTP as they would on a cluster, each has a
processor core of its own, and a slow pod log cannot hold up the API. The child cannot outlive this process (PDEATHSIG),
nor a pod's processes the child. `… api` and `… node --kubeconfig FILE` run the parts alone.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from dlspawner.devcluster import api
from dlspawner.devcluster.node import __main__ as node

START_SECONDS = 60.0
# The nodes give pods two seconds, and need a moment to say goodbye.
STOP_SECONDS = 10.0


class ChildFailed(Exception):
    """The nodes did not come up, or went down by themselves; they have said why."""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["node"]:
        node.main(arguments[1:])
        return
    if arguments[:1] == ["api"]:
        from dlspawner.devcluster.api import __main__ as api_main

        sys.exit(api_main.main(arguments[1:]))
    parser = argparse.ArgumentParser(prog="python -m dlspawner.devcluster", description=__doc__)
    parser.add_argument("--state", type=Path, default=Path(".devcluster"), help="directory of everything it keeps")
    parser.add_argument("--port", type=int, default=0, help="port of the API server on 127.0.0.1 (0: a free one)")
    parser.add_argument("--nodes", type=Path, help="YAML or JSON file that describes the nodes")
    parser.add_argument("--hide", type=Path, action="append", default=[], help="directory that no pod may see")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(_serve(options))
    except api.StateInUse as error:
        sys.exit(str(error))
    except ChildFailed as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"port {options.port} cannot be used: {error.strerror}; choose another one with --port")


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = await api.start(options.state, options.port)
    try:
        nodes = await _start_nodes(options, server.kubeconfig)
        stopped = asyncio.create_task(stop.wait(), name="signal")
        try:
            names = await _ready(nodes, stopped)
            if names:
                sys.stdout.write(f"Cluster ready: {server.url} KUBECONFIG={server.kubeconfig} {names}\n")
                sys.stdout.flush()
            gone = asyncio.create_task(nodes.wait(), name="nodes")
            await asyncio.wait({stopped, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                raise ChildFailed(f"the nodes ended by themselves (exit code {nodes.returncode})")
        finally:
            stopped.cancel()
            await _stop_nodes(nodes)
    finally:
        await server.stop()


async def _start_nodes(options: argparse.Namespace, kubeconfig: Path) -> Process:
    command = [sys.executable, "-m", "dlspawner.devcluster.node", f"--kubeconfig={kubeconfig}"]
    command += [f"--state={options.state}", f"--parent={os.getpid()}"]
    command += [f"--hide={path}" for path in options.hide]
    if options.nodes:
        command.append(f"--nodes={options.nodes}")
    # A session of its own: Ctrl-C in the terminal is for us: we stop the nodes before the API that they write to.
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, start_new_session=True)


async def _ready(nodes: Process, stopped: asyncio.Task[bool]) -> str:
    """The nodes' line; empty if we are stopped before it comes."""
    if nodes.stdout is None:
        raise ChildFailed("the nodes have no standard output")
    line = asyncio.create_task(nodes.stdout.readline(), name="readiness of the nodes")
    done, _ = await asyncio.wait({line, stopped}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if stopped in done:
        line.cancel()
        return ""
    if line not in done or not line.result().startswith(node.READY.encode()):
        line.cancel()
        raise ChildFailed("the nodes did not start")
    return line.result().decode().strip()


async def _stop_nodes(nodes: Process) -> None:
    if nodes.returncode is not None:
        return
    nodes.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await nodes.wait()
    except TimeoutError:
        logging.getLogger(__name__).warning("the nodes did not stop in time and are killed")
        nodes.kill()
        await nodes.wait()


if __name__ == "__main__":
    main()
