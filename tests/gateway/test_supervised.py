"""Several processes behind one port, as they are run: `--workers 2`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import aiohttp
import asyncssh
import pytest
from prometheus_client.parser import text_string_to_metric_families as read

from ssh_gateway import listening
from tests.edges.test_manager.world import World
from tests.gateway.peers import Client, finish, until
from tests.gateway.test_app import a_job, probe, run, started
from tests.gateway.test_notices import seen
from tests.ports import free_port

SERVED = "dlspawner_gateway_loop_lag_seconds_count"


async def metrics(port: int) -> dict[tuple[str, str], float]:
    """What a Prometheus reads: by name and worker, whatever else a sample has added up."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.status == 200
        text = await answer.text()
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names)), "each once"
    found: dict[tuple[str, str], float] = {}
    for sample in (sample for family in read(text) for sample in family.samples):
        key = sample.name, sample.labels.get("worker", "")
        found[key] = found.get(key, 0.0) + sample.value
    return found


async def serving(port: int, restarts: int = 0) -> dict[tuple[str, str], float]:
    """The metrics, once both workers serve."""
    found: dict[tuple[str, str], float] = {}
    async with asyncio.timeout(60):
        while found.get(("dlspawner_gateway_workers", "")) != 2 or not all((SERVED, n) in found for n in "12"):
            found = await metrics(port)
        while found["dlspawner_gateway_worker_restarts_total", ""] != restarts:
            found = await metrics(port)
    return found


def children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


async def test_limits_hold_for_all_of_them_and_one_that_dies_is_started_again(
    world: World, kubeconfig: Path, tmp_path: Path, alices_key: asyncssh.SSHKey
) -> None:
    port = free_port()
    settings = ("--workers=2", f"--Gateway.health_port={port}", "--Gateway.max_connections_per_user=2")
    async with (
        a_job(world, kubeconfig, tmp_path, alices_key, "shared") as made,
        started(world, kubeconfig, made.state, *settings) as gateway,
    ):
        client = Client(tmp_path / "key", gateway.port, alices_key, made.keys.host)
        pids = {"2": int(await gateway.said("event=worker number=2 result=started pid="))}
        pids["1"] = (children(gateway.process.pid) - {pids["2"]}).pop()
        await serving(port)
        open_ = [await client.start("ssh", "-tt", "alice+shared@gateway", "echo ready; read x") for _ in range(2)]
        for terminal in open_:
            await seen(terminal, b"ready")
        found = await serving(port)  # an answer of each, behind whatever it was told by the other
        inside = {number: int(found["dlspawner_gateway_sessions", number]) for number in "12"}
        assert sum(inside.values()) == 2
        for _ in range(6):
            refused = await client.ssh("alice+shared@gateway", "echo in")
            assert "you have 2 connections already" in refused.err, "whichever worker it is"
        dies = max(inside, key=inside.__getitem__)
        os.kill(pids[dies], signal.SIGKILL)
        again = await gateway.said(f"event=worker number={dies} result=ended status=-9 pause=")
        assert again == "0.000"
        await serving(port, restarts=1)
        assert await probe(port, "/ready") == 200
        done = await client.ssh("alice+shared@gateway", "echo in")
        assert done.text == "in\n", "who was in it is counted no more: " + done.err
        statuses = [(await finish(terminal, b"x\n")).status for terminal in open_]
        assert sorted(statuses) == [0] * (2 - inside[dies]) + [255] * inside[dies], "whoever was not in it works on"
        gateway.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(gateway.process.wait(), 30) == 0
        said = await gateway.read()
        assert "Traceback" not in said


