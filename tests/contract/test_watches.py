"""Watches: where they start, what they show, bookmarks, ends, and versions too old or not yet there."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.client import Client, pod


def _create(cluster: Client, config_maps: str, name: str, **labels: str) -> Any:
    return cluster.create(config_maps, {"metadata": {"name": name, "labels": labels}})


def test_watch_continues_where_a_list_ended(cluster: Client, config_maps: str) -> None:
    _create(cluster, config_maps, "before")
    version = cluster.get(config_maps)["metadata"]["resourceVersion"]
    with cluster.watch(config_maps, resourceVersion=version) as watch:
        created = _create(cluster, config_maps, "a")
        changed = cluster.patched(f"{config_maps}/a", {"data": {"k": "v"}})
        cluster.delete(f"{config_maps}/a")
        assert watch.next() == ("ADDED", created)
        assert watch.next() == ("MODIFIED", changed)
        kind, gone = watch.next()
        assert (kind, gone["data"]) == ("DELETED", {"k": "v"})
        assert int(gone["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


def test_watch_shows_earlier_events_since_its_version(cluster: Client, config_maps: str) -> None:
    version = _create(cluster, config_maps, "a")["metadata"]["resourceVersion"]
    _create(cluster, config_maps, "b")
    cluster.delete(f"{config_maps}/b")
    with cluster.watch(config_maps, resourceVersion=version) as watch:
        assert [(kind, seen["metadata"]["name"]) for kind, seen in (watch.next(), watch.next())] == [
            ("ADDED", "b"),
            ("DELETED", "b"),
        ]


@pytest.mark.parametrize("start", [{}, {"resourceVersion": "0"}, {"resourceVersion": ""}])
def test_watch_from_no_version_first_shows_what_is_there(
    cluster: Client, config_maps: str, start: dict[str, str]
) -> None:
    _create(cluster, config_maps, "a", of="test")
    with cluster.watch(config_maps, labelSelector="of=test", **start) as watch:
        kind, seen = watch.next()
        assert (kind, seen["metadata"]["name"]) == ("ADDED", "a")
        cluster.delete(f"{config_maps}/a")
        assert watch.next()[0] == "DELETED"


def test_objects_enter_and_leave_a_selector(cluster: Client, config_maps: str) -> None:
    version = _create(cluster, config_maps, "a", colour="red")["metadata"]["resourceVersion"]
    with cluster.watch(config_maps, resourceVersion=version, labelSelector="colour=blue") as watch:
        cluster.patched(f"{config_maps}/a", {"metadata": {"labels": {"colour": "blue"}}})
        cluster.patched(f"{config_maps}/a", {"data": {"k": "v"}})
        left = cluster.patched(f"{config_maps}/a", {"metadata": {"labels": {"colour": "red"}}})
        cluster.delete(f"{config_maps}/a")
        _create(cluster, config_maps, "b", colour="blue")
        seen = [watch.next() for _ in range(4)]
    assert [kind for kind, _ in seen] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    assert seen[2][1]["metadata"]["labels"] == {"colour": "blue"}  # as the watcher last knew it
    assert seen[2][1]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


def test_watch_of_one_object_by_field(cluster: Client, pods: str) -> None:
    version = cluster.get(pods)["metadata"]["resourceVersion"]
    with cluster.watch(pods, resourceVersion=version, fieldSelector="status.phase=Running") as watch:
        cluster.create(pods, pod())
        cluster.patched(f"{pods}/p/status", {"status": {"phase": "Running"}})
        assert watch.next()[0] == "ADDED"
        cluster.patched(f"{pods}/p/status", {"status": {"phase": "Succeeded"}})
        assert watch.next()[0] == "DELETED"


def test_watch_ends_when_its_time_is_up_with_a_bookmark(cluster: Client, config_maps: str) -> None:
    version = _create(cluster, config_maps, "a")["metadata"]["resourceVersion"]
    start = time.monotonic()
    with cluster.watch(config_maps, resourceVersion=version, timeoutSeconds=1, allowWatchBookmarks="true") as watch:
        events = watch.rest()
    assert 0.5 < time.monotonic() - start < 20
    for event in events:  # a server may leave the last bookmark out; what comes must be one
        assert event["type"] == "BOOKMARK"
        assert event["object"]["kind"] == "ConfigMap"
        assert int(event["object"]["metadata"]["resourceVersion"]) >= int(version)


def test_initial_events_end_with_a_bookmark_that_says_so(cluster: Client, config_maps: str) -> None:
    _create(cluster, config_maps, "a", of="test")
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with cluster.watch(config_maps, labelSelector="of=test", **options) as watch:
        assert watch.next()[0] == "ADDED"
        kind, mark = watch.next()
    assert kind == "BOOKMARK"
    assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


@pytest.mark.parametrize("path", ["", "/a"], ids=["a list", "an object"])
def test_version_in_the_future_is_a_timeout(cluster: Client, config_maps: str, path: str) -> None:
    _create(cluster, config_maps, "a")
    status = cluster.expect(504, "GET", f"{config_maps}{path}", resourceVersion="999999999999")
    assert (status["reason"], status["details"]["causes"][0]["reason"]) == ("Timeout", "ResourceVersionTooLarge")


def test_watch_from_a_version_that_is_not_yet_there_waits(cluster: Client, config_maps: str) -> None:
    _create(cluster, config_maps, "a")
    with cluster.watch(config_maps, resourceVersion="999999999999", timeoutSeconds=1) as watch:
        _create(cluster, config_maps, "b")
        assert watch.rest() == []


def test_every_watcher_sees_every_event_in_order(cluster: Client, config_maps: str) -> None:
    version = cluster.get(config_maps)["metadata"]["resourceVersion"]
    ready, names = threading.Barrier(11), [f"n-{number}" for number in range(20)]

    def follow(_: int) -> list[str]:
        with cluster.watch(config_maps, resourceVersion=version) as watch:
            ready.wait()
            return [watch.next("ADDED")[1]["metadata"]["name"] for _ in names]

    with ThreadPoolExecutor(10) as threads:
        seen = threads.map(follow, range(10))
        ready.wait()
        for name in names:
            _create(cluster, config_maps, name)
        assert list(seen) == [names] * 10
