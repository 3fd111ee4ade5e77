"""Faults in the middle: jobs that die or are hostile, slow logins, a killed gateway, outages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from dlspawner.clients.manager import StartStatus
from ssh_gateway.backends.directory import SshEndpoint
from ssh_gateway.core import packets
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import JOB, MIB, Client, Lab, Running, Sshd, finish, log_lines, until
from tests.harness.ports import free_port

HARM = "\x1b[2J\u202eevil\nevent=open"


def too_large(conn: asyncssh.SSHServerConnection) -> None:
    conn.send_packet(packets.CHANNEL_DATA, bytes(4), packets.text(bytes(MIB)))


def malformed(conn: asyncssh.SSHServerConnection) -> None:
    conn._send(random.Random(7).randbytes(100_000))


def without_a_channel(conn: asyncssh.SSHServerConnection) -> None:
    conn.send_packet(packets.CHANNEL_DATA)


def unknown(conn: asyncssh.SSHServerConnection) -> None:
    for kind in [*range(8, 20), *range(101, 256)]:
        conn.send_packet(kind, bytes(8))
    conn.disconnect(2, "done")


def rude(conn: asyncssh.SSHServerConnection) -> None:
    conn.disconnect(2, HARM)


HARMS: dict[str, tuple[Callable[[asyncssh.SSHServerConnection], None], str]] = {
    "a packet larger than any": (too_large, "the connection to your job was lost"),
    "bytes that are no packet": (malformed, "the connection to your job was lost"),
    "a packet that ends too early": (without_a_channel, "the connection to your job was lost"),
    "every unknown kind of packet": (unknown, ""),
    "a reason that would move a terminal": (rude, "evil"),
}


class Job(asyncssh.SSHServer):
    """A replaced sshd in a pod: it accepts the gateway's login, and then sends harmful packets."""

    def __init__(self, harm: Callable[[asyncssh.SSHServerConnection], None]) -> None:
        self._harm = harm

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn

    def begin_auth(self, username: str) -> bool:
        return False

    def session_requested(self) -> bool:
        self._harm(self._conn)  # before any answer is sent
        return False


@contextlib.asynccontextmanager
async def hostile(harm: Callable[[asyncssh.SSHServerConnection], None]) -> AsyncIterator[SshEndpoint]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key], server_factory=lambda: Job(harm))
    host_key = key.export_public_key().decode().strip()
    async with server:
        yield SshEndpoint(JOB, "alice", "train", "127.0.0.1", server.get_port(), "person", host_key)


@pytest.mark.parametrize(("harm", "said"), HARMS.values(), ids=HARMS)
async def test_hostile_job_ends_its_own_session_only(  # noqa: PLR0917  (fixtures)
    alice: Client,
    running: Running,
    sshd: Sshd,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[asyncssh.SSHServerConnection], None],
    said: str,
) -> None:
    async with hostile(harm) as target:
        running.job_directory.targets["alice", "train"] = target
        running.job_directory.targets["alice", "eval"] = replace(sshd.target(), server="eval")
        other = await alice.begin("alice+eval@gateway", "echo in; read line; echo $line")
        done = await alice.ssh("alice+train@gateway", "echo in")
        assert (done.status, done.out) == (255, b"")
        assert said in done.err
        assert "\x1b" not in done.err
        assert (await finish(other, b"works on\n")).text == "works on\n"
    await until(lambda: not running.server.connections and not running.server.upstreams)
    lines = log_lines(caplog)
    assert all(text.isascii() and text.isprintable() and len(text) < 1000 for text in lines)
    assert all(record.exc_info is None for record in caplog.records)


@pytest.fixture
async def own_job(keys: GatewayKeys, running: Running, tmp_path: Path) -> AsyncIterator[Sshd]:
    """An sshd that a test may kill."""
    made = Sshd(tmp_path / "own", keys.user_ca, free_port())
    made.start()
    running.job_directory.targets["alice", "train"] = made.target()
    yield made
    made.stop()


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_job_killed_in_a_transfer_ends_it_with_a_reason(
    alice: Client, running: Running, own_job: Sshd, direction: str
) -> None:
    command = "cat > /dev/null" if direction == "up" else "cat /dev/zero"
    process = await alice.start("ssh", "alice+train@gateway", command)
    moving = asyncio.create_task(move(process, up=direction == "up"))
    await until(lambda: sum(amount(running)) > 8 * MIB)
    kill_all(own_job)
    err = await asyncio.wait_for(moving, 30)
    assert await asyncio.wait_for(process.wait(), 30) == 255
    assert b"the connection to your job was lost" in err


