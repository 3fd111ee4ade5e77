"""Requests, what can happen to one instead of an answer, and the rules which say to which."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NoReturn, Protocol

from aiohttp import web

HEADER = "a-header-that-nobody-should-see"  # on every answer that is made up here
HALF_A_LINE = '{"type":"MODIFIED","object":{"kind":"Pod","metadata":{"name":"jupyter-'
HTML = "<html><body><h1>Bad day</h1><p>The load balancer has no server.</p></body></html>"

_SAID = {
    409: (
        "Conflict",
        'Operation cannot be fulfilled on resourcequotas "q": the object has been modified; please apply your changes '
        "to the latest version and try again",
    ),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "etcdserver: leader changed"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within requested timeout - context deadline exceeded"),
}
_PATH = re.compile(
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>.+))?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Server(Protocol):
    """The proxy as a fault uses it."""

    healed: asyncio.Event

    async def carry_out(self, request: web.Request) -> None: ...

    async def forward(self, request: web.Request, seen: Seen, events: int | None = None) -> web.StreamResponse: ...


@dataclass(slots=True)
class Seen:
    """One request: what was asked, and the bytes of its answer."""

    verb: str
    resource: str
    name: str
    bytes: int = field(default=0, compare=False)


class Fault(Protocol):
    """A fault in place of an answer."""

    async def happen(self, proxy: Server, request: web.Request, seen: Seen) -> web.StreamResponse: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is made up; ``done``: the API server has carried the request out, unknown to the client."""

    status: int
    retry_after: int | None = None
    html: bool = False
    done: bool = False

    async def happen(self, proxy: Server, request: web.Request, seen: Seen) -> web.StreamResponse:
        if self.done:
            await proxy.carry_out(request)
        headers = {"Audit-Id": HEADER, "X-Kubernetes-Pf-Flowschema-Uid": HEADER}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        reason, message = _SAID.get(self.status, ("", "Bad day"))
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason}
        body = HTML if self.html else json.dumps({**status, "message": message, "code": self.status})
        kind = "text/html" if self.html else "application/json"
        return web.Response(status=self.status, text=body, content_type=kind, headers=headers)


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer, until the client goes or `heal`; ``done``: after the API server has carried the request out."""

    done: bool = False

    async def happen(self, proxy: Server, request: web.Request, seen: Seen) -> web.StreamResponse:
        if self.done:
            await proxy.carry_out(request)
        await proxy.healed.wait()
        await abort(request)


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection breaks, before or after the API server has carried the request out."""

    done: bool = False

    async def happen(self, proxy: Server, request: web.Request, seen: Seen) -> web.StreamResponse:
        if self.done:
            await proxy.carry_out(request)
        await abort(request)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A watch that passes so many events, and breaks in the middle of the next."""

    events: int

    async def happen(self, proxy: Server, request: web.Request, seen: Seen) -> web.StreamResponse:
        return await proxy.forward(request, seen, self.events)


@dataclass(slots=True)
class Rule:
    """Which requests a fault happens to: of those that match, the next ``times``."""

    verb: str
    resource: str
    fault: Fault
    times: int | None = 1  # None: for ever
    probability: float = 1.0
    name: str = "*"
    happened: int = 0

    def takes(self, seen: Seen, chance: random.Random) -> bool:
        if not (
            fnmatchcase(seen.verb, self.verb)
            and fnmatchcase(seen.resource, self.resource)
            and fnmatchcase(seen.name, self.name)
        ):
            return False
        if (self.times is not None and self.happened >= self.times) or chance.random() >= self.probability:
            return False
        self.happened += 1
        return True


def seen_in(request: web.Request) -> Seen:
    found = _PATH.match(request.path)
    resource = (found["resource"] + (f"/{found['sub']}" if found["sub"] else "")) if found else request.path
    name = (found["name"] or "") if found else ""
    if request.method in {"GET", "HEAD"}:
        watches = request.query.get("watch", "").lower() in {"true", "1"}
        verb = "watch" if watches else "get" if name or not found else "list"
    else:
        verb = _VERBS.get(request.method, request.method.lower())
    return Seen(verb, resource, name)


def name_in(body: bytes) -> str:
    """Of the object that is to be made; nothing of a body that is not JSON."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["metadata"]["name"])
    return ""


async def abort(request: web.Request) -> NoReturn:
    """Break the connection without another byte; the request's task is cancelled when it has."""
    if request.transport is not None:
        request.transport.abort()
    await asyncio.Event().wait()
    raise AssertionError("the connection stays")
