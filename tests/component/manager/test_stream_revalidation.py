"""Streams whose reader's right is taken away while they listen; people's tokens are a real Hub's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from dlspawner.manager.http.api import base, events, logs
from tests.component.manager.manager_harness import wants
from tests.component.manager.portals import TEAMS, Portal
from tests.component.manager.real_hub import RealHub
from tests.component.manager.test_logs_rest import Reading, reading

__all__ = ["reading"]  # a fixture
SECONDS = 60


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right is looked at again soon, and no stream ends by itself within the test."""
    monkeypatch.setattr(base, "RECHECK_SECONDS", 0.2)
    monkeypatch.setattr(events, "LONGEST_SECONDS", 3600.0)
    monkeypatch.setattr(logs, "FOLLOW_SECONDS", 3600.0)


@pytest.fixture
def portal(portal: Portal) -> Portal:
    return forgetful(portal)


def forgetful(portal: Portal) -> Portal:
    portal.served.manager.auth.cache.max_age = 0.1
    return portal


class Badge:
    """A token that somebody takes back."""

    def __init__(self, real_hub: RealHub, user: str) -> None:
        real_hub.token(user)  # there is this person
        self.path, self.real_hub = f"/users/{user}/tokens", real_hub
        made = real_hub.setup("POST", self.path, json={}).json()
        self.token, self._id = made["token"], made["id"]

    def take_back(self) -> None:
        assert self.real_hub.setup("DELETE", f"{self.path}/{self._id}").status_code == 204


@contextlib.asynccontextmanager
async def listening(portal: Portal, token: str, path: str) -> AsyncIterator[aiohttp.StreamReader]:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as session,
        session.get(f"{portal.served.url}/api/{path}") as answer,
        asyncio.timeout(SECONDS),
    ):
        assert answer.status == 200, await answer.text()
        yield answer.content


async def last_event(stream: aiohttp.StreamReader) -> tuple[bytes, dict[str, object]]:
    *_, event = (await stream.read()).strip().removesuffix(b":").strip().split(b"\n\n")
    name, data = event.split(b"\n")
    return name, json.loads(data.removeprefix(b"data: "))


async def test_who_listens_with_a_token_that_is_taken_back_is_told_so_and_no_more(portal: Portal) -> None:
    badge = await asyncio.to_thread(Badge, portal.real_hub, "alice")
    async with listening(portal, badge.token, "events") as stream:
        await stream.readuntil(b"data: {}\n\n")
        await asyncio.to_thread(badge.take_back)
        name, data = await last_event(stream)
    assert name == b"event: ended"
    assert str(data["detail"]).startswith("This stream has ended: Say who you are")


async def test_who_was_an_admin_of_a_team_is_not_told_of_its_jobs_any_more(portal: Portal) -> None:
    token = await asyncio.to_thread(portal.real_hub.token, "vera")
    async with listening(portal, token, "events") as stream:
        await stream.readuntil(b"data: {}\n\n")
        await portal.runs(wants("alice", server="before"))
        assert b'"before"' in await stream.readuntil(b'"jobs"') + await stream.readline()
        (portal.harness.folder / "teams.yaml").write_text(TEAMS.replace("vera", "nobody"))
        await stream.readuntil(b'"more":true')
        await portal.runs(wants("alice", server="after"))
        told = await stream.readuntil(b'"cluster":true}\n\n')
    assert b"after" not in told


async def test_while_the_hub_cannot_be_asked_a_stream_goes_on(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await asyncio.to_thread(portal.real_hub.token, "alice")
    asked = asyncio.Semaphore(0)
    recognise = events.EventStreamHandler.recognise

    async def away(self: events.EventStreamHandler) -> None:
        asked.release()
        self.manager.auth.api_url = "http://127.0.0.1:9/hub/api"
        await recognise(self)

    async with listening(portal, token, "events") as stream:
        await stream.readuntil(b"data: {}\n\n")
        monkeypatch.setattr(events.EventStreamHandler, "recognise", away)
        for _ in range(3):
            await asked.acquire()
        await portal.runs(wants("alice", server="train"))
        assert b"train" in await stream.readuntil(b"train")


@pytest.mark.slow
@pytest.mark.parametrize("taken", ["token", "team"])
async def test_a_log_is_followed_no_longer_than_it_may_be_read(reading: Reading, taken: str) -> None:
    forgetful(reading)
    request = await reading.prints("true")
    badge = await asyncio.to_thread(Badge, reading.real_hub, "vera")
    async with listening(reading, badge.token, f"jobs/{request.job}/log?follow=true") as stream:
        assert await stream.readline() == b"done\n"
        if taken == "token":
            await asyncio.to_thread(badge.take_back)
        else:
            (reading.harness.folder / "teams.yaml").write_text(TEAMS.replace("vera", "nobody"))
        why = {"token": "Say who you are", "team": "There is no such job of yours."}[taken]
        last = (await stream.read()).decode()
    assert last.startswith(f"dlspawner: This stream has ended: {why}")
    log_reader = reading.served.leader.log_reader
    assert log_reader is not None
    assert not log_reader.followers