async def test_client_of_a_job_that_ends_by_itself_reads_so_although_the_cluster_sees_it_later(
    lab: Lab, own_job: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, running_then = list[object](), lab.job_directory.running

    async def running_at_first(jobs: object) -> frozenset[str]:
        looks.extend([jobs] if jobs else [])
        return await running_then(jobs) if len(looks) <= 1 else frozenset()

    monkeypatch.setattr(lab.job_directory, "running", running_at_first)
    lab.job_directory.targets["alice", "train"] = own_job.target()
    async with lab.gateway(interval=600) as running:
        ssh = await lab.client(running).begin("alice+train@gateway", "echo in; read line")
        lab.auth_backend.stages = [StartStatus("ended", "Its program has failed: exit code 3.", job=JOB)]
        kill_all(own_job)
        done = await finish(ssh, b"")
        assert "train: Its program has failed: exit code 3." in done.err
    assert len(looks) == 2


@pytest.mark.parametrize("way", ["a command", "a forward", "a command by -J"])
async def test_client_of_a_stopped_job_reads_why(lab: Lab, own_job: Sshd, way: str) -> None:
    """Before the gateway's next look at all sessions: when the job stops a program, or is gone."""
    options = {"a command": ("alice+train@gateway",), "a command by -J": ("-J", "alice@gateway", "train")}
    forward = ("-N", "-o", "PermitLocalCommand=yes", "-o", "LocalCommand=echo in", "alice+train@gateway")
    command = (*options[way], "echo in; read line; kill -HUP $$") if way in options else forward
    lab.job_directory.targets["alice", "train"] = own_job.target()
    async with lab.gateway(interval=600) as running:
        ssh = await lab.client(running).begin(*command)
        lab.auth_backend.stages = [StartStatus("stopping", "It was idle: “Start again”.", job=JOB)]
        lab.job_directory.targets.clear()
        if way == "a forward":
            kill_all(own_job)
        done = await finish(ssh, b"\n")
        assert (done.status, 'train: It was idle: "Start again".' in done.err) == (255, True), done.err
        await until(lambda: not running.server.connections and not running.server.upstreams)


def kill_all(job: Sshd) -> None:
    """As a pod is killed: all processes at one moment, so that no sshd reports how its program ended."""
    assert job.process is not None
    inside, more = set[int](), {job.process.pid}
    while more:  # what is stopped starts nothing more
        send(signal.SIGSTOP, more)
        inside |= more
        parents = {int(found[0]): int(found[3]) for found in map(stat, Path("/proc").glob("[0-9]*")) if found}
        more = {pid for pid, parent in parents.items() if parent in inside} - inside
    send(signal.SIGKILL, inside)


def send(number: signal.Signals, processes: set[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stat(process: Path) -> list[str]:
    """Number, name, state and parent of a process; nothing of one that is gone."""
    try:
        number, _, rest = (process / "stat").read_text().partition(" (")
    except OSError:
        return []
    return [number, "", *rest.rpartition(") ")[2].split()]


def amount(running: Running) -> tuple[int, int]:
    inside = running.server._inside()
    return inside.up, inside.down


async def move(process: asyncio.subprocess.Process, *, up: bool) -> bytes:
    """Feed or only read a client until it ends; what it said."""
    said = asyncio.create_task(process.stderr.read())
    reading = asyncio.create_task(read_all(process.stdout))
    with contextlib.suppress(ConnectionError):
        while up:
            process.stdin.write(bytes(65536))
            await process.stdin.drain()
    await reading
    return await said


async def read_all(stream: asyncio.StreamReader) -> None:
    while await stream.read(MIB):
        pass


NO_CLUSTER = "the cluster does not answer: try again later"
NO_MANAGER = "the keys service does not answer: try again later, or use a token"
AWAY: dict[str, tuple[str, bool, str | None]] = {
    "the Hub, with a key": ("hub", False, None),
    "the Hub, with a token": ("hub", True, "the Hub does not answer: try again later"),
    "the Manager, with a key": ("manager", False, NO_MANAGER),
    "the Manager, with a token": ("manager", True, None),
    "the cluster, with a key": ("cluster", False, NO_CLUSTER),
    "the cluster, with a token": ("cluster", True, NO_CLUSTER),
}


def set_down(running: Running, part: str, *, down: bool) -> None:
    if part == "hub":
        running.auth_backend.down = down
    elif part == "manager":
        running.auth_backend.manager_down = down
    else:
        running.job_directory.down = down


@pytest.mark.parametrize(("part", "by_token", "told"), AWAY.values(), ids=AWAY)
async def test_outage_is_told_to_logins_and_ends_no_session(
    alice: Client, running: Running, caplog: pytest.LogCaptureFixture, part: str, told: str | None, *, by_token: bool
) -> None:
    running.auth_backend.tokens["secret"] = TokenOwner("alice", every_server)
    env, options = alice.with_token("secret") if by_token else ({}, [])
    login = (*options, *(["-o", "PubkeyAuthentication=no"] if by_token else []), "alice+train@gateway")
    ssh = await alice.begin(*login, "echo in; read line; echo $line", env=env)
    set_down(running, part, down=True)
    done = await alice.ssh(*login, "echo in", env=env)
    said = {line.strip().rpartition(":7: ")[2] for line in done.err.splitlines() if "answer" in line}
    assert (done.status, done.text) == ((0, "in\n") if told is None else (255, "")), done.err
    assert said == (set() if told is None else {told}), done.err
    rounds = running.server.revalidator
    for _ in range(20):
        await rounds.round()
    assert (await finish(ssh, b"works on\n")).text == "works on\n"
    set_down(running, part, down=False)
    assert (await alice.ssh(*login, "echo in", env=env)).text == "in\n"
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    found = [one for one in warnings if "event=activity" not in one and "event=sessions" not in one]
    assert 1 <= len(found) <= 2, warnings
    assert all("event=revalidation" in one for one in found), warnings
