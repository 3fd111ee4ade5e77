"""Open pages while what is behind them goes and comes: they keep what they show, say that it is old, and follow on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Page, Route, expect

from tests.component.manager.manager_harness import wants
from tests.component.manager.portals import Portal, browsing, lead, portals
from tests.component.manager.tcp_proxy import Wire, wired
from tests.component.manager.world import World, free_port

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
async def portal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        yield made


@pytest.fixture
async def followed(portal: Portal) -> AsyncIterator[Followed]:
    portal.knows("alice", "first")
    await portal.runs(wants("alice", server="first"))
    async with wired(portal.served.manager.service.port) as wire, browsing(portal, "alice", forgives=MEANT) as page:
        await lead(portal.world, wire.url)
        async with page.expect_response("**/api/events", timeout=90_000):
            await page.goto(f"{portal.world.jobs}/")
        await expect(page.get_by_text("first").first).to_be_visible()
        went: list[str] = []
        page.on("framenavigated", lambda frame: went.append(frame.url))
        yield Followed(portal, wire, page, went)


@pytest.mark.parametrize("status", [None, 503], ids=["the connection breaks", "a proxy refuses it"])
async def test_a_page_that_gets_no_stream_looks_by_itself(portal: Portal, status: int | None) -> None:
    async def refuse(route: Route) -> None:
        await (route.abort() if status is None else route.fulfill(status=status))

    portal.knows("alice", "first")
    await portal.runs(wants("alice", server="first"))
    jobs = f"{portal.world.jobs}/"
    async with browsing(portal, "alice", forgives=MEANT) as page:
        await page.route("**/api/events", refuse)
        # The look that follows from losing the stream is over before anything changes.
        async with page.expect_response(lambda one: one.request.resource_type == "fetch" and one.url == jobs):
            await page.goto(jobs)
        await expect(page.get_by_text("first").first).to_be_visible()
        portal.knows("alice", "later")
        await expect(page.get_by_text("later").first).to_be_visible(timeout=BEFORE_THE_STREAM)
        await expect(page.locator("#lost")).to_have_text("")


@pytest.mark.parametrize("of_a_job", [False, True], ids=["my jobs", "the job's page"])
async def test_that_a_job_answers_by_now_is_seen_although_nothing_tells_of_it(portal: Portal, of_a_job: bool) -> None:
    portal.knows("alice", "first")
    portal.hub.pending.add(("alice", "first"))
    job = await portal.runs(wants("alice", server="first"))
    address = f"{portal.world.jobs}/{f'jobs/{job.job}' if of_a_job else ''}"
    async with browsing(portal, "alice", forgives=MEANT) as page:
        await page.goto(address)
        late = page.get_by_text("It runs, and its program does not answer yet.")
        await expect(late).to_be_visible()
        for _ in range(3):  # the first looks follow from its being opened and from what has just happened
            async with page.expect_response(lambda one: one.request.resource_type == "fetch" and one.url == address):
                pass
        portal.hub.pending.clear()
        await expect(late).to_have_count(0, timeout=BEFORE_THE_STREAM)


async def test_a_page_that_goes_on_to_what_answers_slowly_goes_there_once(portal: Portal) -> None:
    went, looked = [], asyncio.Semaphore(0)

    async def answer(route: Route) -> None:
        if route.request.is_navigation_request():
            went.append(route.request.url)
            for _ in range(3):
                await looked.acquire()
        elif went:
            looked.release()
        await route.continue_()

    await portal.runs(wants("bob", server="all", gpus=8))
    await portal.waits(wants("alice", server="train"))
    waits = f"{portal.world.jobs}/wait/alice/train"
    async with browsing(portal, "alice") as page:
        await page.goto(waits)
        await expect(page.locator("#place")).to_have_text("1")
        await page.evaluate("setInterval(() => document.dispatchEvent(new Event('visibilitychange')), 200)")
        await page.route(lambda url: url == waits, answer)
        assert (await portal.read("alice", "wait/alice/train/cancel", "POST")).status == 303
        await expect(page.get_by_role("heading", name="train does not wait")).to_be_visible()
    assert went == [waits]


async def test_a_proxy_that_forgot_its_routes_takes_no_page_away(followed: Followed) -> None:
    await lead(followed.portal.world, None)
    await followed.wire.cut()
    await followed.away()
    followed.portal.knows("alice", "later")
    await followed.wire.mend()
    await lead(followed.portal.world, followed.wire.url)
    await followed.back()


async def test_a_page_says_that_the_manager_has_gone_and_follows_when_it_is_back(followed: Followed) -> None:
    await followed.wire.cut()
    await followed.away()
    followed.portal.knows("alice", "later")
    await followed.wire.mend()
    await followed.back()


async def test_an_open_page_says_that_the_hub_has_gone_and_that_it_is_back(followed: Followed) -> None:
    trouble, known = followed.page.get_by_role("alert"), followed.portal.hub.servers
    followed.portal.hub.servers = None
    await followed.portal.office.make_node("gpu-2")
    await expect(trouble).to_contain_text("The Hub does not answer at the moment", timeout=SECONDS)
    followed.portal.hub.servers = known
    await followed.portal.office.make_node("gpu-3")
    await expect(trouble).to_have_count(0, timeout=SECONDS)
    assert followed.went == []


@asynccontextmanager
async def without_hub(portal: Portal) -> AsyncIterator[None]:
    """The proxy finds nobody where the Hub was, nor does the Manager when it looks for people's servers."""
    routes, headers = f"http://127.0.0.1:{portal.world.proxy_port}/api/routes", {"Authorization": "token proxy-token"}
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


async def test_a_page_that_is_opened_while_the_hub_is_away_looks_as_always(portal: Portal) -> None:
    portal.knows("alice", "first")
    await portal.runs(wants("alice", server="first"))
    broken: set[str] = set()
    async with browsing(portal, "alice", forgives=MEANT, color_scheme="dark") as page:
        await page.goto(f"{portal.world.jobs}/")  # which lets its reader in; what it has loaded is forgotten
        async with without_hub(portal):
            await (await page.context.new_cdp_session(page)).send("Network.clearBrowserCache")
            page.on("response", lambda one: broken.add(one.url) if one.status >= 400 else None)
            await page.goto(f"{portal.world.jobs}/")
            await expect(page.get_by_role("alert")).to_contain_text("The Hub does not answer at the moment")
            await expect(page.get_by_text("first").first).to_be_visible()
            assert await page.evaluate("getComputedStyle(document.querySelector('.navbar')).display") == "flex"
            assert await page.evaluate("document.documentElement.dataset.bsTheme") == "dark"
            await page.wait_for_load_state("load")
    assert broken <= {f"{portal.world.public}/hub/logo"}


async def test_the_logo_is_drawn_on_a_light_ground_in_the_dark(portal: Portal) -> None:
    ground = "getComputedStyle(document.querySelector('.jpy-logo')).backgroundColor"
    async with browsing(portal, "alice", color_scheme="dark") as page:
        await page.goto(f"{portal.world.jobs}/")
        assert await page.evaluate(ground) == "rgb(248, 249, 250)"


async def test_a_page_says_that_the_manager_hangs(followed: Followed) -> None:
    followed.wire.hang()
    await followed.away()
    followed.portal.knows("alice", "later")
    await followed.wire.mend()
    await followed.back()
