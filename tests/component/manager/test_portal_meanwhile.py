"""What is told of a job meanwhile: while a change is on its way to the disk, and before anybody has looked at it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import Portal, portals
from tests.component.manager.world import World


@pytest.fixture
async def portal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def busy(portal: Portal) -> AsyncIterator[None]:
    """Somebody else is writing to the database, which is read meanwhile."""
    begun, over = threading.Event(), threading.Event()
    other = asyncio.create_task(portal.served.manager.store.write(lambda _: (begun.set(), over.wait(20))))
    await until(begun.is_set, "it is being written")
    try:
        yield
    finally:
        over.set()
        await other


async def test_a_job_that_is_being_cancelled_is_on_the_page_until_it_is_there_as_cancelled(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8, server="all"))
    portal.knows("alice", "train")
    portal.hub.over.add(("alice", "train"))
    question = await portal.waits(wants("alice", server="train"))
    await portal.read("alice")
    async with busy(portal):
        cancelling = asyncio.create_task(portal.read("alice", "wait/alice/train/cancel", "POST"))
        await until(lambda: question.job not in portal.served.book.records, "it is decided")
        reading = asyncio.create_task(portal.read("alice"))
        await asyncio.wait({reading}, timeout=1)  # it may wait for what is being written
    assert (await cancelling).status == 303
    assert "It was cancelled before it ran." in (await reading).text


async def test_who_keeps_a_job_alive_that_nobody_has_looked_at_is_told_so_and_when_to_come_again(
    portal: Portal,
) -> None:
    question = await portal.runs(wants("alice", server="train"))
    told = "The Hub has not told yet whether this job is used: try again in a minute."
    answer = await portal.read("alice", f"api/jobs/{question.job}/keep-alive", "POST")
    assert (answer.status, json.loads(answer.body)["detail"]) == (503, told)
    assert answer.headers["Retry-After"] == "5"
    assert told in (await portal.read("alice", f"jobs/{question.job}/keep", "POST")).text
