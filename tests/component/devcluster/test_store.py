"""The store by itself: history, compaction, what is on disk. And the controllers that wait for a clock."""

import asyncio
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlspawner.devcluster.api import store as store_module
from dlspawner.devcluster.api.controllers.events import EventExpiry, Recorder
from dlspawner.devcluster.api.controllers.nodes import GRACE_SECONDS, TICK_SECONDS, NodeLifecycle
from dlspawner.devcluster.api.objects.resources import CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, NODES, PODS, Target
from dlspawner.devcluster.api.registry import DeleteOptions, Registry, timestamp
from dlspawner.devcluster.api.requests import Scope
from dlspawner.devcluster.api.store import Store, Version
from dlspawner.devcluster.api.watching import Bell, Watch, WatchOptions


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def now(self) -> dt.datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.moment.timestamp()

    def advance(self, seconds: float) -> None:
        self.moment += dt.timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(tmp_path: Path, clock: Clock) -> Iterator[Registry]:
    store = Store(tmp_path / "objects.sqlite")
    registry = Registry(store, clock.now)
    for name in ("a", "default", "kube-node-lease"):
        registry.create(NAMESPACES, "", {"metadata": {"name": name}})
    yield registry
    store.close()


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WINDOW", 10)
    monkeypatch.setattr(store_module, "_COMPACT_EVERY", 5)


def _churn(registry: Registry, times: int) -> None:
    for number in range(times):
        registry.create(CONFIG_MAPS, "a", {"metadata": {"name": f"c-{number % 7}"}, "data": {"n": str(number)}})
        if number % 2 or number % 7 == 0:
            registry.delete(CONFIG_MAPS, "a", f"c-{number % 7}", DeleteOptions())
        else:
            change = {"data": {"n": "changed"}}
            registry.patch(Target(CONFIG_MAPS, "a", f"c-{number % 7}"), lambda old: old | change)  # noqa: B023 - called at once
            registry.delete(CONFIG_MAPS, "a", f"c-{number % 7}", DeleteOptions())
    registry.create(CONFIG_MAPS, "a", {"metadata": {"name": "last"}})


@pytest.mark.usefixtures("small_window")
def test_compaction_keeps_objects_and_a_window(registry: Registry, tmp_path: Path) -> None:
    store = registry.store
    _churn(registry, 40)
    before = [version.wire() for version in store.objects(CONFIG_MAPS)]
    history = store.changes_since(CONFIG_MAPS, store.floor)
    rows = store._database.execute("SELECT count(*) FROM log").fetchone()[0]
    assert store.floor > 0
    assert rows < 40
    store.close()
    again = Store(tmp_path / "objects.sqlite")
    assert (again.revision, again.floor) == (store.revision, store.floor)
    assert [version.wire() for version in again.objects(CONFIG_MAPS)] == before
    resumed = again.changes_since(CONFIG_MAPS, again.floor)
    assert [(c.type, c.version.wire()) for c in resumed] == [(c.type, c.version.wire()) for c in history]
    assert [c.previous.revision if c.previous else 0 for c in resumed] == [
        c.previous.revision if c.previous else 0 for c in history
    ]
    again.close()


@pytest.mark.usefixtures("small_window")
async def test_watch_from_a_compacted_version_has_expired(registry: Registry) -> None:
    _churn(registry, 40)
    bell = Bell(registry.store)
    options = WatchOptions(start=1, bookmarks=False, initial_events=False, seconds=10)
    scope = Scope("", (), ())
    wake = bell.listen(CONFIG_MAPS)
    watch = Watch(registry.store, bell, CONFIG_MAPS, scope, options, Version.wire, wake)
    chunks = [chunk async for chunk in watch.events()]
    assert len(chunks) == 1
    assert b'"type":"ERROR"' in chunks[0]
    assert b'"code":410' in chunks[0]
    assert b'"reason":"Expired"' in chunks[0]


