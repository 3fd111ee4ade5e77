"""Server-sent events: who is told what, and pages that follow."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import expect

from dlspawner.core.job import JobState
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import JobEvent, JobRecord
from dlspawner.manager.state import event_bus
from dlspawner.manager.state.event_bus import EventBus, Listener, ListenerLimit, ListenerShare
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import Portal, browsing, portals
from tests.component.manager.test_portal_views import NOW, job
from tests.component.manager.world import World


@pytest.fixture
async def portal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def streaming(portal: Portal, user: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Somebody who listens; what they are told, after they have been told that they listen."""
    token = await asyncio.to_thread(portal.world.token, user)
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as session,
        session.get(f"{portal.served.url}/api/events") as answer,
    ):
        assert (answer.status, answer.content_type) == (200, "text/event-stream")

        async def told() -> AsyncIterator[dict[str, Any]]:
            async for line in answer.content:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

        events = told()
        assert await anext(events) == {}
        yield events


async def first(events: AsyncIterator[dict[str, Any]], part: str) -> Any:
    """The first of the events that has this part."""
    async with asyncio.timeout(20):
        async for event in events:
            if part in event:
                return event[part]
    raise AssertionError(part)


async def test_an_owner_is_told_of_a_job_and_others_that_the_queue_has_changed(portal: Portal) -> None:
    async with (
        streaming(portal, "alice") as alice,
        streaming(portal, "vera") as vera,
        streaming(portal, "bob") as bob,
    ):
        question = await portal.runs(wants("alice", server="train"))
        (mine,) = await first(alice, "jobs")
        assert (mine["id"], mine["user"], mine["server"]) == (question.job, "alice", "train")
        assert (await first(vera, "jobs"))[0]["id"] == question.job
        async with asyncio.timeout(20):
            event = await anext(bob)
        assert event == {"queue": True, "cluster": True}


async def test_where_nothing_changes_nobody_is_told_anything(portal: Portal) -> None:
    await portal.runs(wants("alice", server="train"))
    async with streaming(portal, "bob") as bob:
        await asyncio.sleep(1)  # what came before
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(bob)
    async with streaming(portal, "bob") as bob:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):  # the queue is looked through every three seconds
                pytest.fail(str(await anext(bob)))


async def test_a_node_is_news_for_everybody(portal: Portal) -> None:
    async with streaming(portal, "bob") as bob:
        await portal.office.make_node("gpu-2")
        assert await first(bob, "cluster") is True


async def test_when_this_manager_stops_acting_streams_end_and_new_ones_are_refused(portal: Portal) -> None:
    acting = portal.served.acting
    async with streaming(portal, "alice") as alice:
        acting.event_bus.end()
        async with asyncio.timeout(20):
            assert [event async for event in alice] == []
    acting.admission = None
    answer = await portal.read("alice", "api/events")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    page = await portal.read("alice", "")
    assert (page.status, page.headers["Refresh"]) == (503, "5"), "it looks again by itself"
    assert "Bearer" in (await portal.read("", "api/jobs")).headers["WWW-Authenticate"]


async def test_a_person_has_so_many_streams_and_gets_another_when_one_is_closed(portal: Portal) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(event_bus.PER_SHARE - 1):
            await stack.enter_async_context(streaming(portal, "alice"))
        async with streaming(portal, "alice"):
            answer = await portal.read("alice", "api/events")
            assert (answer.status, "close one" in answer.body) == (429, True)
            assert answer.headers["Retry-After"] == "60"
            async with streaming(portal, "bob"):
                pass

        async def is_free() -> bool:
            return await portal.read_status("alice", "api/events") == 200

        await until(is_free, "the closed one does not count")


@pytest.mark.parametrize("user", ["", "in a job"])
async def test_who_may_not_see_jobs_hears_nothing(portal: Portal, user: str) -> None:
    token = await asyncio.to_thread(portal.world.server_token, "alice", "train") if user else ""
    assert (await portal.read("", "api/events", token=token)).status == (403 if user else 401)


# The fan-out


def entry(user: str = "alice", team: str = "vision", number: int = 2) -> JobEvent:
    return JobEvent(JobRecord(job(JobState.QUEUED, id=f"j-{number}", user=user, team=team)), NOW, EventReason.QUEUED)


def joined(fan_out: EventBus, *viewers: Viewer) -> list[Listener]:
    found = [fan_out.subscribe(viewer, ListenerShare("pages", viewer.name)) for viewer in viewers]
    return [one for one in found if isinstance(one, Listener)]


async def handed_on(fan_out: EventBus, *listeners: Listener) -> list[dict[str, Any]]:
    """What each of them was told, once one was told."""
    task = asyncio.create_task(fan_out.run())
    try:
        await asyncio.wait_for(asyncio.wait([asyncio.create_task(one.wait(5)) for one in listeners]), 10)
    finally:
        task.cancel()
    return [one.take().as_json() for one in listeners]


