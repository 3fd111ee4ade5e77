"""Key exchanges that a client begins and leaves end its connection; clients that are stopped are waited for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import asyncssh
import pytest
from asyncssh.packet import SSHPacket

from ssh_gateway import transport
from ssh_gateway.core import packets
from ssh_gateway.transport import server
from tests.component.gateway.hostile import Listener, drop, logged_in
from tests.component.gateway.peers import DEADLINE, Client, Running, finish, until

KEXINIT = 20


SECONDS = 0.5


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport.server, "EXCHANGE_SECONDS", SECONDS)
    monkeypatch.setattr(transport.server, "EXCHANGE_LOOK_SECONDS", 0.05)


def the_leg(running: Running) -> server.Downstream:
    (visitor,) = running.server.connections
    return visitor.client.leg


async def passes(seconds: float) -> None:
    """Time in which nothing is to happen."""
    await asyncio.sleep(seconds)


def begin_and_leave(conn: asyncssh.SSHClientConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin an exchange, and make nothing of the answer."""
    process: Callable[[int, int, SSHPacket], bool | Awaitable[None]] = conn.process_packet
    monkeypatch.setattr(
        conn, "process_packet", lambda kind, number, packet: kind == KEXINIT or process(kind, number, packet)
    )
    conn._send_kexinit()


@pytest.mark.parametrize("name", ["alice", "alice+train"], ids=["before a job is wanted", "with a job"])
async def test_abandoned_exchange_ends_the_connection_with_a_reason(
    running: Running, alices_key: asyncssh.SSHKey, mallory: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.job_directory.targets["mallory", "train"] = running.job_directory.targets["alice", "train"]
    listener = Listener()
    conn = await logged_in(running, alices_key, name, listener)
    leg = the_leg(running)
    begin_and_leave(conn, monkeypatch)
    await until(lambda: leg.rekeying)
    others = asyncio.create_task(mallory.ssh("mallory+train@gateway", "echo works"))
    await until(lambda: listener.why)
    assert listener.why == "a key exchange was not finished"
    assert (await others).text == "works\n"
    await until(lambda: not running.server.connections and not running.server.upstreams)


async def test_abandoned_exchange_on_a_jump_ends_only_the_stream(
    running: Running, alices_key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, listener = await logged_in(running, alices_key, "alice"), Listener()
    inner = await asyncssh.connect(
        "train", tunnel=outer, username="alice", client_keys=[alices_key], known_hosts=None, config=None,
        agent_path=None, client_factory=lambda: listener,
    )  # fmt: skip
    begin_and_leave(inner, monkeypatch)
    await until(lambda: listener.why)
    assert listener.why == "a key exchange was not finished"
    assert not outer.is_closed()
    drop(outer)


async def test_client_with_a_blocked_network_may_finish_its_exchange_late(
    running: Running, alices_key: asyncssh.SSHKey
) -> None:
    """It cannot have the answer yet: what it was sent before is in its way."""
    listener = Listener()
    conn = await logged_in(running, alices_key, "alice+train", listener)
    process = await conn.create_process("head -c 20000000 /dev/zero", encoding=None, window=2**30)
    leg = the_leg(running)
    conn._transport.pause_reading()
    await until(lambda: leg.blocked)
    conn._send_kexinit()
    conn._kexinit_sent = True
    await until(lambda: leg.rekeying)
    await passes(3 * SECONDS)
    conn._transport.resume_reading()
    assert len(await asyncio.wait_for(process.stdout.read(), 20)) == 20_000_000
    assert listener.why == ""
    assert not leg.rekeying
    drop(conn)


async def test_stopped_client_may_finish_the_gateway_s_exchange_late(
    running: Running, alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it began itself before, and finished, counts no more."""
    monkeypatch.setattr(
        transport.server, "EXCHANGE_SECONDS", DEADLINE
    )  # a busy machine may need longer for its own ones
    ssh = await alice.start("ssh", "-o", "RekeyLimit=1M", "alice+train@gateway", "head -c 3000000; echo; cat")
    ssh.stdin.write(bytes(3_000_000))
    assert await asyncio.wait_for(ssh.stdout.readexactly(3_000_001), 20) == bytes(3_000_000) + b"\n"
    leg = the_leg(running)
    await until(lambda: not leg.rekeying)
    monkeypatch.setattr(transport.server, "EXCHANGE_SECONDS", SECONDS)
    ssh.send_signal(signal.SIGSTOP)
    leg._send_kexinit()
    leg._kexinit_sent = True
    await passes(3 * SECONDS)
    assert leg.arrived
    assert leg.rekeying
    ssh.send_signal(signal.SIGCONT)
    done = await finish(ssh, b"on")
    assert (done.status, done.out) == (0, b"on"), done.err


async def test_flood_within_an_exchange_ends_the_connection(
    running: Running, alices_key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport.connection, "MOST_DEFERRED", 100)
    monkeypatch.setattr(transport.server, "EXCHANGE_SECONDS", 600.0)
    listener = Listener()
    conn = await logged_in(running, alices_key, "alice", listener)
    begin_and_leave(conn, monkeypatch)
    conn._kex_complete = True
    for _ in range(200):
        conn.send_packet(packets.GLOBAL_REQUEST, packets.text(b"keepalive@openssh.com") + b"\1")
    await until(lambda: listener.why)
    assert listener.why == "a key exchange was not finished"
