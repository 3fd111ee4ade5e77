"""Open pages while Manager or Hub are away: they keep what they show, say that it is old, and follow afterwards."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import aiohttp
import pytest
from playwright.async_api import Page, Route, expect

from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state.notify import post
from tests.component.manager.manager_harness import wants
from tests.component.manager.portals import Portal, browsing, lead
from tests.component.manager.real_hub import free_port
from tests.component.manager.tcp_proxy import Wire, wired

pytestmark = [pytest.mark.slow, pytest.mark.browser]

AWAY = re.compile(r"The service does not answer at the moment; this page is as of \d\d:\d\d\.")
# What Chromium says of answers that are errors, or that do not come.
MEANT = ("Failed to load resource", "net::ERR")
SECONDS = 150_000
BEFORE_THE_STREAM = 20_000  # milliseconds; whoever got no stream asks for one again after 30 seconds at the earliest


@dataclass
class Followed:
    """Alice's open page, the wire to the Manager behind it, and where the page has been led by itself."""

    portal: Portal
    wire: Wire
    page: Page
    went: list[str]

    async def away(self) -> None:
        """The page says so, and keeps what it shows."""
        await expect(self.page.locator("#lost")).to_have_text(AWAY, timeout=SECONDS)
        await expect(self.page.get_by_text("first").first).to_be_visible()

    async def back(self) -> None:
        """What has changed meanwhile is shown, in the same page, and the line has gone."""
        await expect(self.page.get_by_text("later").first).to_be_visible(timeout=SECONDS)
        await expect(self.page.locator("#lost")).to_have_text("", timeout=SECONDS)
        assert self.went == []


@pytest.fixture
async def followed(portal: Portal) -> AsyncIterator[Followed]:
    portal.knows("alice", "first")
    await portal.runs(wants("alice", server="first"))
    async with wired(portal.served.manager.service.port) as wire, browsing(portal, "alice", forgives=MEANT) as page:
        await lead(portal.real_hub, wire.url)
        async with page.expect_response("**/api/events", timeout=90_000):
            await page.goto(f"{portal.real_hub.jobs}/")
        await expect(page.get_by_text("first").first).to_be_visible()
        went: list[str] = []
        page.on("framenavigated", lambda frame: went.append(frame.url))
        yield Followed(portal, wire, page, went)


@pytest.mark.parametrize("status", [None, 503], ids=["the connection breaks", "a proxy refuses it"])
async def test_page_without_a_stream_polls(portal: Portal, status: int | None) -> None:
    async def refuse(route: Route) -> None:
        await (route.abort() if status is None else route.fulfill(status=status))

    portal.knows("alice", "first")
    await portal.runs(wants("alice", server="first"))
    jobs = f"{portal.real_hub.jobs}/"
    async with browsing(portal, "alice", forgives=MEANT) as page:
        await page.route("**/api/events", refuse)
        # The look that follows from losing the stream is over before anything changes.
        async with page.expect_response(lambda one: one.request.resource_type == "fetch" and one.url == jobs):
            await page.goto(jobs)
        await expect(page.get_by_text("first").first).to_be_visible()
        portal.knows("alice", "later")
        await expect(page.get_by_text("later").first).to_be_visible(timeout=BEFORE_THE_STREAM)
        await expect(page.locator("#lost")).to_have_text("")


async def test_page_says_that_the_manager_is_away_and_follows_when_it_is_back(followed: Followed) -> None:
    await followed.wire.cut()
    await followed.away()
    followed.portal.knows("alice", "later")
    await followed.wire.mend()
    await followed.back()


@asynccontextmanager
async def without_hub(portal: Portal) -> AsyncIterator[None]:
    """The proxy finds nobody where the Hub was, nor does the Manager when it looks for people's servers."""
    routes, headers = (
        f"http://127.0.0.1:{portal.real_hub.proxy_port}/api/routes",
        {"Authorization": "token proxy-token"},
    )
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.get(routes) as answer:
            hub, known = (await answer.json())["/"], portal.hub.servers
        async with session.post(f"{routes}/", json={**hub, "target": f"http://127.0.0.1:{free_port()}"}) as answer:
            assert answer.status == 201
        portal.hub.servers = None
        try:
            yield
        finally:
            portal.hub.servers = known
            async with session.post(f"{routes}/", json=hub) as answer:
                assert answer.status == 201


async def test_page_opened_while_the_hub_is_away_is_complete(portal: Portal) -> None:
    portal.knows("alice", "first")
    await portal.runs(wants("alice", server="first"))
    broken: set[str] = set()
    async with browsing(portal, "alice", forgives=MEANT, color_scheme="dark") as page:
        await page.goto(f"{portal.real_hub.jobs}/")  # which lets its reader in; what it has loaded is forgotten
        async with without_hub(portal):
            await (await page.context.new_cdp_session(page)).send("Network.clearBrowserCache")
            page.on("response", lambda one: broken.add(one.url) if one.status >= 400 else None)
            await page.goto(f"{portal.real_hub.jobs}/")
            await expect(page.get_by_role("alert")).to_contain_text("The Hub does not answer at the moment")
            await expect(page.get_by_text("first").first).to_be_visible()
            assert await page.evaluate("getComputedStyle(document.querySelector('.navbar')).display") == "flex"
            assert await page.evaluate("document.documentElement.dataset.bsTheme") == "dark"
            await page.wait_for_load_state("load")
    assert broken <= {f"{portal.real_hub.public}/hub/logo"}


async def test_times_in_sentences_are_those_of_the_readers_time_zone(portal: Portal) -> None:
    request = await portal.runs(wants("alice"))
    job, at = portal.served.store.records[request.job].job, portal.harness.clock() + timedelta(minutes=30)
    text = "A node is closed {when}."
    await portal.served.leader.transact(post, job, NoticeKind.QUOTA_LOWERED, text, until=at)
    assert f"A node is closed at {at:%H:%M} UTC, in" in (await portal.read("alice")).text
    async with browsing(portal, "alice", timezone_id="Asia/Kolkata", locale="en-GB") as page:
        await page.goto(f"{portal.real_hub.jobs}/")
        local = f"{at.astimezone(ZoneInfo('Asia/Kolkata')):%H:%M}"
        await expect(page.get_by_text(f"A node is closed at {local}, in")).to_be_visible()
        shown = page.locator("[data-notice] time")
        assert datetime.fromisoformat(str(await shown.get_attribute("datetime"))) == at.replace(second=0, microsecond=0)
