"""A fault proxy in front of any Kubernetes API server; it counts the requests that pass.

It is a thread of the test's process with an event loop of its own, and speaks plain HTTP on loopback: `before` reads
the API server's kubeconfig and writes one that leads to the proxy, with a token that a test can look for in logs. A
rule matches requests (verb, resource, which ones of them, how probable) and has a fault for them:

    with faults.before(cluster.kubeconfig, tmp_path / "proxied") as api:
        api.fail("create", "pods", faults.Answer(503), times=2)  # later ones pass
        api.fail("*", "*", faults.Lost(done=True), times=None, probability=0.1)
        api.away()  # connections are refused until `back`

Verbs are Kubernetes' (get, list, watch, create, update, patch, delete). Open watches stay open until
`cut` ends them. Not for exec, attach and port-forward, which upgrade their connection.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import random
import re
import ssl
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from tests.contract.client import Client

Found = TypeVar("Found")

TOKEN = "the-token-of-the-hub-s-service-account-in-tests"
HEADER = "a-header-that-nobody-should-see"  # on every answer that is made up here
HALF_A_LINE = b'{"type":"MODIFIED","object":{"kind":"Pod","metadata":{"name":"jupyter-'
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
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+(?=/))?/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>.+))?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host"})


@dataclass(slots=True)
class Seen:
    """One request: what was asked, and the bytes of its answer."""

    verb: str
    resource: str
    bytes: int = 0


@dataclass(frozen=True)
class Fault:
    """Happens in place of an answer; ``done``: after the API server has carried the request out."""

    done: bool = field(default=False, kw_only=True)

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        raise NotImplementedError


@dataclass(frozen=True)
class Answer(Fault):
    """An answer that is made up."""

    status: int
    retry_after: int | None = None
    html: bool = False

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        headers = {"Audit-Id": HEADER, "X-Kubernetes-Pf-Flowschema-Uid": HEADER}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        reason, message = _SAID.get(self.status, ("", "Bad day"))
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason}
        body = HTML if self.html else json.dumps({**status, "message": message, "code": self.status})
        kind = "text/html" if self.html else "application/json"
        return web.Response(status=self.status, text=body, content_type=kind, headers=headers)


class Lost(Fault):
    """No answer, until the client goes or `heal`."""

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        await proxy.healed.wait()
        await _abort(request)


class Reset(Fault):
    """The connection breaks."""

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        await _abort(request)


@dataclass(frozen=True)
class Dropped(Fault):
    """A watch that passes so many events, and breaks in the middle of the next."""

    events: int

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        return await proxy.forward(request, seen, self.events)


@dataclass(slots=True)
class Rule:
    """Which requests a fault happens to: of those that match, the next ``times``."""

    verb: str
    resource: str
    fault: Fault
    times: int | None = 1  # None: for ever
    probability: float = 1.0
    happened: int = 0

    def takes(self, seen: Seen, chance: random.Random) -> bool:
        if not (fnmatchcase(seen.verb, self.verb) and fnmatchcase(seen.resource, self.resource)):
            return False
        if (self.times is not None and self.happened >= self.times) or chance.random() >= self.probability:
            return False
        self.happened += 1
        return True


def _seen_in(request: web.Request) -> Seen:
    found = _PATH.match(request.path)
    resource = (found["resource"] + (f"/{found['sub']}" if found["sub"] else "")) if found else request.path
    if request.method not in {"GET", "HEAD"}:
        return Seen(_VERBS.get(request.method, request.method.lower()), resource)
    watches = request.query.get("watch", "").lower() in {"true", "1"}
    return Seen("watch" if watches else "get" if not found or found["name"] else "list", resource)


async def _abort(request: web.Request) -> NoReturn:
    """Break the connection without another byte; the request's task is cancelled when it has."""
    if request.transport is not None:
        request.transport.abort()
    await asyncio.Event().wait()
    raise AssertionError("the connection stays")


