"""What one client can cost: memory stays flat, and hostile names go nowhere."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.keys import Keys
from ssh_gateway.logs import line
from ssh_gateway.penalties import Rules
from ssh_gateway.proxy import Relay
from ssh_gateway.server import Limits
from tests.gateway.peers import Client, FakePeople, FakePlaces, Running, Sshd, gateway, until

MIB = 2**20


def resident() -> int:
    """Bytes of this process (gateway included) that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def the_relay(running: Running) -> Relay:
    (visitor,) = running.server.visitors
    assert visitor.visit is not None
    assert visitor.visit._relay is not None
    return visitor.visit._relay


async def downloader(running: Running, key: asyncssh.SSHKey) -> asyncssh.SSHClientConnection:
    """A client with a window of 2 GiB that has begun to download for ever."""
    conn = await asyncssh.connect(
        "127.0.0.1", running.port, username="alice+train", client_keys=[key], known_hosts=None, config=None,
        agent_path=None,
    )  # fmt: skip
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


async def test_a_client_that_stops_reading_behind_a_huge_window_costs_no_memory(
    running: Running, alices_key: asyncssh.SSHKey
) -> None:
    conn = await downloader(running, alices_key)
    conn._transport.pause_reading()  # what it does not read stays in the kernel, and then in the job
    before = resident()
    taken = await stands_still(the_relay(running), 0.3)
    assert taken < 64 * MIB
    assert resident() - before < 32 * MIB
    conn.abort()
    await conn.wait_closed()


async def test_a_key_exchange_that_is_never_finished_costs_no_memory(
    running: Running, alices_key: asyncssh.SSHKey
) -> None:
    conn = await downloader(running, alices_key)
    relay = the_relay(running)
    await until(lambda: relay.bytes_down > MIB)
    conn._send_kexinit()
    conn._recv_handler = lambda: False  # it listens, and says nothing more
    before = resident()
    taken = await stands_still(relay, 0.3)
    assert resident() - before < 96 * MIB  # the client's own unread input is in this process too
    await asyncio.sleep(0.5)
    assert relay.bytes_down == taken
    conn.abort()
    await conn.wait_closed()


async def test_others_work_on_while_one_client_stands_still(
    running: Running, alices_key: asyncssh.SSHKey, alice: Client
) -> None:
    conn = await downloader(running, alices_key)
    conn._transport.pause_reading()
    assert (await alice.ssh("alice+train@gateway", "echo works")).text == "works\n"
    conn.abort()
    await conn.wait_closed()


async def test_a_job_that_dies_in_the_middle_ends_the_session_with_a_reason(
    alice: Client, running: Running, sshd: Sshd
) -> None:
    ssh = await alice.start("ssh", "alice+train@gateway", "echo begun; sleep 60")
    assert ssh.stdout is not None
    assert await asyncio.wait_for(ssh.stdout.readline(), 15) == b"begun\n"
    (pod,) = running.server.pods
    assert pod._transport is not None
    pod._transport.abort()
    _, err = await asyncio.wait_for(ssh.communicate(), 15)
    assert b"the connection to your job was lost" in err
    assert ssh.returncode == 255


async def test_a_client_that_dies_leaves_nothing_behind(alice: Client, running: Running) -> None:
    ssh = await alice.start("ssh", "alice+train@gateway", "echo begun; sleep 60")
    assert ssh.stdout is not None
    await asyncio.wait_for(ssh.stdout.readline(), 15)
    ssh.kill()
    await ssh.communicate()
    await until(lambda: not running.server.visitors and not running.server.pods)
    assert running.server.doorkeeper.waiting.total() == 0


async def test_the_gateway_says_that_it_stops(alice: Client, running: Running) -> None:
    ssh = await alice.start("ssh", "alice+train@gateway", "echo begun; sleep 60")
    assert ssh.stdout is not None
    await asyncio.wait_for(ssh.stdout.readline(), 15)
    await running.server.stop()
    _, err = await asyncio.wait_for(ssh.communicate(), 15)
    assert b"the gateway is stopping: connect again in a moment" in err


def hostile_names(count: int) -> list[str]:
    chosen = random.Random(7)
    pieces = ["../", "\x1b[2J", "\n", "\u202e", "alice", "+", "train", "%2f", "а", "'", '"', "$(id)", "\t", " "]
    return ["".join(chosen.choices(pieces, k=chosen.randint(1, 12))) for _ in range(count)]


async def refusals(running: Running, names: list[str]) -> int:
    """Log in under every name in turn, with OpenSSH's way to change it; how many connections that took."""
    left = iter(names)
    connections, name = 0, next(left)

    class Changeling(asyncssh.SSHClient):
        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            self.connection = conn

        def password_auth_requested(self) -> str | None:
            nonlocal name
            self.connection._username = name
            name = next(left, "")
            return "wrong" if name else None

    while name:
        connections += 1
        with pytest.raises((asyncssh.Error, OSError)):
            await asyncssh.connect(
                "127.0.0.1", running.port, username="alice", client_keys=None, known_hosts=None, config=None,
                agent_path=None, preferred_auth="password", client_factory=Changeling,
            )  # fmt: skip
    return connections


@pytest.mark.slow
async def test_ten_thousand_hostile_login_names_let_nobody_in_and_leave_clean_logs(
    keys: Keys, people: FakePeople, places: FakePlaces, alices_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    limits = Limits(attempts=100_000, failure_seconds=0.0, rules=Rules(penalty_seconds=0.0, connections_per_second=0.0))
    async with gateway(keys, people, places, limits=limits) as running:
        await refusals(running, hostile_names(200))
        before = resident()
        assert await refusals(running, [*hostile_names(10_000), *("x" * size for size in (255, 256, 65_536))]) > 1
        assert resident() - before < 64 * MIB
        async with asyncssh.connect(
            "127.0.0.1", running.port, username="alice+train", client_keys=[alices_key], known_hosts=None, config=None,
            agent_path=None,
        ) as alice:  # fmt: skip
            assert (await alice.run("echo in")).stdout == "in\n"
    lines = [record.getMessage() for record in caplog.records if record.name == "ssh_gateway"]
    assert sum("result=failed" in text for text in lines) > 1_000
    assert sum("result=proven" in text for text in lines) == 1
    assert all(text.isascii() and text.isprintable() and len(text) < 1000 for text in lines)
    assert all(name.isprintable() and "/" not in name and len(name) <= 255 for name in people.asked)


async def test_hostile_login_names_get_the_common_answer_and_leave_clean_logs(
    running: Running, mallorys_key: asyncssh.SSHKey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    names = [*hostile_names(30), "x" * 900, "x" * 64_000]
    for name in names:
        with pytest.raises((asyncssh.Error, UnicodeError, ValueError)) as refused:
            await asyncssh.connect(
                "127.0.0.1", running.port, username=name, client_keys=[mallorys_key], known_hosts=None, config=None,
                agent_path=None,
            )  # fmt: skip
        assert not isinstance(refused.value, asyncssh.ConnectionLost) or len(name) > 1000
    assert all(record.getMessage().isprintable() for record in caplog.records if record.name == "ssh_gateway")
    assert all(len(record.getMessage()) < 2000 for record in caplog.records if record.name == "ssh_gateway")


def test_a_log_line_quotes_what_is_not_plain() -> None:
    assert line("auth", conn=3, login="alice+train", why=None) == "event=auth conn=3 login=alice+train"
    assert line("auth", login="a\nevent=x \x1b") == 'event=auth login="a\\nevent=x \\u001b"'
    assert len(line("auth", login="x" * 10_000)) < 300
