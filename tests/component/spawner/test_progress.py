"""What a starting job is doing, in the words that its person reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dlspawner.spawner import start_problems
from dlspawner.spawner.kube.pod_status import ImagePull, StartStage, start_step
from tests.harness.spawner_builders import make_spawner

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def container(name: str = "notebook", *, ready: bool = False, since: float | None = None) -> dict[str, Any]:
    state = {"waiting": {"reason": "ContainerCreating"}} if since is None else {"running": {"startedAt": ago(since)}}
    return {"name": name, "ready": ready, "state": state}


def pod(*containers: dict[str, Any], node: str = "gpu-1", **more: Any) -> dict[str, Any]:
    metadata = {"uid": "1", "creationTimestamp": ago(3), **more.pop("metadata", {})}
    spec = {**({"nodeName": node} if node else {}), **more.pop("spec", {})}
    return {"metadata": metadata, "spec": spec, "status": {"containerStatuses": containers, **more}}


PULL = ImagePull("example.org/big:1", NOW - timedelta(seconds=82))
SIDECAR = {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}, {"name": "first"}, {"name": "second"}]}
SAID: dict[str, tuple[Mapping[str, Any] | None, ImagePull | None, str]] = {
    "no pod yet": (None, None, "Preparing storage and asking the cluster for a place."),
    "the pod of before": (
        pod(metadata={"deletionTimestamp": ago(1)}),
        None,
        "An earlier job of this server is ending.",
    ),
    "no node yet": (pod(node=""), None, "Waiting for a node."),
    "no node for long": (
        pod(node="", metadata={"creationTimestamp": ago(47)}),
        None,
        "Waiting for a node, for 45 seconds so far.",
    ),
    "another scheduler": (
        pod(node="", spec={"schedulerName": "volcano"}),
        None,
        "Waiting for the scheduler volcano to choose a node.",
    ),
    "on a node": (pod(container()), None, "The job has a place on gpu-1. Preparing storage and image."),
    "pulling": (
        pod(container()),
        PULL,
        "Pulling the image example.org/big:1 on gpu-1, for 1 minute and 20 seconds so far.",
    ),
    "an init container": (
        pod(
            container(),
            initContainerStatuses=[container("mesh", since=9), container("first"), container("second", since=30)],
            spec=SIDECAR,
        ),
        None,
        "Preparing the job on gpu-1: second (2 of 2) is running, for 30 seconds so far.",
    ),
    "one of two containers is not ready": (
        pod(container(since=20), container("main", ready=True, since=20)),
        None,
        "The job has started on gpu-1. Waiting until notebook is ready, for 20 seconds so far.",
    ),
    "neither is": (
        pod(container(since=1), container("main")),
        PULL,
        "The job has started on gpu-1. Waiting until notebook and main are ready.",
    ),
    "it runs": (pod(container(ready=True, since=1)), None, "The job runs on gpu-1. Waiting for its first answer."),
}


@pytest.mark.parametrize(("seen", "pull", "said"), SAID.values(), ids=list(SAID))
def test_progress_is_a_sentence(seen: Mapping[str, Any] | None, pull: ImagePull | None, said: str) -> None:
    assert start_step(seen, NOW, None, pull).event()["message"] == said


def test_what_holds_a_start_up_is_said_in_place_of_what_it_does() -> None:
    told = start_step(pod(node=""), NOW, "No node is free: wait.")

    assert (told.event()["message"], told.stage, told.trouble) == ("No node is free: wait.", StartStage.QUEUED, True)


def test_what_held_a_start_up_is_forgotten_when_it_runs() -> None:
    assert not start_step(pod(container(ready=True, since=1)), NOW, "It was held up.").trouble


def test_progress_only_grows_while_a_job_starts() -> None:
    order = (None, pod(node=""), pod(container()), pod(container(since=1)), pod(container(ready=True, since=1)))
    percents = [start_step(seen, NOW).percent for seen in order]

    assert percents == sorted(percents)
    assert len(set(percents)) == len(percents)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (4.9, "Pulling the image i:1 on gpu-1."),
        (5, "Pulling the image i:1 on gpu-1, for 5 seconds so far."),
        (64, "Pulling the image i:1 on gpu-1, for 1 minute so far."),
        (599, "Pulling the image i:1 on gpu-1, for 9 minutes and 55 seconds so far."),
        (629, "Pulling the image i:1 on gpu-1, for 10 minutes so far."),
        (-60, "Pulling the image i:1 on gpu-1."),
    ],
)
def test_how_long_so_far(seconds: float, said: str) -> None:
    pull = ImagePull("i:1", NOW - timedelta(seconds=seconds))

    assert start_step(pod(container()), NOW, None, pull).event()["message"] == said


def test_an_image_that_has_been_pulled_is_not_being_pulled() -> None:
    events = [
        {"message": 'Pulling image "i:1"', "lastTimestamp": "2026-01-01T00:00:01Z"},
        {"message": 'Successfully pulled image "i:1" in 3s', "lastTimestamp": "2026-01-01T00:00:04Z"},
    ]

    assert start_problems.pulled_image(events) is None
    assert start_problems.pulled_image(events[:1]) == ImagePull("i:1", datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC))


@pytest.mark.parametrize("last", [-1, 0], ids=["listed in order", "listed by name"])
def test_of_two_events_of_one_second_the_later_step_counts(last: int) -> None:
    events = [{"reason": "Scheduled", "message": "Successfully assigned", "eventTime": "2026-01-01T00:00:01.2Z"}]
    said = {"reason": "Pulling", "message": 'Pulling image "i:1"', "lastTimestamp": "2026-01-01T00:00:01Z"}
    events.insert(len(events) if last else 0, said)

    assert start_problems.pulled_image(events) is not None
    pulled = {"reason": "Pulled", "message": "Successfully pulled", "lastTimestamp": "2026-01-01T00:00:01Z"}
    assert start_problems.pulled_image([pulled, *events]) is None


def test_whoever_opens_the_page_late_finds_the_percentage_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    spawner = make_spawner(monkeypatch)
    monkeypatch.setattr(type(spawner), "pod", lambda spawner: spawner.shown)
    monkeypatch.setattr(type(spawner), "pod_reflector", None, raising=False)
    seen = []
    for spawner.shown in (pod(container(since=1)), pod(container()), pod(container(ready=True, since=1))):
        seen.append(spawner.step().percent)

    assert seen == [60, 60, 80]
