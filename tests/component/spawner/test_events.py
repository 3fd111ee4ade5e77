"""The events of pods: what is kept of them, for how long, and in which order they are told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from kubespawner import KubeSpawner

from dlspawner.spawner.kube import pod_store, reflector
from dlspawner.spawner.kube.pod_store import EVENTS_OF_A_POD, PODS_WITH_EVENTS, EventWatch
from tests.harness.loop_probe import others
from tests.harness.scripted_api import pod
from tests.harness.spawner_builders import make_spawner


def told(name: str, version: int, of: str = "a", **more: Any) -> dict[str, Any]:
    times = {"lastTimestamp": f"2026-01-01T00:00:{version % 60:02}Z", "eventTime": None}
    involved = {"kind": "Pod", "namespace": "jobs", "name": of}
    return {**pod(name, version), "involvedObject": involved, "message": name, **times, **more}


def names(events: list[Any]) -> list[str]:
    return [event["metadata"]["name"] for event in events]


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> EventWatch:
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: None)
    return EventWatch(namespace="jobs", fields={"involvedObject.kind": "Pod"})


async def test_events_are_told_in_the_order_of_their_times(watch: EventWatch) -> None:
    watch.on_event("ADDED", told("third", 3))
    watch.on_event("ADDED", told("second", 4, lastTimestamp=None, eventTime="2026-01-01T00:00:02.500000Z"))
    watch.on_event("ADDED", told("first", 5, lastTimestamp="2026-01-01T00:00:01Z"))
    watch.on_event("ADDED", told("no time", 6, lastTimestamp=None))

    assert names(watch.events) == ["no time", "first", "second", "third"]
    assert watch.of("jobs/a") == watch.events


async def test_an_event_is_a_whole_dictionary(watch: EventWatch) -> None:
    watch.on_event("ADDED", told("pulled", 3, count=2, reason="Pulled"))

    assert watch.of("jobs/a") == [told("pulled", 3, count=2, reason="Pulled")]


async def test_those_of_other_pods_are_not_told(watch: EventWatch) -> None:
    watch.on_event("ADDED", told("mine", 3))
    watch.on_event("ADDED", told("theirs", 4, of="b"))

    assert names(watch.of("jobs/a")) == ["mine"]
    assert watch.of("other/a") == []


async def test_an_event_that_happens_again_is_told_once(watch: EventWatch) -> None:
    watch.on_event("ADDED", told("failed", 3, count=1))
    watch.on_event("MODIFIED", told("failed", 4, count=2))
    watch.on_event("MODIFIED", told("failed", 2, count=0))

    assert [event["count"] for event in watch.of("jobs/a")] == [2]


async def test_an_event_that_kubernetes_forgets_is_forgotten(watch: EventWatch) -> None:
    watch.on_event("ADDED", told("pulled", 3))
    watch.on_event("DELETED", told("pulled", 4))

    assert watch.events == []
    assert not watch._pods


async def test_a_list_replaces_what_was_known(watch: EventWatch) -> None:
    watch.on_event("ADDED", told("old", 3))
    await watch.on_list(
        {f"jobs/{name}": reflector.pack(told(name, version)) for name, version in (("b", 9), ("a", 8))},
        9,
        restored=False,
    )

    assert names(watch.events) == ["a", "b"]


async def test_a_pod_keeps_its_latest_events(watch: EventWatch) -> None:
    for number in range(EVENTS_OF_A_POD + 5):
        watch.on_event("ADDED", told(f"e{number}", number + 1))

    kept = {event["metadata"]["name"] for event in watch.of("jobs/a")}
    assert kept == {f"e{number}" for number in range(5, EVENTS_OF_A_POD + 5)}


async def test_of_many_pods_those_told_of_last_keep_theirs(watch: EventWatch) -> None:
    for number in range(PODS_WITH_EVENTS + 1):
        watch.on_event("ADDED", told(f"e{number}", number + 1, of=f"p{number}"))

    assert not watch.of("jobs/p0")
    assert watch.of("jobs/p1")
    assert len(watch.events) == PODS_WITH_EVENTS


async def test_events_of_long_ago_are_forgotten(watch: EventWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.on_event("ADDED", told("old", 1, of="old"))
    later = time.monotonic() + pod_store.EVENTS_SECONDS + 1
    monkeypatch.setattr(pod_store.time, "monotonic", lambda: later)
    watch.on_event("ADDED", told("new", 2))

    assert names(watch.events) == ["new"]


async def test_a_list_makes_nothing_younger(watch: EventWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.on_event("ADDED", told("old", 1, of="old"))
    later = time.monotonic() + pod_store.EVENTS_SECONDS - 60
    monkeypatch.setattr(pod_store.time, "monotonic", lambda: later)
    await watch.on_list({"jobs/old": reflector.pack(told("old", 1, of="old"))}, 5, restored=False)
    assert names(watch.events) == ["old"]
    monkeypatch.setattr(pod_store.time, "monotonic", lambda: later + 120)
    watch.on_event("ADDED", told("new", 6))

    assert names(watch.events) == ["new"]


async def test_a_long_list_holds_nobody_up(watch: EventWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "SLICE_SECONDS", 0.0)
    events = {
        f"jobs/e{number}": reflector.pack(told(f"e{number}", number + 1, of=f"p{number}")) for number in range(100)
    }
    async with others() as turns:
        await watch.on_list(events, 100, restored=False)

    assert len(turns) >= 50


async def test_a_list_wakes_who_waits_for_a_pods_events(watch: EventWatch) -> None:
    waiting = asyncio.ensure_future(watch.changed("jobs/a"))
    await asyncio.sleep(0)
    await watch.on_list({"jobs/new": reflector.pack(told("new", 3))}, 5, restored=False)

    await asyncio.wait_for(waiting, 60)


async def test_who_waits_for_a_pods_events_is_woken(watch: EventWatch) -> None:
    waiting = asyncio.ensure_future(watch.changed("jobs/a"))
    await asyncio.sleep(0)
    watch.on_event("ADDED", told("theirs", 1, of="b"))
    await asyncio.sleep(0)
    assert not waiting.done()
    watch.on_event("ADDED", told("mine", 2))

    await asyncio.wait_for(waiting, 30)


async def test_an_event_about_nothing_harms_nobody(watch: EventWatch) -> None:
    watch.on_event("ADDED", pod("odd", 3))

    assert names(watch.events) == ["odd"]


async def test_a_spawner_tells_the_events_of_its_pod_since_its_start(
    watch: EventWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner = make_spawner(monkeypatch, settings=None)
    monkeypatch.setitem(type(spawner).reflectors, ("events", "jobs"), watch)
    for name, version, of in (("before", 1, "jupyter-alice"), ("theirs", 2, "b"), ("after", 3, "jupyter-alice")):
        watch.on_event("ADDED", told(name, version, of=of))
    assert names(spawner.events) == ["before", "after"]
    spawner._last_event = "uid-of-before"
    assert names(spawner.events) == ["after"]
    spawner._last_event = "uid-of-one-that-is-forgotten"
    assert names(spawner.events) == ["before", "after"]
    assert spawner.events == KubeSpawner.events.fget(spawner)

    spawner.events_enabled = False
    assert spawner.events == []
