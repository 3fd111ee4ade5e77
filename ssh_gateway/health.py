"""Whether this process serves, for Kubernetes' probes, and its metrics, on a port of its own.

``/ready`` is 503 from the moment it begins to stop, so that nobody new is sent here; ``/metrics`` is for a Prometheus;
every other address is 200 until the end, sessions that are still open included: a restart cures neither the Hub nor the
cluster. Not a probe of the SSH port: that would be a visitor every few seconds, with a log line and a key exchange.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ssh_gateway import listening
from ssh_gateway.meters import CONTENT_TYPE

SECONDS = 5.0
LONGEST = 8192


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """What is said to one request."""

    status: str
    content: bytes
    kind: str = "text/plain"

    def written(self) -> bytes:
        head = f"HTTP/1.1 {self.status}\r\nContent-Type: {self.kind}\r\nContent-Length: {len(self.content)}\r\n"
        return head.encode("ascii") + b"Connection: close\r\n\r\n" + self.content


OK = HealthAnswer("200 OK", b"ok\n")
STOPPING = HealthAnswer("503 Service Unavailable", b"stopping\n")


async def _none() -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class HealthServer:
    """Answers while its port is open."""

    ready: Callable[[], bool] = lambda: True
    metrics: Callable[[], Awaitable[bytes]] = _none

    async def serve(self, ip: str, port: int) -> asyncio.Server:
        """Listen; the caller closes what it is given."""
        return await asyncio.start_server(self._answer, sock=listening.listen(ip, port), limit=LONGEST)

    async def answer(self, request: bytes) -> HealthAnswer:
        """What a request, or the first part of one, is answered."""
        path = _path(request)
        if path == b"/metrics":
            return HealthAnswer("200 OK", await self.metrics(), CONTENT_TYPE)
        return OK if path != b"/ready" or self.ready() else STOPPING

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self.answer(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer.written())
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever it was did not ask for anything; OSError includes the time-out
        finally:
            writer.close()


def _path(request: bytes) -> bytes:
    """``/ready`` of ``GET /ready?x HTTP/1.1``; empty for nonsense."""
    words = request.split(b"\r\n", 1)[0].split(b" ")
    return words[1].partition(b"?")[0] if len(words) == 3 else b""
