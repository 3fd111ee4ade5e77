"""The gate: a connection is judged by its address before anything of SSH is made for it.

Who is sent away reads why: SSH's greeting and one DISCONNECT in clear, which every client shows. That costs neither a
key exchange nor an object of asyncssh's, and of too many at a time the rest are dropped without words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ssh_gateway import packets

GREETING = b"SSH-2.0-dlspawner\r\n"
TOO_MANY_CONNECTIONS = 12
FAREWELL_SECONDS = 1.0
MOST_FAREWELLS = 256


class Gate(asyncio.Protocol):
    """One new connection: handed on to what ``inside`` makes, or sent away; ``leaving`` holds those who are."""

    def __init__(
        self, admit: Callable[[str], str | None], inside: Callable[[], asyncio.Protocol], leaving: set[Gate]
    ) -> None:
        self._admit = admit
        self._inside = inside
        self._leaving = leaving
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a stream expected")
        refusal = self._admit(str((transport.get_extra_info("peername") or ("",))[0]))
        if refusal is None:
            inside = self._inside()
            transport.set_protocol(inside)
            inside.connection_made(transport)
        elif len(self._leaving) >= MOST_FAREWELLS:
            transport.abort()
        else:
            self._send_away(transport, refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leaving.discard(self)

    def drop(self) -> None:
        """Close without waiting for the client to read."""
        if self._transport is not None:
            self._transport.abort()

    def _send_away(self, transport: asyncio.Transport, why: str) -> None:
        """Closed in one direction first: bytes that meet a closed socket would reset it, and the words be lost."""
        self._transport = transport
        self._leaving.add(self)
        transport.write(GREETING + packets.in_clear(packets.disconnect(TOO_MANY_CONNECTIONS, why)))
        transport.write_eof()
        asyncio.get_running_loop().call_later(FAREWELL_SECONDS, transport.abort)