@dataclass
class Proxy:
    """The thread, its rules and its figures. Methods without an underscore are the test's, from any thread."""

    upstream: URL
    tls: ssl.SSLContext | bool
    headers: dict[str, str]
    kubeconfig: Path
    requests: list[Seen] = field(default_factory=list)
    bodies: list[bytes] | None = None  # of objects that were to be made, where a test wants them: a list
    port: int = 0
    _rules: list[Rule] = field(default_factory=list)
    _open: dict[asyncio.Future[None], Seen] = field(default_factory=dict)  # watches
    _work: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._chance = random.Random(1)
        self._loop = asyncio.new_event_loop()

    # What a test asks for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, verb: str, resource: str, fault: Fault, **which: Any) -> None:
        """Makes a rule; the first that takes a request decides."""
        self._rules.append(Rule(verb, resource, fault, **which))

    def heal(self) -> None:
        """Drops all rules, and releases hanging requests."""
        self._rules.clear()
        self._call(self._heal())

    def away(self) -> None:
        """Connections break and new ones are refused."""
        self._call(self._unlisten())

    def back(self) -> None:
        self._call(self._listen())

    def cut(self, resource: str) -> None:
        """Break the open watches of a resource in the middle of a line."""
        self._call(self._cut(resource))

    def sent(self, *verbs: str) -> int:
        """The bytes of the answers to these."""
        return sum(seen.bytes for seen in list(self.requests) if seen.verb in verbs)

    # The thread

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop.run_forever, name="faults", daemon=True)
        self._thread.start()
        self._call(self._begin())

    def stop(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Found]) -> Found:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
        except concurrent.futures.TimeoutError:
            raise TimeoutError("the proxy's thread is stuck") from None

    async def _begin(self) -> None:
        self.healed = asyncio.Event()
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "faults",
            "clusters": [{"name": "faults", "cluster": {"server": self.url}}],
            "users": [{"name": "faults", "user": {"token": TOKEN}}],
            "contexts": [{"name": "faults", "context": {"cluster": "faults", "user": "faults"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def _end(self) -> None:
        await self._unlisten()
        await self._runner.cleanup()
        await self._client.close()
        await asyncio.sleep(0)

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await self._site.start()
        self.port = int(self._runner.addresses[0][1])

    async def _unlisten(self) -> None:
        if self._site in self._runner.sites:
            await self._site.stop()
        server = self._runner.server
        for connection in list(server.connections) if server is not None else []:
            if connection.transport is not None:
                connection.transport.abort()

    async def _heal(self) -> None:
        self.healed.set()
        self.healed = asyncio.Event()

    async def _cut(self, resource: str) -> None:
        for ended, seen in self._open.items():
            if seen.resource == resource and not ended.done():
                ended.set_result(None)

    # One request

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = _seen_in(request)
        if seen.verb == "create" and self.bodies is not None:
            self.bodies.append(await request.read())
        self.requests.append(seen)
        rule = next((rule for rule in list(self._rules) if rule.takes(seen, self._chance)), None)
        if rule is None:
            return await self.forward(request, seen)
        if rule.fault.done:
            await self._carry_out(request)
        return await rule.fault.happen(self, request, seen)

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

    async def _carry_out(self, request: web.Request) -> None:
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

    async def forward(self, request: web.Request, seen: Seen, events: int | None = None) -> web.StreamResponse:
        """The API server's answer; a watch breaks after so many ``events``."""
        try:
            async with self._ask(request) as answer:
                headers = {key: value for key, value in answer.headers.items() if key.lower() not in _HOPS}
                response = web.StreamResponse(status=answer.status, headers=headers)
                await response.prepare(request)
                if seen.verb == "watch":
                    return await self._pass_events(request, answer, response, seen, events)
                async for chunk in answer.content.iter_any():
                    seen.bytes += len(chunk)
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, ConnectionResetError):
            await _abort(request)

    async def _pass_events(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        response: web.StreamResponse,
        seen: Seen,
        left: int | None,
    ) -> web.StreamResponse:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[ended] = seen
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
            await response.write(HALF_A_LINE)
            await _abort(request)
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


@contextlib.contextmanager
def before(kubeconfig: Path, written: Path) -> Iterator[Proxy]:
    """A proxy before the API server of a kubeconfig; another one, which leads to it, is written."""
    client = Client(kubeconfig)
    proxy = Proxy(URL(client.server.geturl()), client.context, client.headers, written)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