async def test_a_watch_sleeps_until_something_happens(registry: Registry) -> None:
    bell = Bell(registry.store)
    options = WatchOptions(start=registry.store.revision, bookmarks=False, initial_events=False, seconds=10)
    wake = bell.listen(CONFIG_MAPS)
    watch = Watch(registry.store, bell, CONFIG_MAPS, Scope("a", (), ()), options, Version.wire, wake)
    events = watch.events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    registry.create(CONFIG_MAPS, "default", {"metadata": {"name": "elsewhere"}})
    registry.create(CONFIG_MAPS, "a", {"metadata": {"name": "here"}})
    assert b'"name":"here"' in await first
    watch.stop()
    assert [chunk async for chunk in events] == []


def _node(registry: Registry) -> Any:
    ready = [{"type": "Ready", "status": "True", "lastHeartbeatTime": None}]
    return registry.create(NODES, "", {"metadata": {"name": "n"}, "status": {"conditions": ready}})


def _ready(version: Version) -> str:
    conditions = version.read()["status"]["conditions"]
    return str(next(condition["status"] for condition in conditions if condition["type"] == "Ready"))


def _taints(registry: Registry) -> set[str]:
    return {taint["key"] for taint in registry.get(NODES, "", "n").read()["spec"].get("taints") or []}


def _renew(registry: Registry, clock: Clock) -> None:
    renewed = {"spec": {"holderIdentity": "n", "renewTime": timestamp(clock.now())}}
    registry.patch(Target(LEASES, "kube-node-lease", "n"), lambda old: old | renewed)


async def test_a_node_that_renews_no_lease_is_unknown_until_it_speaks_again(registry: Registry, clock: Clock) -> None:
    lifecycle = NodeLifecycle(registry, clock.monotonic)
    _node(registry)
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}
    running = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    registry.edit(registry.create(PODS, "a", pod), lambda manifest: manifest["status"].update(running))
    registry.create(LEASES, "kube-node-lease", {"metadata": {"name": "n"}, "spec": {}})
    lifecycle.begin()
    for _ in range(5):
        _renew(registry, clock)
        clock.advance(GRACE_SECONDS - 1)
        lifecycle.reconcile()
        assert _ready(registry.get(NODES, "", "n")) == "True"
    clock.advance(TICK_SECONDS)
    lifecycle.reconcile()
    assert _ready(registry.get(NODES, "", "n")) == "Unknown"
    assert _taints(registry) == {"node.kubernetes.io/unreachable"}
    assert _ready(registry.get(PODS, "a", "p")) == "False"
    _renew(registry, clock)
    back = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    registry.patch(Target(NODES, "", "n", "status"), lambda old: old | back)
    lifecycle.reconcile()
    assert _taints(registry) == set()


async def test_pods_of_a_node_that_is_gone_go_too(registry: Registry, clock: Clock) -> None:
    lifecycle = NodeLifecycle(registry, clock.monotonic)
    lifecycle.begin()
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "gone", "containers": [{"name": "c", "image": "i"}]}}
    registry.create(PODS, "a", pod)
    lifecycle.reconcile()
    clock.advance(GRACE_SECONDS - 1)
    lifecycle.reconcile()
    registry.get(PODS, "a", "p")
    clock.advance(TICK_SECONDS)
    lifecycle.reconcile()
    assert registry.store.get(PODS, "a", "p") is None


async def test_events_go_an_hour_after_they_were_last_seen(registry: Registry, clock: Clock) -> None:
    expiry = EventExpiry(registry)
    recorder = Recorder(registry)
    about = registry.get(NAMESPACES, "", "a").read()
    recorder.record(about, "Normal", "Once", "once", "test")
    clock.advance(1800)
    recorder.record(about, "Normal", "Twice", "twice", "test")
    clock.advance(1700)
    recorder.record(about, "Normal", "Twice", "twice", "test")
    found = {version.read()["reason"]: version.read()["count"] for version in registry.store.values(EVENTS)}
    assert found == {"Once": 1, "Twice": 2}
    clock.advance(200)
    expiry.reconcile()
    assert [version.read()["reason"] for version in registry.store.values(EVENTS)] == ["Twice"]
