"""A Manager in the test's own process with real tokens, and its pages as text or in a browser."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, async_playwright

from dlspawner.core import naming
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import FakeHub, ManagerHarness, until
from tests.component.manager.noticing import Read, Served, harnesses, serving
from tests.component.manager.real_hub import RealHub
from tests.harness.chromium import LAUNCH, PATIENCE

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}, admins: [vera]}
  language: {title: Language, quota: {gpu: 2}, admins: [lars]}
"""


@dataclass
class Portal:
    """The Manager, its Hub and its cluster."""

    harness: ManagerHarness
    served: Served
    real_hub: RealHub

    @property
    def hub(self) -> FakeHub:
        return self.harness.hub

    async def read(
        self,
        user: str,
        path: str = "",
        method: str = "GET",
        data: Mapping[str, str] | None = None,
        *,
        token: str = "",
        cookie: str = "",
    ) -> Read:
        token = token or (await asyncio.to_thread(self.real_hub.token, user) if user else "")
        return await self.served.read(token, path, method, cookie=cookie, data=data)

    async def ask(self, user: str, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
        """Status and content of an answer below api/."""
        return await self.served.ask(await asyncio.to_thread(self.real_hub.token, user), path, method, body)

    async def read_status(self, user: str, path: str) -> int:
        """The status alone, of an answer that may have no end."""
        token = await asyncio.to_thread(self.real_hub.token, user)
        headers = {"Authorization": f"token {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{self.served.url}/{path}") as answer,
        ):
            return answer.status

    def offers(self, name: str = "tiny", **fields: Any) -> None:
        """Changes the fields of a template, or adds one that is like tiny but for them."""
        leader = self.served.leader
        templates = {one.name: one for one in leader.settings.templates}
        templates[name] = replace(templates["tiny"], name=name, **fields)
        leader.settings = replace(leader.settings, templates=tuple(templates.values()))

    async def runs(self, request: AdmissionRequest, **told: str) -> AdmissionRequest:
        """A running job, known to Hub and cluster; its pod says this besides: ``log_dir``, ``ssh_host_key``."""
        assert (await self.served.leader.ask(request)).decision == "admit"
        name = f"jupyter-{request.user}--{request.server}".rstrip("-")
        says = {"user": request.user, "server": request.server, "team": request.team, **told}
        annotations = {f"dlspawner.dev/{key.replace('_', '-')}": value for key, value in says.items()}
        metadata = {"annotations": {naming.NONCE_ANNOTATION: request.nonce, **annotations}} if told else {}
        pod = await self.harness.make_pod(request, name=name, **metadata)
        await self.harness.bind(pod)
        await until(lambda: self.served.store.records[request.job].job.started, "it runs")
        await self.served.leader.settled()  # pages read it from the database
        self.knows(request.user, request.server)
        return request

    async def waits(self, request: AdmissionRequest) -> AdmissionRequest:
        assert (await self.served.leader.ask(request)).decision == "wait"
        return request

    async def began_earlier(self, request: AdmissionRequest) -> None:
        """The job has been running for half an hour, according to its record."""
        known = self.served.leader.record(request)
        earlier = replace(known.job, started=datetime.now(UTC) - timedelta(minutes=30))
        await self.served.leader.transact(Transaction.write, replace(known, job=earlier), EventReason.QUEUED)

    def knows(self, user: str, server: str) -> None:
        """The Hub has this server."""
        self.hub.servers = (self.hub.servers or set()) | {(user, server)}


async def equip(harness: ManagerHarness, teams: str = TEAMS) -> None:
    """Teams with admins, a node, and a Hub without servers."""
    (harness.folder / "teams.yaml").write_text(teams)
    await harness.make_node()
    harness.hub.servers = set()


@contextlib.asynccontextmanager
async def portals(real_hub: RealHub, folder: Path, teams: str = TEAMS) -> AsyncIterator[Portal]:
    async with harnesses(folder, f"sqlite:///{folder / 'm.sqlite'}") as harness:
        await equip(harness, teams)
        async with serving(harness, real_hub) as served:
            yield Portal(harness, served, real_hub)


@pytest.fixture
def teams_yaml() -> str:
    """teams.yaml of `portal`; a module may have its own."""
    return TEAMS


@pytest.fixture
async def portal(real_hub: RealHub, tmp_path: Path, teams_yaml: str) -> AsyncIterator[Portal]:
    """Of an empty cluster; `conftest.py` makes it known to all tests of the folder."""
    async with portals(real_hub, tmp_path, teams_yaml) as made:
        yield made


@pytest.fixture
def served(portal: Portal) -> Served:
    """The same Manager, whose Hub does not answer: no job waits in vain for its server."""
    portal.hub.servers = None
    return portal.served


@contextlib.asynccontextmanager
async def browsing(portal: Portal, user: str, *, forgives: Collection[str] = (), **context: Any) -> AsyncIterator[Page]:
    """A browser, logged in at the Hub, whose proxy leads to this Manager; console errors fail the test.

    Chromium reports every error status, and styles of tools: messages with words of ``forgives`` are ignored.
    """
    complaints: list[str] = []
    async with proxied(portal), async_playwright() as playwright:
        chromium = await playwright.chromium.launch(**LAUNCH)
        made = await chromium.new_context(reduced_motion="reduce", **context)
        page = await made.new_page()
        page.set_default_timeout(PATIENCE)
        await page.goto(f"{portal.real_hub.public}/hub/login?next=/hub/token")
        await page.fill("#username_input", user)
        await page.fill("#password_input", "any")
        await page.press("#password_input", "Enter")
        await page.wait_for_url("**/hub/token")
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        await chromium.close()
    unmeant = [one for one in complaints if not any(words in one for words in forgives)]
    assert not unmeant, unmeant


@contextlib.asynccontextmanager
async def proxied(portal: Portal) -> AsyncIterator[None]:
    """The Hub's proxy leads to this Manager, and in the end to the one that was there before."""
    await lead(portal.real_hub, portal.served.url.removesuffix("/services/jobs"))
    try:
        yield
    finally:
        await lead(portal.real_hub, portal.real_hub.manager)


async def lead(real_hub: RealHub, target: str | None) -> None:
    """Sets the proxy's route to the Manager; ``None`` removes it, so that requests reach the Hub."""
    route = f"http://127.0.0.1:{real_hub.proxy_port}/api/routes/services/jobs"
    headers, data = {"Authorization": "token proxy-token"}, {"target": target, "service": "jobs", "hub": True}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request("POST" if target else "DELETE", route, json=data if target else None) as answer,
    ):
        assert answer.status == (201 if target else 204)
