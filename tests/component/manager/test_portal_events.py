"""Server-sent events; pages that follow them are in test_portal_keyboard.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from dlspawner.core.job import JobState
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import JobEvent, JobRecord
from dlspawner.manager.state import event_bus
from dlspawner.manager.state.event_bus import EventBus, Listener, ListenerShare
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import Portal
from tests.component.manager.test_portal_views import NOW, job


@contextlib.asynccontextmanager
async def streaming(portal: Portal, user: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Somebody who listens; what they are told, after they have been told that they listen."""
    token = await asyncio.to_thread(portal.real_hub.token, user)
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


async def test_owner_and_admin_receive_the_job_and_others_that_the_queue_has_changed(portal: Portal) -> None:
    async with streaming(portal, "alice") as alice, streaming(portal, "vera") as vera, streaming(portal, "bob") as bob:
        request = await portal.runs(wants("alice", server="train"))
        (mine,) = await first(alice, "jobs")
        assert (mine["id"], mine["user"], mine["server"]) == (request.job, "alice", "train")
        assert (await first(vera, "jobs"))[0]["id"] == request.job
        async with asyncio.timeout(20):
            event = await anext(bob)
        assert event == {"queue": True, "cluster": True}


async def test_streams_end_when_this_manager_is_no_leader_any_more(portal: Portal) -> None:
    leader = portal.served.leader
    async with streaming(portal, "alice") as alice:
        await portal.harness.make_node("gpu-2")
        assert await first(alice, "cluster") is True
        leader.event_bus.end()
        async with asyncio.timeout(20):
            assert [event async for event in alice if event.keys() - {"cluster", "queue"}] == []
    leader.admission = None
    answer = await portal.read("alice", "api/events")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    page = await portal.read("alice", "")
    assert (page.status, page.headers["Refresh"]) == (503, "5"), "it reloads"
    assert "does not decide now" in page.body


async def test_number_of_streams_is_limited(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(event_bus, "MOST", 1)
    async with streaming(portal, "bob"):
        answer = await portal.read("alice", "api/events")
        assert (answer.status, "ask again now and then" in answer.body) == (503, True), "no page of hers is to blame"


def entry(user: str = "alice", team: str = "vision", number: int = 2) -> JobEvent:
    return JobEvent(JobRecord(job(JobState.QUEUED, id=f"j-{number}", user=user, team=team)), NOW, EventReason.QUEUED)


def joined(bus: EventBus, *viewers: Viewer) -> list[Listener]:
    found = [bus.subscribe(viewer, ListenerShare("pages", viewer.name)) for viewer in viewers]
    return [one for one in found if isinstance(one, Listener)]


async def handed_on(bus: EventBus, *listeners: Listener) -> list[dict[str, Any]]:
    """What each of them was told, once one was told."""
    task = asyncio.create_task(bus.run())
    try:
        await asyncio.wait_for(asyncio.wait([asyncio.create_task(one.wait(5)) for one in listeners]), 10)
    finally:
        task.cancel()
    return [one.take().as_json() for one in listeners]


async def test_slow_reader_gets_the_latest_of_each_job_and_that_there_are_more() -> None:
    bus = EventBus()
    (listener,) = joined(bus, Viewer("vera", frozenset({"vision"})))
    listener.news.put({f"j-{number}": entry(number=number) for number in range(50)})
    again = entry("vera")
    bus.on_events([entry(), replace(again, reason="scheduled"), entry(number=77)])
    (news,) = await handed_on(bus, listener)
    jobs = {one["id"]: (one["user"], one["reason"]) for one in news["jobs"]}
    assert (len(jobs), jobs["j-2"], "j-77" in jobs, news["more"]) == (50, ("vera", "scheduled"), False, True)
