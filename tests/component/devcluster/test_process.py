"""The command: ready line, second instance, taken port, clean stop, SIGKILL."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from dlspawner.clients.kubernetes import PODS, KubernetesClient, Object
from dlspawner.devcluster.api.store import Store
from tests.component.devcluster.conftest import SECONDS, is_ready

NODES = "nodes: [{name: only, cpu: 4, memory: 8Gi, gpus: {nvidia.com/gpu: 1}}]"


@contextlib.asynccontextmanager
async def devcluster(state: Path, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    (state.parent / "nodes.yaml").write_text(NODES, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dlspawner.devcluster"),
        *(f"--state={state}", f"--nodes={state.parent / 'nodes.yaml'}", *args),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout
    async with asyncio.timeout(SECONDS):
        line = (await process.stdout.readline()).decode()
    assert line.startswith("Cluster ready: https://127.0.0.1:"), line
    return line


def _with(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


async def _marked_pod(state: Path, marker: str) -> None:
    env = [{"name": "MARK", "value": marker}]
    script = "sleep 600 & setsid sleep 600 & exec sleep 600"
    container = {"name": "main", "image": "x", "command": ["sh", "-c", script], "env": env}
    async with await KubernetesClient.connect(state / "kubeconfig") as cluster:
        await cluster.create(
            PODS, {"metadata": {"name": "p", "namespace": "jobs"}, "spec": {"containers": [container]}}
        )
        async with asyncio.timeout(SECONDS):
            async for change in cluster.watch(PODS, "jobs"):
                if change.object and is_ready(change.object):
                    return


def _restarts(pod: Object) -> int:
    return pod["status"]["containerStatuses"][0]["restartCount"]  # type: ignore[no-any-return]


async def _until(wanted: Callable[[int], bool], marker: str) -> None:
    """Waits for the number of processes with the marker."""
    async with asyncio.timeout(SECONDS):
        while not wanted(len(_with(marker))):  # noqa: ASYNC110  (processes of others have no events)
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_killing_the_cluster_leaves_no_process(tmp_path: Path) -> None:
    marker = uuid4().hex
    async with devcluster(tmp_path / "state") as process:
        await _ready(process)
        await _marked_pod(tmp_path / "state", marker)
        await _until(lambda count: count >= 3, marker)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await _until(lambda count: count == 0, marker)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_cluster_stops_cleanly_and_starts_again(tmp_path: Path, number: signal.Signals) -> None:
    marker = uuid4().hex
    state = tmp_path / "state"
    async with devcluster(state) as process:
        await _ready(process)
        await _marked_pod(state, marker)
        process.send_signal(number)
        async with asyncio.timeout(8):
            assert await process.wait() == 0
        assert not _with(marker)
    async with devcluster(state) as process:
        await _ready(process)
        async with await KubernetesClient.connect(state / "kubeconfig") as cluster, asyncio.timeout(SECONDS):
            # The status of before the stop stays until the node has checked the pod, as with any kubelet.
            async for change in cluster.watch(PODS, "jobs"):
                if change.object and is_ready(change.object) and _restarts(change.object) == 1:
                    break
        assert _with(marker)


def _complaint(*arguments: str) -> str:
    """Of the command that cannot start."""
    command, env = [sys.executable, "-m", "dlspawner.devcluster", *arguments], os.environ | {"KUBECONFIG": "/none"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_second_instance_is_an_error_that_names_the_state(tmp_path: Path) -> None:
    store = Store(tmp_path / "objects.sqlite")  # as the first one holds it
    assert str(tmp_path) in _complaint(f"--state={tmp_path}")
    store.close()
    Store(tmp_path / "objects.sqlite").close()


def test_taken_port_is_an_error_that_names_port_and_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = _complaint(f"--state={tmp_path / 'state'}", f"--port={port}")
    assert f"port {port}" in said
    assert "--port" in said


@pytest.mark.slow
def test_nodes_alone_join_a_cluster_by_its_kubeconfig(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("nodes: [{name: a, colour: red}]", encoding="utf-8")
    assert "/none" in _complaint("node", f"--state={tmp_path}", "--kubeconfig=/none")
    assert "unknown words in a node: colour" in _complaint("node", f"--state={tmp_path}", f"--nodes={wrong}")
