"""Bounds of one connection: exchanges, unread answers, memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway import transport
from ssh_gateway.core.proof import TokenOwner, every_server
from ssh_gateway.session.relay import Relay
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.hostile import UNKNOWN, before_login, disconnect, drop, logged_in, pour
from tests.component.gateway.peers import (
    MIB,
    Client,
    FakeAuthBackend,
    FakeJobDirectory,
    Running,
    connect,
    finish,
    gateway,
    resident,
    the_relay,
    until,
)


async def test_second_key_exchange_before_the_login_is_refused(
    keys: GatewayKeys, job_directory: FakeJobDirectory
) -> None:
    """Each time costs the gateway a signature, and the client nothing (CVE-2002-20001, "DHEat")."""
    hub = FakeAuthBackend(tokens={"right": TokenOwner("alice", every_server)})

    async def attack(conn: asyncssh.SSHClientConnection) -> str:
        conn._send_kexinit()
        return "right"

    async with gateway(keys, hub, job_directory) as running:
        with pytest.raises(asyncssh.Error, match="new keys are for after the login"):
            await before_login(running, attack)
        conn = await connect(running.port, password="right")
        assert (await conn.run("echo in")).stdout == "in\n"
        await disconnect(conn)


async def deaf_flood(running: Running, conn: asyncssh.SSHClientConnection) -> None:
    """Ask for answers, and read none of them."""
    (visitor,) = running.server.connections
    visitor.client.leg.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
    )  # the kernel keeps little
    conn._transport.pause_reading()
    await pour(conn, UNKNOWN, bytes(8), MIB)


async def test_unread_answers_before_the_login_end_the_connection(
    running: Running, alice: Client, caplog: pytest.LogCaptureFixture
) -> None:
    before = resident()

    async def attack(conn: asyncssh.SSHClientConnection) -> None:
        await deaf_flood(running, conn)
        await until(lambda: not running.server.connections)
        drop(conn)

    with contextlib.suppress(asyncssh.Error, OSError):
        await before_login(running, attack)
    assert resident() - before < 32 * MIB
    assert any(transport.connection.UNREAD in record.getMessage() for record in caplog.records)
    assert (await alice.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_unread_answers_after_the_login_end_the_connection(
    running: Running, alice: Client, alices_key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport.connection, "MOST_UNSENT", MIB)
    conn = await logged_in(running, alices_key)
    await deaf_flood(running, conn)
    await until(lambda: not running.server.connections and not running.server.upstreams)
    drop(conn)
    assert (await alice.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def downloader(running: Running, key: asyncssh.SSHKey) -> asyncssh.SSHClientConnection:
    """A client with a window of 2 GiB that has begun to download for ever."""
    conn = await connect(running.port, client_keys=[key])  # fmt: skip
    await conn.create_session(
        asyncssh.SSHClientSession, "cat /dev/zero", encoding=None, window=2**31 - 1, max_pktsize=32768
    )
    return conn


async def stands_still(relay: Relay, seconds: float) -> int:
    """Bytes that have come down once nothing comes any more."""
    before, deadline = -1, asyncio.get_running_loop().time() + 20
    while relay.bytes_down != before:
        assert asyncio.get_running_loop().time() < deadline, "it never stands still"
        before = relay.bytes_down
        await asyncio.sleep(seconds)
    return before


async def test_client_that_stops_reading_behind_a_huge_window_costs_no_memory(
    running: Running, alices_key: asyncssh.SSHKey
) -> None:
    conn = await downloader(running, alices_key)
    conn._transport.pause_reading()  # what it does not read stays in the kernel, and then in the job
    before = resident()
    taken = await stands_still(the_relay(running), 0.3)
    assert taken < 64 * MIB
    assert resident() - before < 32 * MIB
    conn._transport.resume_reading()
    await until(lambda: the_relay(running).bytes_down > taken)
    conn.abort()
    await conn.wait_closed()


async def test_client_whose_network_vanishes_is_ended_and_loses_its_port_and_no_other_does(tmp_path: Path) -> None:
    """In networks of its own, with a computer that can vanish from them."""
    script = (sys.executable, "-m", "tests.component.gateway.vanishing", str(tmp_path))
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--user", "--map-root-user", "--net", *script),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )  # fmt: skip
    done = await finish(process, seconds=180)
    assert done.text.splitlines() == [
        "a port stays with a client that is there",
        "a port is taken over from one that is not",
        "one that is sent something is ended",
        "a suspended one stays",
    ], done.err
