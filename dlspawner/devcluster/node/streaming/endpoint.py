"""The kubelet's own server: logs and exec for the API server, on the node's address.

One request per connection, because the requests are rare and most of them take the connection over for something that
is not HTTP. That is why no framework is used. `serving.py` decides about access and TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, unquote, urlsplit

from wsproto.utilities import generate_accept_token

from dlspawner.devcluster.node.container import Container
from dlspawner.devcluster.node.pod import Pod
from dlspawner.devcluster.node.streaming import channels, execution, logs
from dlspawner.devcluster.node.streaming.serving import Doorkeeper

log = logging.getLogger(__name__)

HEAD_SECONDS = 10.0
GOODBYE_SECONDS = 2.0
LONGEST_HEAD = 64 * 1024
Query = Mapping[str, list[str]]


class Answer(Exception):
    """An HTTP status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request; header names are lower case."""

    method: str
    path: str
    query: Query
    headers: Mapping[str, str]

    def flag(self, *names: str) -> bool:
        return any(self.query.get(name, [""])[-1] in {"true", "1"} for name in names)


class Endpoint:
    """`serve` it for one node; `find` gives the node's pod by namespace and name."""

    def __init__(self, find: Callable[[str, str], Pod | None]) -> None:
        self._doorkeeper: Doorkeeper | None = None
        self._find = find
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, doorkeeper: Doorkeeper, ip: str, port: int) -> None:
        self._doorkeeper = doorkeeper
        self._server = await asyncio.start_server(self._accept, ip, port, limit=LONGEST_HEAD, ssl=doorkeeper.context)

    @property
    def port(self) -> int:
        """The address, once it listens."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server else 0

    async def stop(self) -> None:
        if self._server:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="kubelet request")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = _parse(await reader.readuntil(b"\r\n\r\n"))
            await self._answer(head, reader, writer)
        except Answer as answer:
            with contextlib.suppress(OSError):
                writer.write(_response(answer.status, str(answer)))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, channels.Disconnected):
            pass  # the client has gone, or never was one
        except Exception:
            log.exception("kubelet request failed")  # a task's root
        finally:
            writer.close()

    async def _answer(self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if head.path == "/healthz":
            raise Answer(200, "ok")
        await self._admit(head, writer)
        words = [unquote(word) for word in head.path.strip("/").split("/")]
        if len(words) != 4 or words[0] not in {"containerLogs", "exec"}:
            raise Answer(404, "404 page not found")
        pod = self._find(words[1], words[2])
        if pod is None:
            raise Answer(404, f'pod "{words[2]}" not found')
        container = next((c for c in pod.containers if c.name == words[3]), None)
        if container is None:
            raise Answer(404, f'container "{words[3]}" not found in pod "{words[2]}"')
        if words[0] == "containerLogs":
            await self._logs(head, pod, container, reader, writer)
        else:
            await self._exec(head, container, reader, writer)

    async def _admit(self, head: Head, writer: asyncio.StreamWriter) -> None:
        if self._doorkeeper is None:
            raise Answer(503, "the node is starting")
        certificate = writer.get_extra_info("peercert") or {}
        code = await self._doorkeeper.admits(head.method, head.headers.get("authorization", ""), certificate)
        if code != 200:
            raise Answer(code, {401: "Unauthorized"}.get(code, "Forbidden"))

    async def _logs(
        self, head: Head, pod: Pod, container: Container, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        restarts = container.run.restarts - (1 if head.flag("previous") else 0)
        path = pod.log_path(container.name, restarts)
        if not path.exists():
            if head.flag("previous"):
                raise Answer(400, f'previous terminated container "{container.name}" in pod "{pod.name}" not found')
            why = container.run.state.get("waiting", {}).get("reason", "ContainerCreating")
            raise Answer(400, f'container "{container.name}" in pod "{pod.name}" is waiting to start: {why}')
        live = container.log if container.log and container.log.path == path else None
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        copying = asyncio.create_task(_copy(logs.read(path, live, _log_query(head)), writer), name="log reader")
        leaving = asyncio.create_task(reader.read(1), name="log reader's end")
        try:
            await asyncio.wait({copying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            copying.cancel()
            leaving.cancel()
            await asyncio.gather(copying, leaving, return_exceptions=True)

    async def _exec(
        self, head: Head, container: Container, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request = execution.Request(
            args=head.query.get("command", []),
            stdin=head.flag("input", "stdin"),
            stdout=head.flag("output", "stdout"),
            stderr=head.flag("error", "stderr"),
            tty=head.flag("tty"),
        )
        process, command = container.process, container.command
        if not request.args:
            raise Answer(400, "you must specify at least 1 command for the container")
        if process is None or command is None:
            raise Answer(404, f"container not found: {container.name} is not running")
        client = await _upgrade(head, request, reader, writer)
        await execution.execute(request, command, process.pid, client)
        # The client may still be saying goodbye: closing first would answer that with a reset.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                while await reader.read(channels.CHUNK):
                    pass


async def _upgrade(
    head: Head, request: execution.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> channels.Channels:
    upgrade = head.headers.get("upgrade", "").lower()
    if upgrade == "spdy/3.1":
        offered = head.headers.get("x-stream-protocol-version", "")
        protocol = _choose(offered, channels.SPDY_PROTOCOLS)
        writer.write(_switching("SPDY/3.1", {"X-Stream-Protocol-Version": protocol}))
        streams = channels.SpdyChannels(reader, writer)
        await streams.open(request.streams)
        return streams
    if upgrade == "websocket":
        protocol = _choose(head.headers.get("sec-websocket-protocol", ""), channels.WEBSOCKET_PROTOCOLS)
        accept = generate_accept_token(head.headers.get("sec-websocket-key", "").encode()).decode()
        writer.write(_switching("websocket", {"Sec-WebSocket-Accept": accept, "Sec-WebSocket-Protocol": protocol}))
        return channels.WebSocketChannels(reader, writer)
    raise Answer(400, "Upgrade request required")


def _choose(offered: str, known: tuple[str, ...]) -> str:
    names = [name.strip() for name in offered.split(",")]
    for name in known:
        if name in names:
            return name
    raise Answer(403, f"unable to negotiate protocol: client supports {names}, server supports {list(known)}")


def _switching(protocol: str, headers: Mapping[str, str]) -> bytes:
    lines = ["HTTP/1.1 101 Switching Protocols", f"Upgrade: {protocol}", "Connection: Upgrade"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


async def _copy(chunks: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    async for chunk in chunks:
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _log_query(head: Head) -> logs.Query:
    def number(name: str) -> int | None:
        text = head.query.get(name, [""])[-1]
        try:
            return int(text) if text else None
        except ValueError:
            raise Answer(400, f"{name} must be a whole number") from None

    since: datetime | None = None
    if (seconds := number("sinceSeconds")) is not None:
        since = datetime.now(UTC) - timedelta(seconds=seconds)
    elif moment := head.query.get("sinceTime", [""])[-1]:
        try:
            since = datetime.fromisoformat(moment)
        except ValueError:
            raise Answer(400, "sinceTime must be a time") from None
    return logs.Query(
        follow=head.flag("follow"),
        timestamps=head.flag("timestamps"),
        tail=number("tailLines"),
        since=since,
        limit_bytes=number("limitBytes"),
    )


def _parse(data: bytes) -> Head:
    first, *lines = data.decode("latin-1").split("\r\n")
    try:
        method, target, _ = first.split(" ")
    except ValueError:
        raise Answer(400, "not HTTP") from None
    url = urlsplit(target)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            name = name.strip().lower()
            headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return Head(method, url.path, parse_qs(url.query, keep_blank_values=True), headers)


def _response(status: int, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\nContent-Type: text/plain\r\n"
    return head.encode() + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
