"""The two ways a client speaks to a command: SPDY/3.1 streams and WebSocket messages, behind one face.

A channel is called ``stdin``, ``stdout``, ``stderr``, ``error`` (the exit status, as a Status object) or ``resize``.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import RemoteProtocolError

from dlspawner.devcluster.node.streaming import spdy

CHUNK = 64 * 1024
LONGEST_MESSAGE = 2**24
STREAMS_SECONDS = 30.0
NAMES = ("stdin", "stdout", "stderr", "error", "resize")
SPDY_PROTOCOLS = ("v4.channel.k8s.io",)
WEBSOCKET_PROTOCOLS = ("v5.channel.k8s.io",)
# WebSocket protocol v5: the client half-closes the channel named by the next byte.
_CLOSE_CHANNEL = 255


class Disconnected(Exception):
    """The client went away, or said something that makes no sense."""


class Channels(Protocol):
    """One client of one command."""

    async def receive(self) -> tuple[str, bytes]:
        """Returns the client's next bytes; empty bytes are the end of that channel. Raises `Disconnected`."""

    async def send(self, name: str, data: bytes) -> None:
        """Waits while the client is slow."""

    async def finish(self, status: Mapping[str, Any]) -> None:
        """The exit status, and the end."""


class SpdyChannels:
    """Streams opened by kubectl, one per channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._framer = spdy.Framer()
        self._streams: dict[str, int] = {}
        self._received: deque[tuple[str, bytes]] = deque()

    async def open(self, wanted: set[str]) -> None:
        """Until the client has opened every stream that its request announced."""
        try:
            async with asyncio.timeout(STREAMS_SECONDS):
                while not wanted <= self._streams.keys():
                    await self._read()
        except TimeoutError:
            raise Disconnected("the client did not open its streams") from None

    async def receive(self) -> tuple[str, bytes]:
        while not self._received:
            await self._read()
        return self._received.popleft()

    async def send(self, name: str, data: bytes) -> None:
        if name in self._streams:
            await self._write(self._framer.data(self._streams[name], data))

    async def finish(self, status: Mapping[str, Any]) -> None:
        await self.send("error", json.dumps(status).encode())
        for stream in self._streams.values():
            await self._write(self._framer.data(stream, b"", fin=True))
        await self._write(self._framer.goaway())

    async def _read(self) -> None:
        try:
            data = await self._reader.read(CHUNK)
            events = self._framer.receive(data)
        except (OSError, spdy.ProtocolError) as error:
            raise Disconnected(str(error)) from error
        if not data:
            raise Disconnected("closed")
        for event in events:
            await self._handle(event)

    async def _handle(self, event: spdy.Event) -> None:
        names = {stream: name for name, stream in self._streams.items()}
        match event:
            case spdy.Opened(stream, headers, _):
                self._streams[headers.get("streamtype", "")] = stream
                await self._write(self._framer.reply(stream))
            case spdy.Data(stream, data, fin) if stream in names:
                if data:
                    self._received.append((names[stream], data))
                if fin:
                    self._received.append((names[stream], b""))
            case spdy.Ping():
                await self._write(self._framer.pong(event))
            case spdy.Gone(0):
                raise Disconnected("the client is going away")
            case spdy.Gone(stream) if stream in names:
                self._received.append((names[stream], b""))
            case _:
                pass

    async def _write(self, data: bytes) -> None:
        await _write(self._writer, data)


class WebSocketChannels:
    """Binary messages; the first byte is the channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._socket = Connection(ConnectionType.SERVER)
        self._parts = bytearray()  # of a message that has not ended
        self._received: deque[tuple[str, bytes]] = deque()

    async def receive(self) -> tuple[str, bytes]:
        while not self._received:
            await self._read()
        return self._received.popleft()

    async def send(self, name: str, data: bytes) -> None:
        message = bytes([NAMES.index(name)]) + data
        await _write(self._writer, self._socket.send(BytesMessage(data=message)))

    async def finish(self, status: Mapping[str, Any]) -> None:
        await self.send("error", json.dumps(status).encode())
        await _write(self._writer, self._socket.send(CloseConnection(code=1000)))

    async def _read(self) -> None:
        try:
            data = await self._reader.read(CHUNK)
            self._socket.receive_data(data or None)
            events = list(self._socket.events())
        except (OSError, RemoteProtocolError) as error:
            raise Disconnected(str(error)) from error
        if not data:
            raise Disconnected("closed")
        for event in events:
            match event:
                case CloseConnection():
                    raise Disconnected("closed")
                case Ping():
                    await _write(self._writer, self._socket.send(event.response()))
                case BytesMessage() | TextMessage():
                    self._add(event.data.encode() if isinstance(event, TextMessage) else bytes(event.data))
                    if event.message_finished:
                        self._message(bytes(self._parts))
                        self._parts.clear()

    def _add(self, part: bytes) -> None:
        self._parts += part
        if len(self._parts) > LONGEST_MESSAGE:
            raise Disconnected("message too long")

    def _message(self, data: bytes) -> None:
        if not data:
            return
        if data[0] == _CLOSE_CHANNEL and len(data) > 1 and data[1] < len(NAMES):
            self._received.append((NAMES[data[1]], b""))
        elif data[0] < len(NAMES) and len(data) > 1:
            self._received.append((NAMES[data[0]], data[1:]))


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        writer.write(data)
        await writer.drain()
    except OSError as error:
        raise Disconnected(str(error)) from error
