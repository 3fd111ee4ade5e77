"""Waiting for a pod: woken by the watch's own writes into KubeSpawner's dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dlspawner.spawner.watch import REMEMBERED, PodDict, PodWatch


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> PodWatch:
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: None)
    return PodWatch()


def phase(name: str) -> Callable[[PodDict | None], bool]:
    return lambda pod: bool(pod) and pod["phase"] == name


async def test_a_pod_that_is_there_already_is_not_waited_for(watch: PodWatch) -> None:
    watch.resources = {"jobs/a": {"phase": "Running"}}

    assert await watch.until("jobs/a", phase("Running"), 0.01) == {"phase": "Running"}


async def test_an_event_wakes_who_waits_for_its_pod(watch: PodWatch) -> None:
    waiting = asyncio.ensure_future(watch.until("jobs/a", phase("Running"), 5))
    await asyncio.sleep(0)
    watch.resources["jobs/b"] = {"phase": "Running"}
    watch.resources["jobs/a"] = {"phase": "Pending"}
    await asyncio.sleep(0)
    assert not waiting.done()
    watch.resources["jobs/a"] = {"phase": "Running"}

    assert await waiting == {"phase": "Running"}


async def test_a_new_list_wakes_everybody(watch: PodWatch) -> None:
    waiting = asyncio.ensure_future(watch.until("jobs/a", lambda pod: pod is None, 5))
    watch.resources = {"jobs/a": {"phase": "Running"}}
    await asyncio.sleep(0)
    watch.resources = {}

    assert await waiting is None


async def test_a_pod_that_goes_wakes_who_waits_for_that(watch: PodWatch) -> None:
    watch.resources = {"jobs/a": {"phase": "Running"}}
    waiting = asyncio.ensure_future(watch.until("jobs/a", lambda pod: pod is None, 5))
    await asyncio.sleep(0)
    watch.resources.pop("jobs/a", None)

    assert await waiting is None


async def test_nothing_is_kept_of_those_who_gave_up(watch: PodWatch) -> None:
    with pytest.raises(TimeoutError):
        await watch.until("jobs/a", phase("Running"), 0.01)

    assert not watch._waiting


async def test_what_was_last_seen_of_a_pod_that_went_is_remembered(watch: PodWatch) -> None:
    watch.resources = {"jobs/a": {"phase": "Running"}, "jobs/b": {"phase": "Running"}}
    watch.resources["jobs/a"] = {"phase": "Failed"}
    watch.resources.pop("jobs/a", None)
    watch.resources = {}  # a new list, without the other

    assert watch.gone == {"jobs/a": {"phase": "Failed"}, "jobs/b": {"phase": "Running"}}


async def test_no_more_is_remembered_than_anybody_may_ask_for(watch: PodWatch) -> None:
    for number in range(REMEMBERED + 5):
        watch.resources[f"jobs/{number}"] = {"phase": "Running"}
        watch.resources.pop(f"jobs/{number}")

    assert len(watch.gone) == REMEMBERED
    assert "jobs/0" not in watch.gone
