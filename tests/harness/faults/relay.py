"""Passing requests on to the API server and its answers back, watches event by event."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from yarl import URL

from tests.harness.faults.kinds import Dropped, Seen, abort

_HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host"})


@dataclass
class Relay:
    """A client of the API server, and the watches that are open."""

    upstream: URL
    tls: ssl.SSLContext | bool
    headers: dict[str, str]

    def __post_init__(self) -> None:
        self._open: dict[asyncio.Future[str | None], Seen] = {}
        self._work = set[asyncio.Future[None]]()

    async def begin(self) -> None:
        self.healed = asyncio.Event()
        connector = aiohttp.TCPConnector(limit=0, ssl=self.tls)
        self._client = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def end(self) -> None:
        await self._client.close()
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def _ask(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {
            key: value
            for key, value in request.headers.items()
            if key.lower() not in _HOPS | {"authorization", "content-length", "accept-encoding"}
        }
        url = self.upstream.join(URL(request.raw_path, encoded=True))
        body = await request.read()
        async with self._client.request(
            request.method, url, headers={**headers, **self.headers}, data=body or None, allow_redirects=False
        ) as answer:
            yield answer

    async def carry_out(self, request: web.Request) -> None:
        """To the end, even if the client goes meanwhile."""
        await request.read()
        work = asyncio.ensure_future(self._carried_out(request))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        await asyncio.shield(work)

    async def _carried_out(self, request: web.Request) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._ask(request) as answer:
                await answer.read()

    async def forward(self, request: web.Request, seen: Seen, drop: Dropped | None = None) -> web.StreamResponse:
        try:
            async with self._ask(request) as answer:
                seen.status = answer.status
                headers = {key: value for key, value in answer.headers.items() if key.lower() not in _HOPS}
                response = web.StreamResponse(status=answer.status, headers=headers)
                await response.prepare(request)
                if seen.verb == "watch":
                    return await self._pass_events(request, answer, response, seen, drop)
                async for chunk in answer.content.iter_any():
                    if drop is not None:
                        await response.write(chunk[: len(chunk) // 2])
                        await abort(request)
                    seen.bytes += len(chunk)
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, ConnectionResetError):
            await abort(request)

    async def _pass_events(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        response: web.StreamResponse,
        seen: Seen,
        drop: Dropped | None,
    ) -> web.StreamResponse:
        ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._open[ended] = seen
        left = drop.events if drop is not None else None
        # Lines of any length, and never cancelled in the middle of one.
        lines: asyncio.Queue[bytes] = asyncio.Queue(100)
        reading = asyncio.ensure_future(_read_lines(answer, lines))
        getting: asyncio.Future[bytes] | None = None
        try:
            while left is None or left > 0:
                getting = asyncio.ensure_future(lines.get())
                await asyncio.wait({getting, ended}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    break
                line = getting.result()
                if not line:
                    await response.write_eof()
                    return response
                seen.bytes += len(line)
                await response.write(line)
                left = left - 1 if left is not None else None
            ending = ended.result() if ended.done() else (drop.ending if drop is not None else None)
            if ending:
                await response.write(ending.encode())
            await abort(request)
        finally:
            del self._open[ended]
            reading.cancel()
            if getting is not None:
                getting.cancel()


async def _read_lines(answer: aiohttp.ClientResponse, lines: asyncio.Queue[bytes]) -> None:
    rest = b""
    with contextlib.suppress(aiohttp.ClientError):
        async for chunk in answer.content.iter_any():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                await lines.put(line + b"\n")
    await lines.put(b"")