@pytest.mark.slow
async def test_sigterm_drains_all_of_them_and_a_second_one_ends_it(
    world: World, kubeconfig: Path, tmp_path: Path, alices_key: asyncssh.SSHKey
) -> None:
    port = free_port()
    settings = ("--workers=2", f"--Gateway.health_port={port}", "--Gateway.drain_seconds=600")
    async with (
        a_job(world, kubeconfig, tmp_path, alices_key, "drains") as made,
        started(world, kubeconfig, made.state, *settings) as gateway,
    ):
        client = Client(tmp_path / "key", gateway.port, alices_key, made.keys.host)
        await serving(port)
        terminal = await client.start("ssh", "-tt", "alice+drains@gateway", "echo ready; read x")
        await seen(terminal, b"ready")
        workers = children(gateway.process.pid)
        for pid in (*workers, gateway.process.pid):  # as a service manager does that tells all it started
            os.kill(pid, signal.SIGTERM)
        await seen(terminal, b"restarting: this connection ends at ")
        assert [await probe(port, path) for path in ("/ready", "/")] == [503, 200]
        gateway.process.send_signal(signal.SIGTERM)
        done = await finish(terminal)
        assert (done.status, "the gateway is stopping: connect again in a moment" in done.err) == (255, True)
        assert await asyncio.wait_for(gateway.process.wait(), 30) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.slow
async def test_no_worker_outlives_who_started_it(world: World, kubeconfig: Path, tmp_path: Path) -> None:
    port = free_port()
    settings = ("--workers=2", f"--Gateway.health_port={port}", "--Gateway.drain_seconds=600")
    async with started(world, kubeconfig, tmp_path / "state", *settings) as gateway:
        await serving(port)
        workers = children(gateway.process.pid)
        assert len(workers) == 2
        gateway.process.kill()
        await gateway.process.wait()
        await until(lambda: not any(_runs(pid) for pid in workers))


def _runs(pid: int) -> bool:
    """Whether a process is there, and not merely waits for its end to be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
async def test_one_that_hangs_is_noticed_and_replaced_and_the_other_works_on(
    world: World, kubeconfig: Path, tmp_path: Path
) -> None:
    port = free_port()
    settings = ("--workers=2", f"--Gateway.health_port={port}", "--Gateway.worker_dead_seconds=12")
    async with started(world, kubeconfig, tmp_path / "state", *settings) as gateway:
        second = int(await gateway.said("event=worker number=2 result=started pid="))
        await serving(port)
        os.kill(second, signal.SIGSTOP)
        assert await gateway.said("event=worker number=2 result=silent pid=") == str(second)
        os.kill(second, signal.SIGCONT)
        assert await gateway.said("event=worker number=2 result=answers pid=") == str(second)
        os.kill(second, signal.SIGSTOP)
        assert await gateway.said("event=worker number=2 result=dead pid=") == str(second)
        assert await gateway.said("event=worker number=2 result=ended status=-9 pause=") == "0.000"
        third = int(await gateway.said("event=worker number=2 result=started pid="))
        await serving(port, restarts=1)
        (first,) = children(gateway.process.pid) - {third}
        assert _runs(first)


async def test_what_is_missing_is_said_once(tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, "--workers=3", "--Gateway.port=0", f"--Gateway.state_dir={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.count("ssh-gateway: environment variable JUPYTERHUB_API_TOKEN is not set\n") == 1
    assert "Traceback" not in done.stderr


async def test_workers_import_nothing_from_the_folder_that_the_gateway_is_started_in(tmp_path: Path) -> None:
    for name in ("ssh_gateway", "asyncssh"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else is here')")
    arguments = ("--workers=2", "--Gateway.port=0", f"--Gateway.state_dir={tmp_path / 'state'}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTERHUB", "KUBE"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "ssh_gateway", *arguments),
        cwd=tmp_path, env=kept, stdin=PIPE, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    done = await finish(process)
    assert "environment variable JUPYTERHUB_API_TOKEN is not set" in done.err
    assert "somebody else" not in done.err


def test_workers_take_the_port_that_is_held_for_them_and_nobody_else_does() -> None:
    with listening.reserve("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with listening.listen("127.0.0.1", port, shared=True), listening.listen("127.0.0.1", port, shared=True):
            with pytest.raises(OSError, match="in use"):
                listening.listen("127.0.0.1", port)
            with pytest.raises(OSError, match="in use"):
                listening.reserve("127.0.0.1", port)
            listening.reserve("127.0.0.1", port, shared=True).close()
