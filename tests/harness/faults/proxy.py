"""The thread in which the proxy runs, what a test can ask of it, and its figures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import random
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import web
from yarl import URL

from tests.contract.client import Client
from tests.harness.faults.kinds import Fault, Rule, Seen, name_in, seen_in
from tests.harness.faults.relay import Relay

Found = TypeVar("Found")

TOKEN = "the-token-of-the-hub-s-service-account-in-tests"


@dataclass
class Proxy(Relay):
    """The thread, its rules and its figures. Methods without an underscore are the test's, from any thread."""

    kubeconfig: Path
    requests: list[Seen] = field(default_factory=list)
    bodies: list[bytes] | None = None  # of objects that were to be made, where a test wants them: a list
    port: int = 0
    _rules: list[Rule] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._chance = random.Random(1)
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
        """Drops all rules, and releases hanging requests."""
        self._rules.clear()
        self._call(self._heal())

    def away(self) -> None:
        """Connections break and new ones are refused."""
        self._call(self._unlisten())

    def back(self) -> None:
        self._call(self._listen())

    def cut(self, resource: str, ending: str = "") -> None:
        """Break the open watches of a resource, after a last text."""
        self._call(self._cut(resource, ending))

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
        await self.begin()
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
        await self.end()

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

    async def _cut(self, resource: str, ending: str) -> None:
        for ended, seen in self._open.items():
            if seen.resource == resource and not ended.done():
                ended.set_result(ending)

    # One request

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = seen_in(request)
        if seen.verb == "create":
            body = await request.read()
            seen.name = seen.name or name_in(body)
            if self.bodies is not None:
                self.bodies.append(body)
        self.requests.append(seen)
        rule = next((rule for rule in list(self._rules) if rule.takes(seen, self._chance)), None)
        return await (rule.fault.happen(self, request, seen) if rule else self.forward(request, seen))


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
