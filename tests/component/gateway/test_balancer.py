"""Behind a balancer that says who the client is: OpenSSH through one, and bare sockets for who breaks the rules.

All of 127.0.0.0/8 is this machine, so that the balancer has an address of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway import accept
from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.core.addresses import read_networks
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, Running, gateway, until
from tests.component.gateway.test_gate import HELD_UP, guesses
from tests.component.gateway.test_proxied import LOCAL, header

BALANCER = "127.0.0.9"
LIMITS = GatewayLimits(
    failure_seconds=0.0,
    drain_seconds=0.0,
    rules=PenaltyRules(
        penalty_seconds=600.0, connections_per_second=0.0
    ),  # time pays nothing, however slow this machine is
    balancers=read_networks([f"{BALANCER}/32"]),
)


@pytest.fixture
async def behind(keys: GatewayKeys, people: FakePeople, places: FakePlaces) -> AsyncIterator[Running]:
    async with gateway(keys, people, places, limits=LIMITS) as found:
        yield found


@contextlib.asynccontextmanager
async def balancer(running: Running, first: bytes) -> AsyncIterator[Running]:
    """A balancer at its address that begins each connection with `first`; the gateway as seen through it."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection("127.0.0.1", running.port, local_addr=(BALANCER, 0))
        on.write(first)
        await asyncio.gather(copy(reader, on), copy(back, writer))
        for end in (on, writer):
            end.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as listening:
        yield replace(running, port=listening.sockets[0].getsockname()[1])


async def say_first(running: Running, first: bytes, source: str = BALANCER) -> bytes:
    """What is answered to somebody at `source` who says this first, until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, local_addr=(source, 0))
    writer.write(first)
    heard = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return heard


@pytest.mark.parametrize("source", ["203.0.113.7", "2001:db8:1:2::7"], ids=["of IPv4", "of IPv6"])
async def test_the_clients_own_address_is_logged_and_pays(  # noqa: PLR0917  (fixtures)
    behind: Running,
    keys: GatewayKeys,
    alices_key: asyncssh.SSHKey,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    source: str,
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    async with balancer(behind, header(source)) as theirs, balancer(behind, header("198.51.100.1")) as other:
        client = Client(tmp_path / "theirs", theirs.port, alices_key, keys.host)
        done = await client.ssh("alice+train@gateway", "cat", feed=b"x" * 3_000_000)
        assert (done.status, len(done.out)) == (0, 3_000_000), done.err
        assert f"source={source}" in caplog.text
        for name in ("alice+train", "bob+train"):
            await guesses(theirs, name)
        assert HELD_UP in await guesses(theirs, "carol+train")
        assert HELD_UP in (await client.ssh("alice+train@gateway", "echo in")).err
        neighbour = Client(tmp_path / "other", other.port, alices_key, keys.host)
        assert (await neighbour.ssh("alice+train@gateway", "echo in")).text == "in\n"


@pytest.mark.parametrize(
    ("first", "logged"),
    [
        pytest.param(b"SSH-2.0-client\r\n", "no PROXY protocol header", id="no header"),
        pytest.param(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 22\r\n", "of version 1, not 2", id="version 1"),
        pytest.param(header("203.0.113.7", family=0), "address family 0x00", id="nobody known"),
    ],
)
async def test_a_balancer_that_does_not_say_who_it_is_lets_nobody_in(
    behind: Running, caplog: pytest.LogCaptureFixture, first: bytes, logged: str
) -> None:
    heard = await say_first(behind, first)
    assert heard.startswith(accept.GREETING)
    assert accept.UNKNOWN.encode() in heard
    assert logged in caplog.text
    assert f"source={BALANCER}" in caplog.text
    assert not behind.server.connections


async def test_a_header_that_does_not_come_is_not_waited_for(behind: Running) -> None:
    behind.server._lobby.header_seconds = 0.2
    assert accept.UNKNOWN.encode() in await say_first(behind, header("203.0.113.7")[:20])
    assert not behind.server._lobby.arriving


async def test_who_is_not_listed_cannot_choose_an_address(
    behind: Running, keys: GatewayKeys, alices_key: asyncssh.SSHKey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    heard = await say_first(behind, header("203.0.113.7") + b"SSH-2.0-client\r\n", source="127.0.0.8")
    assert accept.NOT_LISTED.encode() in heard
    assert 'source=127.0.0.8 what=connection why="this gateway takes no PROXY protocol header' in caplog.text
    assert "203.0.113.7" not in caplog.text
    direct = Client(tmp_path / "direct", behind.port, alices_key, keys.host)
    assert (await direct.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_a_health_check_reads_the_greeting_and_leaves_no_trace(
    behind: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    for _ in range(50):
        assert await say_first(behind, LOCAL) == accept.GREETING
    await until(lambda: not behind.server._lobby.checking)
    assert "event=" not in caplog.text
    assert not behind.server.penalties._sources


async def test_a_health_check_reads_the_greeting_while_more_strangers_are_sent_away_than_there_are_words_for(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "FAREWELL_SECONDS", 60.0)  # they stay as long as the test asks
    limits = replace(LIMITS, rules=PenaltyRules(connections_per_second=0.01))
    async with gateway(keys, people, places, limits=limits) as running, contextlib.AsyncExitStack() as streets:
        lobby = running.server._lobby
        while len(lobby.leaving) < accept.MOST_FAREWELLS:
            _, writer = await asyncio.open_connection("127.0.0.1", running.port)
            streets.callback(writer.close)
        assert await say_first(running, LOCAL) == accept.GREETING


async def test_health_checks_have_a_bound_of_their_own(behind: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "FAREWELL_SECONDS", 60.0)
    monkeypatch.setattr(accept, "MOST_CHECKS", 2)
    async with contextlib.AsyncExitStack() as checks:
        for answer in (accept.GREETING, accept.GREETING, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", behind.port, local_addr=(BALANCER, 0))
            checks.callback(writer.close)
            writer.write(LOCAL)
            heard = b""
            with contextlib.suppress(ConnectionResetError):
                heard = await asyncio.wait_for(reader.read(), 20)
            assert heard == answer
        assert len(behind.server._lobby.checking) == 2


async def test_a_header_in_pieces_with_the_first_words_behind_it_is_one(behind: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", behind.port, local_addr=(BALANCER, 0))
    for byte in header("203.0.113.7", more=b"\x04\x00\x03abc") + b"SSH-2.0-client\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"SSH-2.0-")
    await until(lambda: len(behind.server.connections) == 1)
    assert {visitor._source for visitor in behind.server.connections} == {"203.0.113.7"}
    writer.close()


async def test_connections_that_say_nothing_are_bounded(
    behind: Running, monkeypatch: pytest.MonkeyPatch, keys: GatewayKeys, alices_key: asyncssh.SSHKey, tmp_path: Path
) -> None:
    monkeypatch.setattr(accept, "MOST_ARRIVING", 20)
    silent = [await asyncio.open_connection("127.0.0.1", behind.port, local_addr=(BALANCER, 0)) for _ in range(25)]
    await until(lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in silent) == 5)
    assert len(behind.server._lobby.arriving) == 20
    direct = Client(tmp_path / "direct", behind.port, alices_key, keys.host)
    assert (await direct.ssh("alice+train@gateway", "echo in")).text == "in\n"
    for _, writer in silent:
        writer.close()
    await until(lambda: not behind.server._lobby.arriving)
