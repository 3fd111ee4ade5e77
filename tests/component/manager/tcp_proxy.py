"""The wire between the proxy and a Manager, as it is when that process is killed, hangs, or is there again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class Wire:
    """Passes bytes on. Its address is the same after every ``cut`` and ``mend``."""

    port: int  # of what is behind it
    own: int = 0
    _speaks: asyncio.Event = field(default_factory=asyncio.Event)
    _ends: set[asyncio.StreamWriter] = field(default_factory=set)
    _passing: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.own}"

    async def mend(self) -> None:
        """It passes on again, what came meanwhile too."""
        self._speaks.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.own)
            self.own = int(self._server.sockets[0].getsockname()[1])

    def hang(self) -> None:
        """Connections are taken and nothing passes, as of a process that was stopped by a signal."""
        self._speaks.clear()

    async def cut(self) -> None:
        """Connections break and new ones are refused, as of a process that was killed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for end in self._ends:
            end.transport.abort()

    async def end(self) -> None:
        await self.cut()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            further_reader, further_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        for one, other in ((reader, further_writer), (further_reader, writer)):
            task = asyncio.create_task(self._pass(one, other))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            with contextlib.suppress(OSError):
                while part := await reader.read(65536):
                    await self._speaks.wait()
                    writer.write(part)
                    await writer.drain()
        finally:
            self._ends.discard(writer)
            writer.close()


@contextlib.asynccontextmanager
async def wired(port: int) -> AsyncIterator[Wire]:
    """A wire to this port that passes on."""
    wire = Wire(port)
    await wire.mend()
    try:
        yield wire
    finally:
        await wire.end()
