"""A proxy before any Kubernetes API server that has bad days on demand, and counts what passes through it.

It is a thread of the test's process with an event loop of its own, and speaks plain HTTP on loopback: `before` reads
the API server's kubeconfig and writes one that leads here, with a token that a test can look for in logs. What happens
to a request is a rule: whose turn it is (verb, resource, name, which ones of them, how probable) and a fault::

    with faults.before(cluster.kubeconfig, tmp_path / "proxied") as api:
        api.fail("create", "pods", faults.Answer(503), times=2)   # then they pass
        api.fail("*", "*", faults.Lost(done=True), times=None, probability=0.1)
        api.away()                                                 # connection refused, until back()
        assert api.count("create", "pods", status=201) == 1

Verbs are Kubernetes' (get, list, watch, create, update, patch, delete, deletecollection). What is open stays open until
`cut` ends it. Not for exec, attach and port-forward, which upgrade their connection.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import json
import random
import re
import ssl
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

Found = TypeVar("Found")

TOKEN = "the-token-of-the-hub-s-service-account-in-tests"
HEADER = "a-header-that-nobody-should-see"  # on every answer that is made up here
GONE = json.dumps(
    {
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "too old resource version: 1 (2)",
            "reason": "Expired",
            "code": 410,
        },
    }
)
HALF_A_LINE = '{"type":"MODIFIED","object":{"kind":"Pod","metadata":{"name":"jupyter-'
HTML = "<html><body><h1>Bad day</h1><p>The load balancer has no server.</p></body></html>"

_SAID = {
    404: ("NotFound", "the server could not find the requested resource"),
    409: (
        "Conflict",
        'Operation cannot be fulfilled on resourcequotas "q": the object has been modified; please apply your changes '
        "to the latest version and try again",
    ),
    410: ("Expired", "The resourceVersion for the provided watch is too old."),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "etcdserver: leader changed"),
    502: ("", "Bad Gateway"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within requested timeout - context deadline exceeded"),
}
_PATH = re.compile(
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>.+))?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host"})


@dataclass(slots=True)
class Seen:
    """One request: what was asked, and the status and bytes of its answer (status 0: none, or not yet)."""

    verb: str
    resource: str
    name: str
    status: int = 0
    bytes: int = 0


class Fault(Protocol):
    """What happens instead of an answer."""

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is made up; ``done``: the API server has carried the request out, and nobody hears of it."""

    status: int
    said: str = ""
    retry_after: int | None = None
    html: bool = False
    done: bool = False

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        if self.done:
            await proxy.carry_out(request)
        headers = {"Audit-Id": HEADER, "X-Kubernetes-Pf-Flowschema-Uid": HEADER}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        reason, usual = _SAID.get(self.status, ("", "Bad day"))
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason}
        body = HTML if self.html else json.dumps({**status, "message": self.said or usual, "code": self.status})
        kind = "text/html" if self.html else "application/json"
        return web.Response(status=self.status, text=body, content_type=kind, headers=headers)


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer, until the client goes or `heal`; ``done``: after the API server has carried the request out."""

    done: bool = False

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        if self.done:
            await proxy.carry_out(request)
        await proxy.healed.wait()
        await _abort(request)


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection breaks, before or after the API server has carried the request out."""

    done: bool = False

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        if self.done:
            await proxy.carry_out(request)
        await _abort(request)


