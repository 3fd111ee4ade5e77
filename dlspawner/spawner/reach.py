"""Tests that a server can be reached.

A start waits until it accepts connections, so that the Hub's first look at it is not one too early: the Hub looks again
after pauses that grow to seconds. A connection is enough there: what is accepted is answered as soon as the server can,
and whether the answer is right remains for the Hub to say. After a restart of the Hub, when nothing may take long, it
is the answer that counts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from ssl import SSLContext
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

_ASKED_AT_ONCE = 20  # servers, each of which holds up the event loop for half a millisecond
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def retry_pauses() -> Iterator[float]:
    """Seconds between two tries: short enough not to be felt, long enough for fifty jobs at once."""
    return chain((0.05, 0.05, 0.1, 0.1, 0.2), repeat(0.25))


def port_of(url: str) -> int:
    """The URL's port, or that of its scheme, as the Hub fills it in."""
    place = urlsplit(url)
    return place.port or (443 if place.scheme == "https" else 80)


async def accepts(url: str) -> bool:
    """True if a server listens at the URL's address."""
    try:
        _, writer = await asyncio.open_connection(urlsplit(url).hostname, port_of(url))
    except OSError:
        return False
    writer.close()
    return True


async def answers_soon(url: str, tls: SSLContext | None = None, seconds: float = 3) -> bool:
    """True if a web server answers at the URL within seconds, with anything but a server error.

    Few are asked at once, and the moment begins with a server's turn: a Hub that was restarted asks thousands.
    """
    turns = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_ASKED_AT_ONCE))
    async with turns:
        return await _answers(url, tls, seconds)


async def _answers(url: str, tls: SSLContext | None, seconds: float) -> bool:
    place = urlsplit(url)
    request = f"GET {place.path or '/'} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(place.hostname, port_of(url), ssl=tls)
            try:
                writer.write(request.encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, ValueError):  # no server, silence, another protocol, a line without an end
        return False
    return re.match(rb"HTTP/1\.[01] [1-4][0-9][0-9]\b", status) is not None


async def until_accepting(url: str, seconds: float, alive: Callable[[], bool]) -> bool:
    """Waits until the server accepts a connection; false if it ended first, or the time is over."""
    wait = retry_pauses()
    try:
        async with asyncio.timeout(seconds):
            while alive():
                if await accepts(url):
                    return True
                await asyncio.sleep(next(wait))
    except TimeoutError:
        pass
    return False
