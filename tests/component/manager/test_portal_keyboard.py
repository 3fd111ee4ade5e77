"""The portal by keyboard alone, and pages that follow changes: focus stays, nothing jumps, announcements are few."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Dialog, Page, Route, expect

from dlspawner.core.endpoints import read_target
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import Portal, browsing
from tests.harness.accessible import DRAWN, JUMPS, SHOWN

pytestmark = [pytest.mark.slow, pytest.mark.browser]

# Writes down all that is said.
SAYS = """() => {
  window.words = [];
  const said = document.getElementById("said");
  window.times = [];
  const write = () => (window.words.push(said.textContent), window.times.push(Date.now()));
  new MutationObserver(write).observe(said, { childList: true });
}"""


@pytest.fixture
def portal(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> Portal:
    monkeypatch.setattr("dlspawner.manager.http.portal.base.EVERY_SECONDS", 3600)  # pages follow by events
    object.__setattr__(portal.served.manager, "ssh_target", read_target("gate.example:2222"))
    return portal


async def tab_to(page: Page, selector: str) -> None:
    """With the Tab key alone; where the keyboard is can be seen."""
    for _ in range(80):
        await page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if await focused.count():
            assert await focused.evaluate(SHOWN), await focused.evaluate("(one) => one.outerHTML")
            if await focused.evaluate("(one, selector) => one.matches(selector)", selector):
                return
    raise AssertionError(f"no key leads to {selector}")


async def opened(page: Page, portal: Portal, path: str) -> None:
    """A page that is told of changes."""
    async with page.expect_response("**/api/events", timeout=90_000):
        await page.goto(f"{portal.real_hub.jobs}/{path}")


async def runs(portal: Portal, user: str, server: str, gpus: int = 1) -> str:
    return (await portal.runs(wants(user, gpus=gpus, server=server), ssh_host_key="ssh-ed25519 x")).job


async def test_command_is_copied_and_job_stopped_by_keyboard(portal: Portal) -> None:
    job = await runs(portal, "alice", "train")
    answers: list[tuple[str, bool]] = []

    async def answer(dialog: Dialog) -> None:
        answers.append((dialog.message, bool(answers)))
        await (dialog.accept() if answers[-1][1] else dialog.dismiss())

    async with browsing(portal, "alice") as page:
        page.on("dialog", answer)
        await opened(page, portal, "")
        await tab_to(page, "[data-copy]")
        await page.keyboard.press("Enter")
        await expect(page.locator("#said")).to_have_text("Copied.")
        await tab_to(page, "button[aria-label='Stop: train']")
        await page.keyboard.press("Space")
        await expect(page.get_by_role("button", name="Stop: train")).to_be_focused()
        assert portal.served.store.records[job].stop is None, "who says no keeps the job"
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").first).to_contain_text("train is being stopped")
        await expect(page.locator("section[data-server=train] :focus")).to_have_count(1)
    assert answers == [("Stop train? Unsaved work is lost.", said) for said in (False, True)]


BUTTON = '<form action="stop"><button id="stop-train" aria-label="Cancel: train">Cancel</button></form>'


def section(name: str = "train", inside: str = "", number: int = 1) -> str:
    """A job as the page lists it; like there, the id of its heading is its place in the list."""
    return f'<section data-server="{name}"><h2 id="job-{number}">{name}</h2>{inside}</section>'


LINKED = section("train").replace(">train<", '><a href="/jobs/j-2">train</a><')
OTHER = section("other", BUTTON.replace("train", "other"))
AT_NAME = "section[data-server=train] h2:focus, section[data-server=train] h2 :focus"
ORDERS = {
    "its button goes": ([section()], AT_NAME),
    "its button goes, and more changes": ([section(), section(inside="<p>a</p>"), section(inside="<p>b</p>")], AT_NAME),
    "its button goes, its name becomes a link": ([section(), LINKED, LINKED], AT_NAME),
    "its button goes, another comes before it": ([section(), OTHER + section(number=2), section()], AT_NAME),
    "it goes, and comes back": (["", "<p>You have no job now.</p>", section(), section(inside="<p>a</p>")], AT_NAME),
    "it goes, and comes back with its button": (["", section(inside=BUTTON)], AT_NAME),
    "it goes, another comes": (["", OTHER, OTHER + "<p>a</p>"], "[data-live=jobs]:focus"),
    "its button moves": ([OTHER + section(inside=BUTTON, number=2), section(inside=BUTTON)], "#stop-train:focus"),
}


async def test_focus_is_kept_through_any_change(portal: Portal) -> None:
    shown, number = "", 0

    async def answer(route: Route) -> None:
        await route.fulfill(body=f'<main><div data-live="jobs">{shown}</div></main>', content_type="text/html")

    async def look(page: Page, jobs: str) -> None:
        nonlocal shown, number
        number += 1
        shown = f"{jobs}<p id=number>Look {number}</p>"
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(page.locator("#number")).to_have_text(f"Look {number}")
        await page.evaluate(DRAWN)  # the browser takes the keyboard away when it draws what cannot have it

    async with browsing(portal, "alice") as page:
        await opened(page, portal, "")
        await page.route(lambda url: url == f"{portal.real_hub.jobs}/", answer)
        for name, (order, where) in ORDERS.items():
            await look(page, section(inside=BUTTON))
            await page.locator("#stop-train").focus()
            for jobs in order:
                await look(page, jobs)
                await expect(page.locator(":focus"), name).to_have_count(1)
            await expect(page.locator(where), name).to_have_count(1)


async def test_many_changes_are_few_announcements(portal: Portal) -> None:
    await runs(portal, "bob", "all", gpus=8)
    async with browsing(portal, "alice") as page:
        await opened(page, portal, "")
        await page.evaluate(SAYS)
        assert await page.locator("#said").get_attribute("aria-live") == "polite"
        await portal.waits(wants("alice", server="train"))
        portal.knows("alice", "train")
        await expect(page.locator("#said")).to_have_text("train: queued, number 1")
        await expect(page.get_by_text("Number 1 in the queue.")).to_be_visible()
        names = [f"job-{number}" for number in range(12)]
        await asyncio.gather(*(portal.waits(wants("alice", server=name)) for name in names))  # however busy, together
        await expect(page.get_by_text("job-11").first).to_be_visible()
        await until(lambda: page.evaluate("window.words.join().includes('more changes')"), "they are announced")
        assert len(await page.evaluate("window.words")) <= 7


@pytest.mark.parametrize("path", ["", "queue", "cluster", "jobs/{job}", "wait/alice/train"])
async def test_nothing_jumps_while_a_page_follows(portal: Portal, path: str) -> None:
    await runs(portal, "bob", "all", gpus=7)
    await runs(portal, "bob", "one", gpus=1)
    portal.knows("alice", "train")
    job = (await portal.waits(wants("alice", server="train"))).job
    async with browsing(portal, "alice", viewport={"width": 1100, "height": 900}) as page:
        await page.context.add_init_script(JUMPS)
        await opened(page, portal, path.format(job=job))
        await page.evaluate(DRAWN)
        first = await page.evaluate("window.jumped")
        address = f"{portal.real_hub.jobs}/{path.format(job=job)}"
        async with page.expect_response(address):
            await portal.waits(wants("alice", gpus=2, server="later"))
        async with page.expect_response(address):
            await portal.harness.make_node("gpu-2", gpus=4)
        await until(lambda: "gpu-2" in portal.served.store.nodes, "the node is seen")
        await page.evaluate(DRAWN)
        jumped = await page.evaluate("window.jumped")
    assert (first, jumped <= 0.1) == (0, True), (first, jumped)
