"""News of pods: which wait for each other, which do not, and that none is lost or told in another order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.clients.kubernetes import PODS, WatchEvent
from dlspawner.core.job import JobState
from dlspawner.manager.cluster import reconciler
from dlspawner.manager.cluster.reconciler import PodEventQueue
from tests.component.manager.manager_harness import NAMESPACE, Office, ask, until, wants
from tests.component.manager.queue_helpers import reasons, state

LONG = 3600.0  # seconds: nobody waits for so long


def change(kind: Any, uid: str, version: int = 0) -> WatchEvent:
    return WatchEvent(kind, {"metadata": {"uid": uid}, "version": version} if uid else {})


class Noted:
    """What was written down, in its order; ``free`` pods may wait."""

    def __init__(self, free: Collection[str] = (), seconds: float = LONG) -> None:
        self.changes: list[tuple[str, str, int]] = []
        self.news = PodEventQueue(
            self.note, lambda one: one.type != "SYNCED" and one.object["metadata"]["uid"] in free, seconds
        )

    async def note(self, one: WatchEvent) -> None:
        await asyncio.sleep(0)
        uid = one.object["metadata"]["uid"] if one.object else ""
        self.changes.append((one.type, uid, one.object.get("version", 0)))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.news.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_of_a_pod_that_starts_only_the_latest_is_written_down() -> None:
    noted = Noted(free="a", seconds=0.05)
    async with noted.running():
        for version in (1, 2, 3):
            await noted.news.put(change("MODIFIED", "a", version))
        await until(lambda: noted.changes, "it is written down")

        assert noted.changes == [("MODIFIED", "a", 3)]


@pytest.mark.parametrize("kind", ["DELETED", "SYNCED", "MODIFIED"])
async def test_what_may_not_wait_takes_along_what_came_before(kind: str) -> None:
    noted, uid = Noted(free="a"), "" if kind == "SYNCED" else "b"
    async with noted.running():
        await noted.news.put(change("ADDED", "a"))
        await noted.news.put(change(kind, uid))
        await until(lambda: len(noted.changes) == 2, "both are written down")

        assert noted.changes == [("ADDED", "a", 0), (kind, uid, 0)]


async def test_whoever_asks_finds_all_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "_PATIENCE_SECONDS", 60)
    noted = Noted(free="a")
    async with noted.running():
        await noted.news.put(change("ADDED", "a"))
        await noted.news.flush()

        assert noted.changes == [("ADDED", "a", 0)]
        await noted.news.flush()


async def test_a_database_that_is_away_keeps_nobody_waiting_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "_PATIENCE_SECONDS", 0.05)
    noted = Noted(free="a")  # and nobody writes it down
    await noted.news.put(change("ADDED", "a"))
    await noted.news.flush()

    assert not noted.changes


async def test_too_many_that_wait_are_written_down_before_more_are_taken() -> None:
    pods = [str(number) for number in range(2000)]
    noted = Noted(free=pods)
    async with noted.running():
        for uid in pods:
            await noted.news.put(change("ADDED", uid))

        assert len(noted.changes) > 1000


_CHANGES = st.lists(st.tuples(st.sampled_from(["MODIFIED", "DELETED", "SYNCED"]), st.sampled_from("abc")), max_size=30)


@settings(max_examples=50)
@given(told=_CHANGES, free=st.sets(st.sampled_from("abc")))
def test_the_last_of_each_pod_is_written_down_and_nothing_overtakes_an_end(
    told: list[tuple[str, str]], free: set[str]
) -> None:
    told = [one for at, one in enumerate(told) if ("DELETED", one[1]) not in told[:at]]  # who is gone is gone

    async def story() -> list[tuple[str, str, int]]:
        noted = Noted(free=free)
        async with noted.running():
            for version, (kind, uid) in enumerate(told, 1):
                await noted.news.put(change(kind, "" if kind == "SYNCED" else uid, version))
            await noted.news.put(change("DELETED", "the last"))
            await until(lambda: ("DELETED", "the last", 0) in noted.changes, "all of it is written down")
            return [one for one in noted.changes if one[1] != "the last"]

    written = asyncio.run(story())
    ends = [(kind, uid) for kind, uid in told if kind == "DELETED"]

    assert sorted((kind, uid) for kind, uid, _ in written if kind == "DELETED") == sorted(ends)
    for pod in "abc":
        versions = [version for kind, uid, version in written if uid == pod and kind != "SYNCED"]
        asked = [version for version, (kind, uid) in enumerate(told, 1) if uid == pod and kind != "SYNCED"]
        assert versions == sorted(versions)
        assert versions[-1:] == asked[-1:]
        for version, (kind, uid) in enumerate(told, 1):
            if uid == pod and kind == "DELETED":
                before = [one for one in asked if one < version]
                assert [one for one in versions if one < version][-1:] == before[-1:]


async def test_a_start_is_written_down_once_after_it_was_admitted(office: Office) -> None:
    office.news_seconds = 1.0
    alice = wants()
    async with office.manager() as acting:
        await ask(acting, alice)
        await office.bind(await office.make_pod(alice))
        await until(lambda: state(acting, alice) is JobState.RUNNING, "it runs")

        assert await reasons(acting, alice) in (["admitted", "running"], ["admitted", "pod-seen", "running"])


async def test_the_end_of_a_pod_that_was_never_written_down_ends_its_job_at_once(office: Office) -> None:
    office.news_seconds = LONG
    alice = wants()
    async with office.manager() as acting:
        await ask(acting, alice)
        pod = await office.make_pod(alice)
        await office.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
        await until(lambda: state(acting, alice) is JobState.ENDED, "it has ended")

        assert (await reasons(acting, alice))[0] == "admitted"
        assert (await reasons(acting, alice))[-1] == "disappeared"
