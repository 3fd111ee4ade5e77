"""Lists and watches of pods, and their faults, on a scripted API server."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dlspawner.core.launch.pod_status import PodDict
from dlspawner.spawner.kube import reflector
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pod_store import PodWatch
from dlspawner.spawner.kube.reflector import CompactObject, pack
from tests.component.spawner.conftest import PATIENCE, until
from tests.harness.scripted_api import CUT, EXPIRED, NEVER, SILENT, ScriptedApi, Watched, bookmark, event, listed, pod

TOKEN = "a-token-that-nobody-may-see"


@pytest.fixture
async def watch(api: ScriptedApi) -> AsyncIterator[PodWatch]:
    """Not started yet."""
    made = PodWatch(namespace="jobs", labels={"component": "singleuser-server"})
    yield made
    await made.stop()


async def seen(watch: PodWatch, name: str, version: int) -> PodDict:
    """The pod, once it is known at this version."""

    def known(found: PodDict | None) -> bool:
        return bool(found) and found["metadata"]["resourceVersion"] == str(version)

    found = await watch.until(f"jobs/{name}", known, PATIENCE)
    assert found is not None
    return found


async def gone(watch: PodWatch, name: str) -> None:
    await watch.until(f"jobs/{name}", lambda found: found is None, PATIENCE)


async def test_a_list_comes_in_pages(api: ScriptedApi, watch: PodWatch) -> None:
    api.lists = deque([listed(10, pod("a", 1), pod("b", 2), more="next"), listed(10, pod("c", 3))])
    await watch.start()

    assert list(watch.pods) == ["jobs/a", "jobs/b", "jobs/c"]
    assert [query.get("continue") for query in api.asked[:2]] == [None, "next"]
    assert {query["limit"] for query in api.asked[:2]} == {str(reflector.PAGE)}
    assert {query["labelSelector"] for query in api.asked[:2]} == {"component=singleuser-server"}


async def test_a_watch_that_never_begins_is_repeated(
    api: ScriptedApi, watch: PodWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "BEGIN_SECONDS", 0.1)
    begins = Watched([event("ADDED", pod("a", 11))], ends=SILENT)
    api.watches = deque([Watched(ends=NEVER), *[begins] * 100])
    await watch.start()
    await seen(watch, "a", 11)

    assert api.resumed[:2] == ["10", "10"]
    assert watch.request_timeout > reflector.BEGIN_SECONDS


async def test_an_expired_page_starts_the_list_again(api: ScriptedApi, watch: PodWatch) -> None:
    api.lists = deque([listed(10, pod("old", 1), more="next"), 410, listed(11, pod("a", 11))])
    await watch.start()

    assert list(watch.pods) == ["jobs/a"]
    assert api.listings == 2


@pytest.mark.parametrize("ends", ["well", CUT])
async def test_a_watch_that_ends_is_resumed_without_a_list(api: ScriptedApi, watch: PodWatch, ends: str) -> None:
    api.watches += [
        Watched([event("ADDED", pod("a", 11))], ends=ends),
        Watched([bookmark(15)], ends=ends),
        Watched([event("DELETED", pod("a", 16))], ends=ends),
        Watched([event("ADDED", pod("b", 17))], ends=SILENT),
    ]
    await watch.start()
    await seen(watch, "b", 17)

    assert api.resumed == ["10", "11", "15", "16"]
    assert api.listings == 1
    assert api.asked[-1]["allowWatchBookmarks"] == "True"
    assert 300 <= int(api.asked[-1]["timeoutSeconds"]) <= 450


@pytest.mark.parametrize(
    ("failed", "resumed"),
    [
        pytest.param([Watched([event("ADDED", pod("a", 16))[:30]], ends=CUT)], ["10"] * 2, id="a truncated line"),
        pytest.param([Watched(status=429)] * 2, ["10"] * 3, id="429"),
        pytest.param([Watched(status=503)] * 2, ["10"] * 3, id="503"),
        pytest.param([Watched([bookmark(15)], ends=SILENT)], ["10", "15"], id="a silent connection"),
    ],
)
async def test_a_watch_that_fails_is_resumed_without_a_list(
    api: ScriptedApi, watch: PodWatch, failed: list[Watched], resumed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if resumed[-1] == "15":
        monkeypatch.setattr(reflector, "SILENCE_SECONDS", 0.2)
    api.watches += [*failed, Watched([event("ADDED", pod("a", 16))], ends=SILENT)]
    await watch.start()
    await seen(watch, "a", 16)

    assert api.resumed[: len(resumed)] == resumed
    assert api.listings == 1


async def test_lines_may_come_in_pieces_and_together(api: ScriptedApi, watch: PodWatch) -> None:
    large = {"text": "x" * 1_500_000}
    stream = event("ADDED", pod("a", 11, spec={"text": "ü" * 50})) + b"\n" + event("ADDED", pod("b", 12))
    pieces = [stream[i : i + 7] for i in range(0, len(stream), 7)]
    api.watches.append(Watched([*pieces, event("ADDED", pod("c", 13, spec=large))], ends=SILENT))
    await watch.start()

    assert (await seen(watch, "c", 13))["spec"] == large
    assert watch.pods["jobs/a"]["spec"] == {"text": "ü" * 50}
    assert "jobs/b" in watch.pods


@pytest.mark.parametrize(
    "watched",
    [
        Watched(status=410),
        Watched([EXPIRED], ends=SILENT),
        Watched([event("ERROR", {})], ends=SILENT),
    ],
    ids=["410", "410 in the stream", "an error without a code"],
)
async def test_a_watch_that_cannot_be_resumed_is_followed_by_a_list(
    api: ScriptedApi, watch: PodWatch, watched: Watched
) -> None:
    api.lists = deque([listed(10, pod("a", 1)), listed(20, pod("a", 1), pod("b", 20))])
    api.watches.append(watched)
    await watch.start()
    await seen(watch, "b", 20)
    await until(lambda: len(api.resumed) == 2)

    assert api.resumed == ["10", "20"]


async def test_a_list_and_a_line_that_cannot_be_read_are_followed_by_a_list_and_are_not_logged(
    api: ScriptedApi, watch: PodWatch, caplog: pytest.LogCaptureFixture
) -> None:
    api.lists = deque([{"items": [TOKEN]}, listed(10), listed(20, pod("a", 20))])
    api.watches.append(Watched([f"garbage {TOKEN}\n".encode()], ends=SILENT))
    with caplog.at_level("DEBUG"):
        await watch.start()
        await seen(watch, "a", 20)

    assert TOKEN not in caplog.text


@pytest.mark.parametrize("indent", [None, 2])
def test_a_page_is_read_object_by_object_whatever_its_white_space(indent: int | None) -> None:
    tricky = pod("a", 1, spec={"text": '"items":[ü],{}]'})
    page = reflector.ListPage(
        json.dumps({"kind": "PodList", **listed(9, tricky, pod("b", 2), more="next")}, indent=indent).encode()
    )
    objects: dict[str, Any] = {}
    assert [page.read(objects), page.read(objects), page.read(objects)] == [True, True, False]

    assert {key: packed.read() for key, packed in objects.items()} == {"jobs/a": tricky, "jobs/b": pod("b", 2)}
    assert (page.version, page.following) == ("9", "next")


async def test_a_watch_that_keeps_failing_is_replaced_by_a_list(api: ScriptedApi, watch: PodWatch) -> None:
    api.lists = deque([listed(10), listed(20, pod("a", 20))])
    api.watches += [Watched(status=504)] * 20
    await watch.start()
    await seen(watch, "a", 20)


async def test_an_older_version_of_a_pod_replaces_nothing(api: ScriptedApi, watch: PodWatch) -> None:
    api.lists = deque([listed(30, pod("a", 20), pod("b", 21))])
    lines = [event("MODIFIED", pod("a", 15)), event("DELETED", pod("b", 16)), event("ADDED", pod("c", 31))]
    api.watches.append(Watched(lines, ends=SILENT))
    await watch.start()
    await seen(watch, "c", 31)

    assert watch.pods["jobs/a"]["metadata"]["resourceVersion"] == "20"
    assert "jobs/b" in watch.pods
    assert not watch.gone


async def test_the_last_version_of_a_deleted_pod_is_remembered(api: ScriptedApi, watch: PodWatch) -> None:
    api.lists = deque([listed(10, pod("a", 5, status={"phase": "Running"}))])
    api.watches.append(Watched([event("DELETED", pod("a", 12, status={"phase": "Failed"}))], ends=SILENT))
    await watch.start()
    await gone(watch, "a")

    assert watch.gone["jobs/a"]["status"] == {"phase": "Failed"}


LABELS = {"labels": {"component": "singleuser-server"}}


async def test_a_created_pod_that_the_next_list_lacks_is_gone(watch: PodWatch) -> None:
    watch.learn(pod("a", 12, metadata=LABELS))
    waiting = asyncio.ensure_future(watch.until("jobs/a", lambda found: found is None, PATIENCE))
    await asyncio.sleep(0)
    await watch.on_list({}, 20)

    assert await waiting is None
    assert "jobs/a" in watch.gone


@pytest.mark.parametrize(
    "earlier", [{}, {"jobs/a": pack(pod("a", 10, metadata=LABELS))}], ids=["its creation", "its change"]
)
async def test_a_list_from_before_what_is_known_of_a_pod_keeps_it(
    earlier: dict[str, CompactObject], watch: PodWatch
) -> None:
    watch.learn(pod("a", 12, metadata=LABELS))
    await watch.on_list(earlier, 11)

    assert watch.pods["jobs/a"]["metadata"]["resourceVersion"] == "12"


async def test_a_long_list_does_not_block_the_event_loop(watch: PodWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "SLICE_SECONDS", 0.0)
    listed_pods = {f"jobs/p{n}": pack(pod(f"p{n}", n + 1)) for n in range(100)}
    listing, turns = asyncio.ensure_future(watch.on_list(listed_pods, 100)), 0
    while not listing.done():
        turns += 1
        await asyncio.sleep(0)

    assert turns >= 50


async def test_a_late_answer_to_a_creation_does_not_restore_a_deleted_pod(watch: PodWatch) -> None:
    watch.on_event("ADDED", pod("a", 12, metadata=LABELS))
    watch.on_event("DELETED", pod("a", 13, metadata=LABELS))
    watch.learn(pod("a", 12, metadata=LABELS))

    assert "jobs/a" not in watch.pods


async def test_a_created_pod_with_other_labels_is_ignored(watch: PodWatch) -> None:
    watch.learn(pod("a", 12, metadata={"labels": {"component": "other"}}))

    assert not watch.pods


async def test_a_forbidden_list_raises_at_once_but_is_repeated(api: ScriptedApi, watch: PodWatch) -> None:
    api.lists = deque([403, listed(10, pod("a", 1))])
    with pytest.raises(StartRefused, match="may not see its pods"):
        await watch.start()
    await seen(watch, "a", 1)

    await watch.first_load_future


async def test_a_cancelled_waiter_does_not_cancel_the_others(api: ScriptedApi, watch: PodWatch) -> None:
    api.lists = deque([503])
    starting = asyncio.create_task(watch.start())
    await until(lambda: len(api.asked) > 1)
    other = asyncio.ensure_future(watch.first_load_future)
    starting.cancel()
    await asyncio.wait({starting})
    api.lists = deque([listed(10)])
    await asyncio.wait_for(other, PATIENCE)

    assert watch.first_load_future.done()


async def test_many_events_do_not_block_the_event_loop(api: ScriptedApi, watch: PodWatch) -> None:
    text = {"text": "x" * 7000}
    flood = b"".join(event("ADDED", pod(f"p{n}", 11 + n, spec=text)) for n in range(3000))
    api.watches.append(Watched([flood], ends=SILENT))
    await watch.start()
    turns = set()
    while len(watch.pods) < 3000:
        turns.add(len(watch.pods))
        await asyncio.sleep(0)

    assert len(turns) > 10


async def test_an_exception_in_a_handler_does_not_end_the_watch_and_logs_no_pod(
    api: ScriptedApi, watch: PodWatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api.lists = deque([listed(10), listed(20, pod("b", 20))])
    api.watches.append(Watched([event("ADDED", pod("a", 11, spec={"env": TOKEN}))], ends=SILENT))

    def broken(_change: str, found: PodDict) -> None:
        raise LookupError(str(found))

    monkeypatch.setattr(watch, "on_event", broken)
    await watch.start()
    await seen(watch, "b", 20)

    assert "in broken" in caplog.text
    assert TOKEN not in caplog.text
