"""The events of pods: which ones are kept, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from kubespawner import KubeSpawner

from dlspawner.spawner.kube import reflector
from dlspawner.spawner.kube.pod_store import EventWatch
from tests.harness.scripted_api import pod
from tests.harness.spawner_builders import make_spawner


def event(name: str, version: int, of: str = "a", **more: Any) -> dict[str, Any]:
    times = {"lastTimestamp": f"2026-01-01T00:00:{version % 60:02}Z", "eventTime": None}
    involved = {"kind": "Pod", "namespace": "jobs", "name": of}
    return {**pod(name, version), "involvedObject": involved, "message": name, **times, **more}


def names(events: list[Any]) -> list[str]:
    return [one["metadata"]["name"] for one in events]


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> EventWatch:
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _group: None)
    return EventWatch(namespace="jobs", fields={"involvedObject.kind": "Pod"})


async def test_events_are_in_the_order_of_their_times(watch: EventWatch) -> None:
    watch.on_event("ADDED", event("third", 3))
    watch.on_event("ADDED", event("second", 4, lastTimestamp=None, eventTime="2026-01-01T00:00:02.500000Z"))
    watch.on_event("ADDED", event("first", 5, lastTimestamp="2026-01-01T00:00:01Z"))
    watch.on_event("ADDED", event("no time", 6, lastTimestamp=None))
    watch.on_event("ADDED", event("of another pod", 4, of="b"))

    assert names(watch.of("jobs/a")) == ["no time", "first", "second", "third"]
    assert watch.of("other/a") == []


async def test_an_event_that_changes_is_kept_once_until_it_is_deleted(watch: EventWatch) -> None:
    watch.on_event("ADDED", event("failed", 3, count=1))
    watch.on_event("MODIFIED", event("failed", 4, count=2))
    watch.on_event("MODIFIED", event("failed", 2, count=0))
    assert [one["count"] for one in watch.of("jobs/a")] == [2]

    watch.on_event("DELETED", event("failed", 5))
    assert watch.events == []


async def test_a_list_replaces_all_events(watch: EventWatch) -> None:
    watch.on_event("ADDED", event("old", 3))
    listed = {f"jobs/{name}": reflector.pack(event(name, version)) for name, version in (("b", 9), ("a", 8))}
    await watch.on_list(listed, 9)

    assert names(watch.events) == ["a", "b"]


async def test_a_spawner_has_the_events_of_its_pod_since_its_start(
    watch: EventWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner = make_spawner(monkeypatch, settings=None)
    monkeypatch.setitem(type(spawner).reflectors, ("events", "jobs"), watch)
    for name, version, of in (
        ("before", 1, "jupyter-alice"),
        ("of another pod", 2, "b"),
        ("after", 3, "jupyter-alice"),
    ):
        watch.on_event("ADDED", event(name, version, of=of))
    assert names(spawner.events) == ["before", "after"]
    spawner._last_event = "uid-of-before"
    assert names(spawner.events) == ["after"]
    spawner._last_event = "uid-of-one-that-is-forgotten"
    assert names(spawner.events) == ["before", "after"]
    assert spawner.events == KubeSpawner.events.fget(spawner)

    spawner.events_enabled = False
    assert spawner.events == []