@dataclass(frozen=True, slots=True)
class Slow:
    """The right answer, so many seconds later."""

    seconds: float

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        await asyncio.sleep(self.seconds)
        return await proxy.forward(request, seen)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A watch that passes so many events, ends with the text, and breaks; an answer that breaks in its middle."""

    events: int = 0
    ending: str = HALF_A_LINE

    async def happen(self, proxy: Proxy, request: web.Request, seen: Seen) -> web.StreamResponse:
        return await proxy.forward(request, seen, drop=self)


@dataclass(slots=True)
class Rule:
    """Which requests a fault happens to: of those that match, after the first ``skip`` the next ``times``."""

    verb: str
    resource: str
    fault: Fault
    times: int | None = 1  # None: for ever
    skip: int = 0
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
        if self.times is not None and self.happened >= self.times:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if chance.random() >= self.probability:
            return False
        self.happened += 1
        return True


@dataclass
class Proxy:
    """The thread, its rules and its figures. Methods without an underscore are the test's, from any thread."""

    upstream: URL
    tls: ssl.SSLContext | bool
    headers: dict[str, str]
    kubeconfig: Path
    seed: int = 1
    requests: list[Seen] = field(default_factory=list)
    bodies: list[bytes] | None = None  # of objects that were to be made, where a test wants them: a list
    port: int = 0
    _rules: list[Rule] = field(default_factory=list)
    _open: dict[asyncio.Future[str | None], Seen] = field(default_factory=dict)
    _work: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._loop = asyncio.new_event_loop()

    # What a test asks for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, verb: str, resource: str, fault: Fault, **which: Any) -> Rule:
        """A rule; the first that takes a request decides. Its ``happened`` counts."""
        rule = Rule(verb, resource, fault, **which)
        self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """No more rules, and whoever waits for nothing is let go."""
        self._rules.clear()
        self._call(self._heal())

    def away(self) -> None:
        """Connections break and new ones are refused."""
        self._call(self._unlisten())

    def back(self) -> None:
        self._call(self._listen())

    def silent(self) -> None:
        """Connections are taken and nothing ever passes, open watches included, until `heal`."""
        self._call(self._silence())

    def cut(self, ending: str | None = None, resource: str = "*") -> int:
        """Break the open watches, after a last text; how many there were."""
        return self._call(self._cut(ending, resource))

    def watching(self, resource: str = "*") -> int:
        """How many watches are open."""
        return sum(fnmatchcase(seen.resource, resource) for seen in list(self._open.values()))

    def count(self, verb: str = "*", resource: str = "*", status: int | None = None, name: str = "*") -> int:
        return sum(
            fnmatchcase(seen.verb, verb)
            and fnmatchcase(seen.resource, resource)
            and fnmatchcase(seen.name, name)
            and status in (None, seen.status)
            for seen in list(self.requests)
        )

    def figures(self) -> dict[str, tuple[int, int]]:
        """``{"watch pods": (requests, bytes of their answers)}``."""
        requests: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for seen in list(self.requests):
            requests[f"{seen.verb} {seen.resource}"] += 1
            size[f"{seen.verb} {seen.resource}"] += seen.bytes
        return {key: (count, size[key]) for key, count in sorted(requests.items())}

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
        self._speaks, self.healed = asyncio.Event(), asyncio.Event()
        self._speaks.set()
        connector = aiohttp.TCPConnector(limit=0, ssl=self.tls)
        self._client = aiohttp.ClientSession(
            connector=connector,
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

    async def _silence(self) -> None:
        self._speaks.clear()

    async def _heal(self) -> None:
        self._speaks.set()
        self.healed.set()
        self.healed = asyncio.Event()

    async def _cut(self, ending: str | None, resource: str) -> int:
        chosen = [one for one, seen in self._open.items() if fnmatchcase(seen.resource, resource) and not one.done()]
        for ended in chosen:
            ended.set_result(ending)
        return len(chosen)

    # One request

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = _seen(request)
        if seen.verb == "create":
            body = await request.read()
            seen.name = seen.name or _name_in(body)
            if self.bodies is not None:
                self.bodies.append(body)
        self.requests.append(seen)
        await self._speaks.wait()
        rule = next((rule for rule in list(self._rules) if rule.takes(seen, self._chance)), None)
        if rule is not None:
            answer = await rule.fault.happen(self, request, seen)
        else:
            answer = await self.forward(request, seen)
        seen.status = answer.status
        return answer

    @contextlib.asynccontextmanager
    async def _ask(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {
            key: value
            for key, value in request.headers.items()
            if key.lower() not in _HOPS | {"authorization", "content-length"}
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
                        await _abort(request)
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
        drop: Dropped | None,
    ) -> web.StreamResponse:
        ended: asyncio.Future[str | None] = self._loop.create_future()
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
                await self._speaks.wait()
                line = getting.result()
                if not line:
                    await response.write_eof()
                    return response
                seen.bytes += len(line)
                await response.write(line)
                left = left - 1 if left is not None else None
            ending = ended.result() if ended.done() else (drop.ending if drop is not None else None)
            if ending:
                await response.write((ending if ending == HALF_A_LINE else ending + "\n").encode())
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


def _seen(request: web.Request) -> Seen:
    found = _PATH.match(request.path)
    resource = (found["resource"] + (f"/{found['sub']}" if found["sub"] else "")) if found else request.path
    name = (found["name"] or "") if found else ""
    if request.method in {"GET", "HEAD"}:
        watches = request.query.get("watch", "").lower() in {"true", "1"}
        verb = "watch" if watches else "get" if name or not found else "list"
    else:
        verb = _VERBS.get(request.method, request.method.lower())
        verb = "deletecollection" if verb == "delete" and not name else verb
    return Seen(verb, resource, name)


def _name_in(body: bytes) -> str:
    """Of the object that is to be made; nothing of a body that is not JSON."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["metadata"]["name"])
    return ""


async def _abort(request: web.Request) -> NoReturn:
    """Break the connection without another byte; the request's task is cancelled when it has."""
    if request.transport is not None:
        request.transport.abort()
    await asyncio.Event().wait()
    raise AssertionError("the connection stays")


@contextlib.contextmanager
def before(kubeconfig: Path, written: Path, seed: int = 1) -> Iterator[Proxy]:
    """A proxy before the API server of a kubeconfig; another one, which leads to it, is written."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = _named(config, "context", config["current-context"])
    cluster, user = _named(config, "cluster", context["cluster"]), _named(config, "user", context["user"])
    headers = {}
    if token := user.get("token") or (Path(user["tokenFile"]).read_text().strip() if "tokenFile" in user else ""):
        headers["Authorization"] = f"Bearer {token}"
    proxy = Proxy(URL(cluster["server"]), _tls(cluster, user, kubeconfig.parent), headers, written, seed)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def _named(config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    return next(dict(one[kind]) for one in config[f"{kind}s"] if one["name"] == name)


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext | bool:
    if not cluster["server"].startswith("https"):
        return True
    authority = _content(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    certificate, key = _content(user, "client-certificate", folder), _content(user, "client-key", folder)
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:  # its owner's alone
            both.write(certificate + b"\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _content(entry: dict[str, Any], key: str, folder: Path) -> bytes:
    if f"{key}-data" in entry:
        return base64.b64decode(entry[f"{key}-data"])
    return (folder / entry[key]).read_bytes() if key in entry else b""