VIEWERS = (
    Viewer("alice"),
    Viewer("vera", frozenset({"vision"})),
    Viewer("lars", frozenset({"language"})),
    Viewer("root", all=True),
)


async def test_everybody_is_told_of_what_they_may_see_and_of_no_more() -> None:
    fan_out = EventBus()
    listeners = joined(fan_out, *VIEWERS)
    fan_out.on_events([entry(), entry("bob", "language", 3)])
    told = await handed_on(fan_out, *listeners)
    assert [[one["id"] for one in news.get("jobs", ())] for news in told] == [["j-2"], ["j-2"], ["j-3"], ["j-2", "j-3"]]


async def test_who_does_not_read_costs_no_more_than_who_does() -> None:
    fan_out = EventBus()
    (listener,) = joined(fan_out, Viewer("root", all=True))
    fan_out.on_events([entry(number=number) for number in range(10_000)])
    (news,) = await handed_on(fan_out, listener)
    assert (len(news["jobs"]), news["more"]) == (50, True)


async def test_who_is_behind_learns_the_last_of_a_job_and_that_there_is_more() -> None:
    fan_out = EventBus()
    (listener,) = joined(fan_out, Viewer("vera", frozenset({"vision"})))
    listener.news.put({f"j-{number}": entry(number=number) for number in range(50)})
    again = entry("vera")
    fan_out.on_events([entry(), replace(again, reason="scheduled"), entry(number=77)])
    (news,) = await handed_on(fan_out, listener)
    told = {one["id"]: (one["user"], one["reason"]) for one in news["jobs"]}
    assert (len(told), told["j-2"], "j-77" in told, news["more"]) == (50, ("vera", "scheduled"), False, True)


async def test_a_change_costs_a_look_at_those_whom_it_concerns(monkeypatch: pytest.MonkeyPatch) -> None:
    named, fan_out = [0], EventBus()
    monkeypatch.setattr(event_bus, "_named", lambda _: named.__setitem__(0, named[0] + 1) or {})
    monkeypatch.setattr(Viewer, "reaches", lambda *_: pytest.fail("everybody is asked about every job"))
    listeners = joined(fan_out, *(Viewer(f"u{number}") for number in range(200)))
    fan_out.on_events([entry(f"u{number % 400}", number=number) for number in range(4000)])
    await handed_on(fan_out, *listeners)
    assert named[0] == 200 * 10


async def test_nobody_s_programs_take_the_places_of_pages_and_each_has_an_end() -> None:
    fan_out = EventBus()
    shares = (
        ListenerShare("pages", "alice"),
        ListenerShare("programs", "alice"),
        ListenerShare("service", "alice"),
        ListenerShare("service", "other"),
    )
    for share in shares:
        found = [fan_out.subscribe(Viewer("alice"), share) for _ in range(event_bus.PER_SHARE + 1)]
        assert found.index(ListenerLimit.SHARE) == event_bus.PER_SHARE, share


async def test_when_everything_is_full_nobody_is_told_to_close_a_page(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_bus, "MOST", 1)
    async with streaming(portal, "bob"):
        answer = await portal.read("alice", "api/events")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "60")
        assert "ask again now and then" in answer.body


async def test_what_nobody_listens_to_is_not_kept() -> None:
    fan_out = EventBus()
    fan_out.on_events([entry()])
    assert fan_out._entries == []
    (listener,) = joined(fan_out, Viewer("alice"))
    fan_out.unsubscribe(listener)
    assert fan_out._listeners == {}


# In a browser


@pytest.mark.slow
@pytest.mark.browser
async def test_an_open_page_follows_and_says_it(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlspawner.manager.http.portal.base.EVERY_SECONDS", 3600)  # it does not poll
    await portal.runs(wants("holder", gpus=8, server="all"))
    async with browsing(portal, "alice") as page:
        async with page.expect_response("**/api/events", timeout=90_000):
            await page.goto(f"{portal.world.jobs}/")
        await expect(page.get_by_text("You have no job now")).to_be_visible()
        question = await portal.waits(wants("alice", server="train"))
        portal.knows("alice", "train")
        await expect(page.get_by_text("Number 1 in the queue.")).to_be_visible()
        await expect(page.locator("#said")).to_have_text("train: waiting, number 1")
        await page.get_by_role("button", name="Cancel: train").focus()
        second = await portal.waits(wants("alice", server="later"))
        portal.knows("alice", "later")
        await expect(page.get_by_role("button", name="Cancel: later")).to_be_visible()
        await expect(page.get_by_role("button", name="Cancel: train")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").first).to_contain_text("train has ended")
        assert question.job not in portal.served.book.records
        assert second.job in portal.served.book.records
