"""The port that Kubernetes probes."""

from __future__ import annotations

import asyncio

import aiohttp

from ssh_gateway import health


async def test_any_request_is_answered_with_200() -> None:
    server = await health.serve("127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")


async def test_who_says_nothing_or_nonsense_keeps_nobody_from_being_answered() -> None:
    server = await health.serve("127.0.0.1", 0)
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
