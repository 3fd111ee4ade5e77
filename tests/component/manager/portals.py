"""A Manager in the test's own process with real tokens, and its pages as text or in a browser."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, async_playwright

from dlspawner.core import naming
from dlspawner.manager.admission.service import AdmissionRequest
from tests.component.manager.manager_harness import FakeHub, Office, until
from tests.component.manager.noticing import Read, Served, offices, serving
from tests.component.manager.world import World
from tests.harness.chromium import LAUNCH, PATIENCE

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}, admins: [vera]}
  language: {title: Language, quota: {gpu: 2}, admins: [lars]}
"""


@dataclass
class Portal:
    """The Manager, its Hub and its cluster."""

    office: Office
    served: Served
    world: World

    @property
    def hub(self) -> FakeHub:
        return self.office.hub

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
        token = token or (await asyncio.to_thread(self.world.token, user) if user else "")
        return await self.served.read(token, path, method, cookie=cookie, data=data)

    async def ask(self, user: str, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
        """Status and content of an answer below api/."""
        return await self.served.ask(await asyncio.to_thread(self.world.token, user), path, method, body)

    async def read_status(self, user: str, path: str) -> int:
        """The status alone, of an answer that may have no end."""
        token = await asyncio.to_thread(self.world.token, user)
        headers = {"Authorization": f"token {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{self.served.url}/{path}") as answer,
        ):
            return answer.status

    async def runs(self, question: AdmissionRequest, **metadata: Any) -> AdmissionRequest:
        """A running job, known to Hub and cluster; its pod has its nonce beside the given metadata."""
        assert (await self.served.acting.ask(question)).decision == "admit"
        if "annotations" in metadata:
            metadata["annotations"] = {naming.NONCE_ANNOTATION: question.nonce, **metadata["annotations"]}
        name = f"jupyter-{question.user}--{question.server}".rstrip("-")
        pod = await self.office.make_pod(question, name=name, **metadata)
        await self.office.bind(pod)
        await until(lambda: self.served.book.records[question.job].job.started, "it runs")
        await self.served.acting.settled()  # pages read it from the database
        self.knows(question.user, question.server)
        return question

    async def waits(self, question: AdmissionRequest) -> AdmissionRequest:
        assert (await self.served.acting.ask(question)).decision == "wait"
        return question

    def knows(self, user: str, server: str) -> None:
        """The Hub has this server."""
        self.hub.servers = (self.hub.servers or set()) | {(user, server)}


async def equip(office: Office, teams: str = TEAMS) -> None:
    """Teams with admins, a node, and a Hub without servers."""
    (office.folder / "teams.yaml").write_text(teams)
    await office.make_node()
    office.hub.servers = set()


@contextlib.asynccontextmanager
async def portals(world: World, folder: Path, teams: str = TEAMS) -> AsyncIterator[Portal]:
    """KUBECONFIG has to be set to `folder`/cluster/kubeconfig."""
    async with offices(folder, f"sqlite:///{folder / 'm.sqlite'}") as office:
        await equip(office, teams)
        async with serving(office, world) as served:
            yield Portal(office, served, world)


@pytest.fixture
def teams_yaml() -> str:
    """teams.yaml of `portal`; a module may have its own."""
    return TEAMS


@pytest.fixture
async def portal(
    world: World, tmp_path: Path, teams_yaml: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Portal]:
    """Of an empty cluster; `conftest.py` makes it known to all tests of the folder."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path, teams_yaml) as made:
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
        await page.goto(f"{portal.world.public}/hub/login?next=/hub/token")
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
    await lead(portal.world, portal.served.url.removesuffix("/services/jobs"))
    try:
        yield
    finally:
        await lead(portal.world, portal.world.manager)


async def lead(world: World, target: str | None) -> None:
    """Sets the proxy's route to the Manager; ``None`` removes it, so that requests reach the Hub."""
    route = f"http://127.0.0.1:{world.proxy_port}/api/routes/services/jobs"
    headers, data = {"Authorization": "token proxy-token"}, {"target": target, "service": "jobs", "hub": True}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request("POST" if target else "DELETE", route, json=data if target else None) as answer,
    ):
        assert answer.status == (201 if target else 204)
