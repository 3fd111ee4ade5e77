"""An API server that answers as it is told, for what a real one cannot be made to say."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


def pod(name: str, version: int, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "jobs", "uid": f"uid-of-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, **more.pop("metadata", {})}, **more}


def listed(version: int, *objects: dict[str, Any], more: str = "") -> dict[str, Any]:
    """One page of a list; ``more`` is its continue token."""
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(objects)}


def event(change: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": change, "object": found}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


EXPIRED = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})


@dataclass
class Watched:
    """One answer to a watch: its status, what it sends, and whether it ends then, is cut off, or stays silent; or it
    never begins."""

    chunks: Iterable[bytes] = ()
    status: int = 200
    ends: str = "well"


SILENT = "silent"
NEVER = "never"
CUT = "cut"


@dataclass
class ScriptedApi:
    """Answers each list and each watch with the next thing of its script; a list's last answer stays, and after the
    last watch they are silent."""

    lists: deque[dict[str, Any] | int] = field(default_factory=deque)
    watches: deque[Watched] = field(default_factory=deque)
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def listings(self) -> int:
        """Counts the lists that were begun."""
        return sum("watch" not in query and "continue" not in query for query in self.asked)

    @property
    def resumed(self) -> list[str]:
        """From where it was watched."""
        return [query["resourceVersion"] for query in self.asked if "watch" in query]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        if "watch" in request.query:
            return await self._watch(request, self.watches.popleft() if self.watches else Watched(ends=SILENT))
        answer = self.lists.popleft() if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, int):
            return web.json_response({"kind": "Status", "code": answer, "message": "no"}, status=answer)
        return web.json_response(answer)

    async def _watch(self, request: web.Request, watched: Watched) -> web.StreamResponse:
        if watched.ends == NEVER:
            await asyncio.Event().wait()
        response = web.StreamResponse(status=watched.status)
        await response.prepare(request)
        for chunk in watched.chunks:
            await response.write(chunk)
        if watched.ends == SILENT:
            await asyncio.Event().wait()
        if watched.ends == CUT and request.transport is not None:
            request.transport.abort()
        return response

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ScriptedApi]:
        application = web.Application()
        application.router.add_get("/api/v1/namespaces/jobs/{kind}", self._answer)
        application.router.add_get("/api/v1/{kind}", self._answer)  # of all namespaces
        runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
