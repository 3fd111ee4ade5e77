"""The Hub's connections to the Manager: kept for what is asked next, and one of its own for whatever is asked again.

Behind the Manager's address there may be several, of which one decides; which, may just be changing. So what was not
answered is asked again by a new connection: all that are kept may lead to a Manager that stands by, or to a machine
that is off. Closed while nobody needed it, a connection has carried no question, and aiohttp makes a new one.

There is one pool for each event loop. A spawner has no moment at which it could close what it keeps: the pool has a
task of its own, and asyncio, JupyterHub and tests all end by cancelling every task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

CONNECT_SECONDS = 5.0  # one of several Managers may be on a machine that is off
SILENT_SECONDS = 5.0  # and may have been switched off after the connection was made
IDLE_SECONDS = 60.0  # less than after which the Manager closes it
_POOLS: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
_CLOSING: set[asyncio.Task[None]] = set()


@contextlib.asynccontextmanager
async def manager_session(*, kept: bool) -> AsyncIterator[aiohttp.ClientSession]:
    """To ask with, once: by a connection that is ``kept``, or by a new one that is closed afterwards."""
    if kept:
        yield _pool()
        return
    connector = aiohttp.TCPConnector(force_close=True, resolver=aiohttp.ThreadedResolver())
    limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as own:
        yield own


def _pool() -> aiohttp.ClientSession:
    loop = asyncio.get_running_loop()
    pool = _POOLS.get(loop)
    if pool is None:
        # The resolver that is aiohttp's default with aiodns reads the system's configuration for every session.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, resolver=aiohttp.ThreadedResolver())
        limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        pool = aiohttp.ClientSession(connector=connector, timeout=limits, cookie_jar=aiohttp.DummyCookieJar())
        _POOLS[loop] = pool
        closing = loop.create_task(_close_at_the_end(pool), name="connections to the Manager")
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)
    return pool


async def _close_at_the_end(pool: aiohttp.ClientSession) -> None:
    loop = asyncio.get_running_loop()
    try:
        await loop.create_future()
    finally:
        del _POOLS[loop]
        await pool.close()
