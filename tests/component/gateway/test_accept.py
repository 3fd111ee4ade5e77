"""Connections before SSH begins, behind a balancer with the PROXY protocol.

All of 127.0.0.0/8 is this machine, so that the balancer has an address of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ssh_gateway import accept
from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.core.addresses import read_networks
from ssh_gateway.session.context import GatewayLimits
from tests.component.gateway.peers import DEAR, Lab, Running, until
from tests.unit.gateway.test_accept import LOCAL, header

BALANCER = "127.0.0.9"
LIMITS = GatewayLimits(
    failure_seconds=0.0,
    drain_seconds=0.0,
    rules=replace(DEAR, connections_per_second=0.0),
    balancers=read_networks([f"{BALANCER}/32"]),
)


@pytest.fixture
async def behind(lab: Lab) -> AsyncIterator[Running]:
    async with lab.gateway(limits=LIMITS) as found:
        yield found


async def say_first(running: Running, first: bytes, source: str = BALANCER) -> bytes:
    """The answer to a connection from `source` with these first bytes, until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, local_addr=(source, 0))
    writer.write(first)
    heard = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return heard


async def test_balancer_without_a_valid_header_is_refused(behind: Running, caplog: pytest.LogCaptureFixture) -> None:
    heard = await say_first(behind, b"SSH-2.0-client\r\n")
    assert heard.startswith(accept.GREETING)
    assert accept.UNKNOWN.encode() in heard
    assert "no PROXY protocol header" in caplog.text
    assert f"source={BALANCER}" in caplog.text
    assert not behind.server.connections


async def test_incomplete_header_ends_the_connection_after_the_deadline(
    behind: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "HEADER_SECONDS", 0.2)
    assert accept.UNKNOWN.encode() in await say_first(behind, header("203.0.113.7")[:20])
    assert not behind.server._admission.arriving


async def test_unlisted_source_with_a_header_is_refused(
    lab: Lab, behind: Running, caplog: pytest.LogCaptureFixture
) -> None:
    heard = await say_first(behind, header("203.0.113.7") + b"SSH-2.0-client\r\n", source="127.0.0.8")
    assert accept.NOT_LISTED.encode() in heard
    assert 'source=127.0.0.8 what=connection why="this gateway takes no PROXY protocol header' in caplog.text
    assert "203.0.113.7" not in caplog.text
    direct = lab.client(behind, "direct")
    assert (await direct.ssh("alice+train@gateway", "echo in")).text == "in\n"


async def test_health_check_is_greeted_while_a_flood_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "FAREWELL_SECONDS", 60.0)  # they stay as long as the test asks
    limits = replace(LIMITS, rules=PenaltyRules(connections_per_second=0.01))
    async with lab.gateway(limits=limits) as running, contextlib.AsyncExitStack() as connections:
        admission = running.server._admission
        while len(admission.leaving) < accept.MOST_FAREWELLS:
            _, writer = await asyncio.open_connection("127.0.0.1", running.port)
            connections.callback(writer.close)
        assert await say_first(running, LOCAL) == accept.GREETING


async def test_health_checks_are_limited(behind: Running, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert len(behind.server._admission.checking) == 2


async def test_header_in_pieces_is_read(behind: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", behind.port, local_addr=(BALANCER, 0))
    for byte in header("203.0.113.7", more=b"\x04\x00\x03abc") + b"SSH-2.0-client\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"SSH-2.0-")
    await until(lambda: len(behind.server.connections) == 1)
    assert {visitor.client.source for visitor in behind.server.connections} == {"203.0.113.7"}
    writer.close()


async def test_silent_connections_of_a_balancer_are_limited(
    lab: Lab, behind: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "MOST_ARRIVING", 20)
    silent = [await asyncio.open_connection("127.0.0.1", behind.port, local_addr=(BALANCER, 0)) for _ in range(25)]
    await until(lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in silent) == 5)
    assert len(behind.server._admission.arriving) == 20
    direct = lab.client(behind, "direct")
    assert (await direct.ssh("alice+train@gateway", "echo in")).text == "in\n"
    for _, writer in silent:
        writer.close()
    await until(lambda: not behind.server._admission.arriving)
