"""Waiting until a server accepts connections, so that the Hub's first look at it is not one too early.

The Hub looks again after pauses that grow to seconds. A connection is enough: what is accepted is answered as soon as
the server can, and whether the answer is right remains for the Hub to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from urllib.parse import urlsplit


def pauses() -> Iterator[float]:
    """Seconds between two tries: short enough not to be felt, long enough for fifty jobs at once."""
    return chain((0.05, 0.05, 0.1, 0.1, 0.2), repeat(0.25))


def port(url: str) -> int:
    """The URL's port, or that of its scheme, as the Hub fills it in."""
    place = urlsplit(url)
    return place.port or (443 if place.scheme == "https" else 80)


async def accepts(url: str) -> bool:
    """Whether somebody listens at the URL's address."""
    try:
        _, writer = await asyncio.open_connection(urlsplit(url).hostname, port(url))
    except OSError:
        return False
    writer.close()
    return True


async def accepts_soon(url: str, seconds: float = 3) -> bool:
    """The same within a moment: a network may also be silent."""
    try:
        async with asyncio.timeout(seconds):
            return await accepts(url)
    except TimeoutError:
        return False


async def until_accepting(url: str, seconds: float, alive: Callable[[], bool]) -> bool:
    """Whether the server accepts a connection before it is no longer alive, or the time is over."""
    wait = pauses()
    try:
        async with asyncio.timeout(seconds):
            while alive():
                if await accepts(url):
                    return True
                await asyncio.sleep(next(wait))
    except TimeoutError:
        pass
    return False
