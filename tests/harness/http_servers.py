"""HTTP servers of a few lines, as a test wants their answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web


@contextlib.asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Yields the address of a server whose answers are given."""
    listening = socket.create_server(("127.0.0.1", 0))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    await runner.cleanup()


async def never(_: web.Request) -> web.Response:
    """Gives no answer."""
    await asyncio.Event().wait()
    raise AssertionError("it never ends")
