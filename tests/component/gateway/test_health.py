"""The port that Kubernetes probes."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from ssh_gateway import metrics
from ssh_gateway.metrics import OK, STOPPING, HealthAnswer, HealthServer


async def test_any_request_is_answered_with_200() -> None:
    server = await HealthServer().serve("127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")


async def test_one_that_stops_is_alive_and_not_ready() -> None:
    ready = [True]
    server = await HealthServer(ready=lambda: ready[0]).serve("127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, aiohttp.ClientSession() as session:
        for expected in (200, 503):
            async with session.get(f"http://{host}:{port}/ready") as answer:
                assert answer.status == expected
            async with session.get(f"http://{host}:{port}/") as answer:
                assert answer.status == 200
            ready[0] = False


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /ready HTTP/1.1\r\n\r\n", STOPPING),
        (b"GET /ready?x=1 HTTP/1.1\r\nHost: x\r\n\r\n", STOPPING),
        (b"GET /readyness HTTP/1.1\r\n\r\n", OK),
        (b"GET / HTTP/1.1\r\nX: /ready\r\n\r\n", OK),
        (b"\r\n\r\n", OK),
        (b"\xff\x00 \r\n\r\n", OK),
    ],
    ids=["readiness", "with a query", "another address", "in a header", "nothing", "nonsense"],
)
async def test_only_its_own_address_is_readiness(request_: bytes, answer: HealthAnswer) -> None:
    assert await HealthServer(ready=lambda: False).answer(request_) is answer


async def test_who_says_nothing_or_nonsense_keeps_nobody_from_being_answered() -> None:
    server = await HealthServer().serve("127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, aiohttp.ClientSession() as session:
        _, silent = await asyncio.open_connection(host, port)
        reader, loud = await asyncio.open_connection(host, port)
        loud.write(b"x" * 100_000)
        assert await reader.read() == b""
        async with session.get(f"http://{host}:{port}/") as answer:
            assert answer.status == 200
        silent.close()
        loud.close()


async def test_silent_client_is_disconnected_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SECONDS", 0.05)
    server = await HealthServer().serve("127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
