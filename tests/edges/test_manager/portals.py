"""A Manager of the test's own with people's real tokens, read as a reader without JavaScript sees it."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Page, Route, async_playwright

from dlspawner.manager.desk import Question
from tests.e2e.conftest import CHROMIUM, FLAGS
from tests.edges.test_manager.noticing import Served, offices, serving
from tests.edges.test_manager.office import FakeHub, Office, ask, until
from tests.edges.test_manager.world import World

TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}, admins: [vera]}
  language: {title: Language, quota: {gpu: 2}, admins: [lars]}
"""


@dataclass
class Read:
    """An answer: its status, the text of its main part, all of it, and where it leads."""

    status: int
    text: str
    body: str
    location: str


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
        token: str = "",
    ) -> Read:
        token = token or (await asyncio.to_thread(self.world.token, user) if user else "")
        headers = {"Authorization": f"token {token}"} if token else {}
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                method, f"{self.served.url}/{path}", headers=headers, data=data, allow_redirects=False
            ) as answer,
        ):
            body = await answer.text()
            main = re.search(r"<main.*</main>", body, re.DOTALL)
            text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main[0])).split()) if main else ""
            return Read(answer.status, text, body, answer.headers.get("Location", ""))

    async def runs(self, question: Question, **metadata: object) -> Question:
        """A job of these wishes that runs, as Hub and cluster know it."""
        assert (await ask(self.served.acting, question)).decision == "admit"
        name = f"jupyter-{question.user}--{question.server}".rstrip("-")
        pod = await self.office.make_pod(question, name=name, **metadata)
        await self.office.bind(pod)
        await until(lambda: self.served.book.records[question.job].job.started, "it runs")
        self.knows(question.user, question.server)
        return question

    async def waits(self, question: Question) -> Question:
        assert (await ask(self.served.acting, question)).decision == "wait"
        return question

    def knows(self, user: str, server: str) -> None:
        """The Hub has this server."""
        self.hub.servers = (self.hub.servers or set()) | {(user, server)}


@contextlib.asynccontextmanager
async def portals(world: World, folder: Path) -> AsyncIterator[Portal]:
    """KUBECONFIG has to be set to `folder`/cluster/kubeconfig."""
    async with offices(folder, f"sqlite:///{folder / 'm.sqlite'}") as office:
        (folder / "teams.yaml").write_text(TEAMS)
        await office.make_node()
        office.hub.servers = set()
        async with serving(office, world) as served:
            yield Portal(office, served, world)


@contextlib.asynccontextmanager
async def browsing(portal: Portal, user: str, **context: Any) -> AsyncIterator[Page]:
    """Somebody's browser: logged in by a token, with the Hub's styles and scripts; complaints fail the test."""
    token = await asyncio.to_thread(portal.world.token, user)
    complaints: list[str] = []

    async def from_hub(route: Route) -> None:
        path = route.request.url.split("/hub/", 1)[1]
        await route.fulfill(response=await route.fetch(url=f"{portal.world.public}/hub/{path}"))

    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        made = await chromium.new_context(reduced_motion="reduce", **context)
        page = await made.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.set_extra_http_headers({"Authorization": f"token {token}"})
        await page.route("**/hub/**", from_hub)
        yield page
        await page.unroute_all()
        await chromium.close()
    assert complaints == []
