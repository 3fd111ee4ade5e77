"""The progress of a start: sentence and percentage."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dlspawner.core.launch.pod_status import ImagePull, StartStage, start_step
from dlspawner.spawner import start_problems
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


def pull(seconds: float) -> ImagePull:
    return ImagePull("big:1", NOW - timedelta(seconds=seconds))


SIDECAR = {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}, {"name": "first"}, {"name": "second"}]}
STEPS: dict[str, tuple[Mapping[str, Any] | None, ImagePull | None, str]] = {
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
    "pulling for a moment": (pod(container()), pull(4.9), "Pulling the image big:1 on gpu-1."),
    "pulling for seconds": (pod(container()), pull(5), "Pulling the image big:1 on gpu-1, for 5 seconds so far."),
    "pulling for minutes": (pod(container()), pull(629), "Pulling the image big:1 on gpu-1, for 10 minutes so far."),
    "a clock that went back": (pod(container()), pull(-60), "Pulling the image big:1 on gpu-1."),
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
        pull(82),
        "The job has started on gpu-1. Waiting until notebook and main are ready.",
    ),
    "it runs": (pod(container(ready=True, since=1)), None, "The job runs on gpu-1. Waiting for its first answer."),
}


@pytest.mark.parametrize(("seen", "pull", "said"), STEPS.values(), ids=list(STEPS))
def test_progress_is_a_sentence(seen: Mapping[str, Any] | None, pull: ImagePull | None, said: str) -> None:
    assert start_step(seen, NOW, None, pull).event()["message"] == said


def test_a_problem_replaces_the_step_until_the_job_runs() -> None:
    told = start_step(pod(node=""), NOW, "No node is free: wait.")

    assert (told.event()["message"], told.stage, told.trouble) == ("No node is free: wait.", StartStage.QUEUED, True)
    assert not start_step(pod(container(ready=True, since=1)), NOW, "It was held up.").trouble


def test_progress_only_grows_while_a_job_starts() -> None:
    order = (None, pod(node=""), pod(container()), pod(container(since=1)), pod(container(ready=True, since=1)))
    percents = [start_step(seen, NOW).percent for seen in order]

    assert percents == sorted(percents)
    assert len(set(percents)) == len(percents)


def test_the_image_that_is_being_pulled_is_known_from_the_events() -> None:
    events = [
        {"message": 'Pulling image "i:1"', "lastTimestamp": "2026-01-01T00:00:01Z"},
        {"message": 'Successfully pulled image "i:1" in 3s', "lastTimestamp": "2026-01-01T00:00:04Z"},
    ]

    assert start_problems.pulled_image(events) is None
    assert start_problems.pulled_image(events[:1]) == ImagePull("i:1", datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC))


def test_the_percentage_of_a_start_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    spawner = make_spawner(monkeypatch)
    monkeypatch.setattr(type(spawner), "pod", lambda spawner: spawner.shown)
    monkeypatch.setattr(type(spawner), "pod_reflector", None, raising=False)
    seen = []
    for spawner.shown in (pod(container(since=1)), pod(container()), pod(container(ready=True, since=1))):
        seen.append(spawner.step().percent)

    assert seen == [60, 60, 80]
