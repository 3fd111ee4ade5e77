"""Waiting for a pod to run: notes, requests for events, and when a start is given up."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client.rest import ApiException

from dlspawner.spawner import start_problems
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.kube.pod_store import PodWatch
from dlspawner.spawner.kube.pods import PodRequests
from dlspawner.spawner.start_problems import StartMonitor
from tests.component.spawner.conftest import until
from tests.harness.spawner_builders import Answered, make_spawner

KEY = "jobs/jupyter-alice"
OBJECTS = Path(__file__).parent / "kubernetes_objects"


class Api:
    """The pod, its events and its claim; counts the requests for events."""

    def __init__(self) -> None:
        self.api_client = self
        self.events: list[dict[str, Any]] = []
        self.claim: dict[str, Any] | None = None
        self.pod: dict[str, Any] | None = None
        self.asked: list[str] = []
        self.problem: Exception | None = None
        self.silent = False

    def sanitize_for_serialization(self, model: Any) -> Any:
        return model

    async def list_namespaced_event(self, _namespace: str, field_selector: str, limit: int, **_: bool) -> Answered:
        self.asked.append(field_selector)
        if self.problem is not None:
            raise self.problem
        if self.silent:
            await asyncio.Event().wait()
        return Answered({"items": self.events[:limit]})

    async def read_namespaced_pod(self, _name: str, _namespace: str, **_: bool) -> Answered:
        return Answered(self.pod) if self.pod is not None else Answered({}, 404)

    async def read_namespaced_persistent_volume_claim(self, _name: str, _namespace: str, **_: bool) -> Answered:
        return Answered(self.claim) if self.claim is not None else Answered({}, 404)


class Start:
    """A start that waits for a pod, which a test changes."""

    def __init__(self, watch: PodWatch, seconds: float = 30, request_seconds: float = 1) -> None:
        self.api, self.watch, self.version = Api(), watch, 0
        self.pods = PodRequests(
            self.api, "jobs", "jupyter-alice", watch, logging.getLogger("start"), request_seconds, 1, 5
        )
        now = asyncio.get_running_loop().time()
        self.waiting = StartMonitor(self.pods, self.runs, now, seconds)
        self.created = {"metadata": {"name": "jupyter-alice", "uid": "1"}}

    @staticmethod
    def runs(pod: Any) -> bool:
        return bool(pod) and pod["status"].get("phase") == "Running"

    def show(self, pod: dict[str, Any] | None) -> None:
        """As the watch would, with another version each time."""
        if pod is None:
            self.watch.resources = {}
            return
        self.watch.resources = {KEY: self.version_of(pod)}

    def show_recorded(self, name: str) -> None:
        """A pod of a real Kubernetes with its claim and events."""
        found = json.loads((OBJECTS / f"{name}.json").read_text())
        self.api.claim = found.get("claim")
        self.api.events = found.get("claim_events") or found.get("events") or []
        self.show(found["pod"])

    def version_of(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The pod as the API server has it from now on."""
        self.version += 1
        own = {"name": "jupyter-alice", "namespace": "jobs", "uid": "1", "resourceVersion": str(self.version)}
        self.api.pod = {**pod, "metadata": {**pod["metadata"], **own}}
        return self.api.pod

    async def ended(self) -> str:
        with pytest.raises(StartRefused) as refused:
            async with asyncio.timeout(10):
                await self.waiting.until_running(self.created)
        return str(refused.value.message)

    async def note(self, wanted: Callable[[str], bool]) -> str:
        """The first note that is wanted, while the start goes on."""
        task = asyncio.create_task(self.waiting.until_running(self.created))
        try:
            async with asyncio.timeout(30):
                while not wanted(self.waiting.note or ""):
                    await self.watch.changed(KEY)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return self.waiting.note or ""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times between requests for events, and until a missing object is a failure."""
    monkeypatch.setattr(start_problems, "look_pauses", lambda: iter([0.05] * 1000))
    monkeypatch.setattr("dlspawner.spawner.start_problems.MISSING_SECONDS", 0.3)


PENDING: dict[str, Any] = {"metadata": {}, "spec": {}, "status": {"phase": "Pending"}}
CREATING: dict[str, Any] = {"metadata": {}, "spec": {"nodeName": "node-1"}, "status": {"phase": "Pending"}}
RUNNING: dict[str, Any] = {"metadata": {}, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}}


async def test_no_events_are_requested_for_a_pod_that_runs_soon(watch: PodWatch) -> None:
    start = Start(watch)
    loop = asyncio.get_running_loop()
    for pod in (PENDING, CREATING, RUNNING):
        loop.call_soon(start.show, pod)
    await start.waiting.until_running(start.created)

    assert start.api.asked == []
    assert start.waiting.note is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pull-not-found-first", "does not exist in its registry"),
        ("mount-no-secret", "needs the Secret no-such-secret"),
    ],
)
async def test_a_lasting_problem_ends_the_start(name: str, words: str, watch: PodWatch) -> None:
    start = Start(watch)
    start.show_recorded(name)

    assert words in await start.ended()


async def test_a_problem_that_may_pass_is_shown_and_is_the_reason_in_the_end(watch: PodWatch) -> None:
    start = Start(watch, seconds=3600)
    start.waiting.since -= 3595
    start.waiting.seconds = 3595
    start.show_recorded("no-gpu-type")
    said = await start.ended()

    assert "No node of the kind" in (start.waiting.note or "")
    assert ", and the job was given up after 1 hour: " in said


async def test_a_problem_that_passes_is_forgotten(watch: PodWatch) -> None:
    start = Start(watch)
    start.show_recorded("gpus-in-use")
    assert "No node has enough free" in await start.note(bool)
    asyncio.get_running_loop().call_soon(start.show, RUNNING)
    await start.waiting.until_running(start.created)

    assert start.waiting.note is None


@pytest.mark.parametrize(
    ("name", "words"), [("mount-nfs", "cannot be mounted"), ("claim-no-class", "no default StorageClass")]
)
async def test_a_problem_is_known_from_the_events_of_pod_and_claim(name: str, words: str, watch: PodWatch) -> None:
    start = Start(watch)
    start.show_recorded(name)

    assert words in await start.note(lambda note: words in note)


async def test_the_secret_of_internal_ssl_may_come_after_the_pod(
    watch: PodWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start(watch)
    start.show_recorded("mount-no-secret")
    *_, event = start.api.events
    start.api.events = [{**event, "message": event["message"].replace("no-such-secret", "jupyter-alice")}]
    spawner = make_spawner(monkeypatch, settings=None, config={"internal_ssl": True, "start_timeout": 60})
    monkeypatch.setattr(type(spawner), "pods", start.pods)
    monkeypatch.setattr(spawner, "is_pod_running", start.runs)
    monkeypatch.setattr(spawner, "_began", asyncio.get_running_loop().time())
    assert spawner.secret_name == "jupyter-alice"
    waits = asyncio.create_task(spawner._until_running(start.created))
    await until(lambda: len(start.api.asked) >= 10)  # longer than MISSING_SECONDS
    assert not waits.done()
    start.show(RUNNING)

    await waits
    assert spawner._waiting.note is None


async def test_a_pull_that_takes_long_is_shown_and_is_the_reason_in_the_end(watch: PodWatch) -> None:
    start = Start(watch, seconds=2)
    start.api.events = [
        {"type": "Normal", "message": "Successfully assigned", "eventTime": "2026-01-01T00:00:00.000000Z"},
        {"type": "Normal", "message": 'Pulling image "example.org/big:1"', "lastTimestamp": "2026-01-01T00:00:01Z"},
    ]
    start.show(CREATING)

    assert "The image example.org/big:1 takes too long to pull, and the job was given up" in await start.ended()
    assert start.waiting.pull is not None
    assert start.waiting.pull.image == "example.org/big:1"
    assert start.api.asked == ["involvedObject.kind=Pod,involvedObject.name=jupyter-alice,involvedObject.uid=1"]


async def test_without_the_right_to_see_events_the_start_goes_on(
    watch: PodWatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(watch, seconds=0.3)
    start.api.problem = ApiException(status=403, reason="Forbidden")
    start.show(CREATING)

    assert "image or storage takes too long" in await start.ended()
    assert "cannot see why it waits: status=403 Forbidden" in caplog.text


async def test_an_unanswered_request_for_events_does_not_delay_the_reason(watch: PodWatch) -> None:
    start = Start(watch, seconds=2, request_seconds=60)
    start.api.silent = True
    start.show_recorded("pull-no-registry-backoff")

    assert "registry does not answer" in await start.ended()
    assert start.api.asked


@pytest.mark.parametrize("shown", [CREATING, None], ids=["an old version in the watch", "no pod in the watch"])
async def test_a_pod_that_runs_while_the_watch_is_silent_is_found(
    shown: dict[str, Any] | None, watch: PodWatch
) -> None:
    start = Start(watch)
    start.show(shown)
    start.version_of(RUNNING)
    async with asyncio.timeout(20):
        await start.waiting.until_running(start.created)

    assert watch.pods[KEY]["status"]["phase"] == "Running"


async def test_a_start_reads_the_pod_before_it_gives_up(watch: PodWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_problems, "look_pauses", lambda: iter([1000.0] * 10))
    start = Start(watch, seconds=4)
    start.show(CREATING)
    start.version_of(RUNNING)
    await start.waiting.until_running(start.created)

    assert watch.pods[KEY]["status"]["phase"] == "Running"


async def test_an_earlier_pod_in_the_watch_is_ignored(watch: PodWatch) -> None:
    start = Start(watch)
    start.watch.resources = {KEY: {"metadata": {"uid": "an earlier one"}, "status": {"phase": "Failed"}}}
    asyncio.get_running_loop().call_later(0.05, start.show, RUNNING)
    await start.waiting.until_running(start.created)


def test_the_reason_comes_before_the_hubs_own_deadline() -> None:
    assert start_problems.deadline_of(600) == 595
    assert start_problems.deadline_of(10) == 9
