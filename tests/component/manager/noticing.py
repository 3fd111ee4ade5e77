"""A Manager in the test's own process for real tokens of a real Hub."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tornado.httpserver import HTTPServer
from traitlets.config import Application

from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.core.job import Job, JobState
from dlspawner.core.link import derive_hub_token
from dlspawner.devcluster.api import start
from dlspawner.manager import server as http
from dlspawner.manager.http import handlers
from dlspawner.manager.http.auth import make_auth, read_service
from dlspawner.manager.http.templates import make_environment
from dlspawner.manager.state.job_store import JobStore
from tests.component.manager import described
from tests.component.manager.manager_harness import Leader, ManagerHarness, make_namespace, prepare
from tests.component.manager.real_hub import ROOT, RealHub, free_port, manager_environment
from tests.kubernetes import planes

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@contextlib.asynccontextmanager
async def harnesses(folder: Path, db_url: str) -> AsyncIterator[ManagerHarness]:
    """An empty cluster for Managers, which is $KUBECONFIG's meanwhile."""
    prepare(folder)
    async with api_server(folder / "cluster") as kubeconfig, await KubernetesClient.connect(kubeconfig) as cluster:
        await make_namespace(cluster)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(kubeconfig))
            yield ManagerHarness(folder, db_url, cluster)


@contextlib.asynccontextmanager
async def api_server(state: Path) -> AsyncIterator[Path]:
    """The embedded one, or a control plane whose nodes say nothing of themselves; its kubeconfig."""
    if planes.WANTED:
        plane = await asyncio.to_thread(planes.take)
        try:
            yield plane.kubeconfig
        finally:
            await asyncio.to_thread(planes.give_back, plane)
    else:
        api = await start(state, 0)
        yield api.kubeconfig
        await api.stop()


def job_of(user: str = "alice", server: str = "train", number: int = 2) -> Job:
    return Job(f"j-{str(number) * 12}", user, "default", NOW, server=server, state=JobState.RUNNING)


@dataclass
class Read:
    """An answer: its status, the text of its main part, all of it, where it leads, and all headers."""

    status: int
    text: str
    body: str
    location: str
    headers: Mapping[str, str]


@dataclass
class Served:
    """The address of a Manager, and what is in it."""

    url: str
    leader: Leader
    manager: handlers.ManagerContext

    @property
    def store(self) -> JobStore:
        return self.leader.service.store

    @property
    def hubs_token(self) -> str:
        return derive_hub_token(self.manager.service.api_token)

    async def read(self, token: str | None, path: str, method: str = "GET", *, cookie: str = "", **body: Any) -> Read:
        """``body`` is ``data`` or ``json``."""
        headers = {"Authorization": f"token {token}"} if token else {}
        if cookie:
            headers["Cookie"] = cookie
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, f"{self.url}/{path}", headers=headers, allow_redirects=False, **body) as answer,
        ):
            content = await answer.text(errors="replace")  # or a font
            main = re.search(r"<main.*</main>", content, re.DOTALL)
            text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main[0])).split()) if main else ""
            return Read(answer.status, text, content, answer.headers.get("Location", ""), answer.headers)

    async def ask(self, token: str | None, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
        """Status and content of an answer below api/, which is a described one."""
        found = await self.read(token, f"api/{path}", method, json=body)
        described.check(method, f"api/{path}", found.status, found.headers.get("Content-Type", ""), found.body)
        return found.status, json.loads(found.body) if found.body else None


@contextlib.asynccontextmanager
async def serving(harness: ManagerHarness, real_hub: RealHub) -> AsyncIterator[Served]:
    """Pages and REST of a Manager, for the users of a real Hub."""
    port = free_port()
    service = read_service(
        manager_environment(f"http://127.0.0.1:{port}", real_hub.hub_api, real_hub.tokens["manager"])
    )
    async with harness.manager() as leader:
        manager = handlers.ManagerContext(
            service=service,
            auth=make_auth(service, Application()),
            database=leader.repository._database,
            pages=make_environment([str(ROOT / "templates" / "hub")]),
            now=harness.clock,
            leader=leader,
        )
        server = HTTPServer(http.make_web(manager), xheaders=True)
        server.listen(port, "127.0.0.1")
        try:
            yield Served(f"http://127.0.0.1:{port}/services/jobs", leader, manager)
        finally:
            await http.drain(server, manager.running)
            await http.close_hub_client()
