"""Servers and streams that forwards are tried with."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from tests.component.gateway.peers import DEADLINE

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """A server on the loopback, which job and client share, that sends everything back."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def echo_socket(path: Path) -> AsyncIterator[None]:
    """As `echo_server`, on a socket of the file system."""
    server = await asyncio.start_unix_server(_echo, str(path))
    try:
        yield
    finally:
        server.close()


async def answer_over(where: int | Path, payload: bytes) -> bytes:
    """What comes back from a port of the loopback, or a socket, that is about to listen."""

    async def connect() -> Stream:
        if isinstance(where, Path):
            return await asyncio.open_unix_connection(str(where))
        return await asyncio.open_connection("127.0.0.1", where)

    reader, writer = await _when_it_listens(connect)
    writer.write(payload)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(-1), DEADLINE)
    writer.close()
    return answer


async def _when_it_listens(connect: Callable[[], Awaitable[Stream]]) -> Stream:
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while True:
        try:
            return await connect()
        except OSError:
            assert asyncio.get_running_loop().time() < deadline, "nobody listens"
            await asyncio.sleep(0.02)


async def over_socks(socks: int, port: int, payload: bytes) -> bytes:
    """What comes back from a port of the job, asked for as SOCKS 5 does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", socks)
    writer.write(b"\x05\x01\x00")
    assert await asyncio.wait_for(reader.readexactly(2), DEADLINE) == b"\x05\x00"
    writer.write(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
    assert (await asyncio.wait_for(reader.readexactly(10), DEADLINE))[1] == 0
    writer.write(payload)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(-1), DEADLINE)
    writer.close()
    return answer
