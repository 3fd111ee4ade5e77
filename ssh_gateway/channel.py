"""Between the process that starts workers and each of them: one JSON list a line, both ways, on a pair of sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

LONGEST = 32 * 2**20  # all counts of a worker, or all of its metrics


def encoded(*message: Any) -> bytes:
    """A message as it is sent: made once, however many are to have it."""
    return json.dumps(message).encode("ascii") + b"\n"


class Channel:
    """One end. Nobody waits for what is sent to be read: both ends do nothing for long. Whoever sends without being
    asked looks at `unread` before.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def on(cls, end: socket.socket) -> Channel:
        return cls(*await asyncio.open_connection(sock=end, limit=LONGEST))

    def send(self, *message: Any) -> None:
        """Nothing when the other end is gone: `messages` says so."""
        self.pass_on(encoded(*message))

    def pass_on(self, message: bytes) -> None:
        """`send` what is `encoded` already."""
        if not self._writer.is_closing():
            self._writer.write(message)

    async def receive(self) -> list[Any] | None:
        """The next message; ``None`` when the other end is gone."""
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        return list(json.loads(line)) if line.endswith(b"\n") else None

    async def messages(self) -> AsyncIterator[list[Any]]:
        """All there are until the other end is gone."""
        while (message := await self.receive()) is not None:
            yield message

    def unread(self) -> int:
        """How many bytes the other end has left unread, beside what the kernel keeps."""
        return self._writer.transport.get_write_buffer_size()

    def close(self) -> None:
        self._writer.close()
