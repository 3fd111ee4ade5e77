"""Whether a pod lives; the sentences for real pods are in test_spawner_failures."""

from __future__ import annotations

from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.spawner import start_problems
from dlspawner.spawner.kube.pod_status import ALIVE, Terminated, evaluate, evaluate_gone, is_over, stays_ended


def pod(phase: str = "Running", *containers: dict[str, Any], **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "jupyter-alice", "uid": "1"}
    if status.pop("template", True):
        metadata["labels"] = {naming.JOB_LABEL: "j-abcdefghij23"}
    if status.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    node = status.pop("node", "gpu-1")
    spec: dict[str, Any] = {"nodeName": node} if node else {}
    spec["containers"] = [{"name": name} for name in status.pop("containers", ["notebook"])]
    spec["restartPolicy"] = status.pop("policy", "OnFailure")
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "containerStatuses": containers, **status}}


def running(name: str = "notebook", ready: bool = True) -> dict[str, Any]:
    return {"name": name, "ready": ready, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


def silent(**more: Any) -> dict[str, Any]:
    """As the control plane marks it: not ready, without a reason."""
    conditions = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    return pod("Running", running(), conditions=conditions, **more)


def waiting(reason: str, name: str = "notebook", message: str = "", **more: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": name, "ready": False, "image": "example.org/a:1", "state": state, **more}


def ended(code: int, name: str = "notebook", **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "state": {"terminated": {"exitCode": code, **more}}}


@pytest.mark.parametrize(
    "alive",
    [
        pytest.param(pod("Pending", node=""), id="a pod without a node is merely slow"),
        pytest.param(
            pod("Pending", waiting("ContainerCreating")), id="a pod that waits for its volumes is merely slow"
        ),
        pytest.param(pod("Pending", waiting("ErrImagePull")), id="a pull that failed once is tried again"),
        pytest.param(pod("Running", running()), id="a running pod is alive"),
        pytest.param(pod("Running", running(ready=False)), id="a pod that is not ready is alive"),
        pytest.param(silent(), id="a silent node may come back"),
        pytest.param(
            pod("Running", {**running(), "restartCount": 1, "lastState": ended(1)["state"]}),
            id="a container that its node has started again goes on",
        ),
        pytest.param(pod("Running", running(), ended(1, "sidecar")), id="the end of a side container ends nothing"),
        pytest.param({"metadata": {"uid": "1"}, "spec": {}}, id="a pod without any status has just been made"),
    ],
)
def test_goes_on(alive: dict[str, Any]) -> None:
    assert evaluate(alive) == ALIVE


@pytest.mark.parametrize(
    ("dead", "code", "words"),
    [
        pytest.param(None, 1, "from outside", id="no pod"),
        pytest.param(
            silent(deleting=True),
            1,
            "gpu-1 does not answer and the cluster has given the job up",
            id="a silent node that the cluster has given up",
        ),
        pytest.param(
            pod("Unknown", running()),
            1,
            "gpu-1 does not answer and the cluster has given the job up",
            id="a pod of which nobody knows what became of it",
        ),
        pytest.param(pod("Running", running(), deleting=True), 1, "from outside", id="a pod that is being deleted"),
        pytest.param(
            pod(
                "Running",
                running(),
                deleting=True,
                conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
            ),
            1,
            "emptying the job's node",
            id="a pod that the cluster removes says why",
        ),
        pytest.param(pod("Succeeded", ended(0)), 0, "finished", id="a pod that succeeded"),
        pytest.param(pod("Running", ended(0)), 0, "ended by itself", id="a server that ended by itself"),
        pytest.param(pod("Running", running(), ended(3, "main")), 3, "exit code 3", id="the command of a custom job"),
        pytest.param(pod("Running", ended(143)), 143, "signal 15", id="a server that was killed"),
        pytest.param(pod("Running", ended(137, reason="OOMKilled")), 137, "more memory", id="out of memory"),
        pytest.param(pod("Failed", ended(2)), 2, "exit code 2", id="a failed pod whose server ended"),
        pytest.param(
            pod("Failed", running(), reason="NodeLost", message="node is gone"),
            1,
            "node went away",
            id="a failed pod on a lost node whose container is said to run",
        ),
        pytest.param(
            pod("Failed", reason="Evicted", message="The node was low on resource: memory."),
            1,
            "ran out of memory",
            id="an evicted pod",
        ),
        pytest.param(
            pod("Running", waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 5}})),
            5,
            "exit code 5",
            id="a server that ends again and again",
        ),
    ],
)
def test_has_ended(dead: dict[str, Any] | None, code: int, words: str) -> None:
    judged = evaluate(dead)

    assert isinstance(judged, Terminated)
    assert judged.exit_code == code
    assert words in judged.reason


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (waiting("ImagePullBackOff", message="not found"), "example.org/a:1 does not exist in its registry"),
        (waiting("ImagePullBackOff"), "cannot be pulled"),
        (waiting("InvalidImageName"), "not the name of an image"),
        (waiting("CreateContainerConfigError", message='secret "x" not found'), "the Secret x, which does not exist"),
        (waiting("CreateContainerError", message="name is reserved for 0123"), "container notebook cannot be made"),
        (waiting("CrashLoopBackOff"), "again and again"),
        (waiting("ContainerCreating"), None),
        (running(ready=False), None),
    ],
)
def test_what_will_not_start_by_itself_says_so(container: dict[str, Any], words: str | None) -> None:
    found = start_problems.of_pod(pod("Pending", container))

    assert found is None if words is None else words in (found.sentence if found else "")


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        pytest.param([], "removed from outside", id="nothing was said"),
        pytest.param(
            [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
            "emptying the job's node",
            id="its node was being drained",
        ),
    ],
)
def test_a_pod_that_is_gone_ended_as_it_last_said(conditions: list[dict[str, str]], words: str) -> None:
    ended = {"name": "notebook", "state": {"terminated": {"exitCode": 143}}}
    status = {"phase": "Failed", "conditions": conditions, "containerStatuses": [ended]}
    last = {"metadata": {}, "spec": {}, "status": status}

    assert words in evaluate_gone(last).reason


def test_a_pod_that_nobody_has_seen_was_removed() -> None:
    assert "removed from outside" in evaluate_gone(None).reason


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(pod("Running", running(), ended(1, "main"), template=False), ALIVE, id="a sidecar called main"),
        pytest.param(
            pod("Running", ended(2, "lab"), containers=["lab", "proxy"], template=False), 2, id="no container notebook"
        ),
        pytest.param(
            pod("Running", running("lab"), ended(2, "proxy"), containers=["lab", "proxy"], template=False),
            ALIVE,
            id="a sidecar beside a first container of another name",
        ),
        pytest.param(pod("Running", ended(3), running("side"), template=False), 3, id="a sidecar outlives the server"),
    ],
)
def test_a_pod_without_a_template_stands_on_its_server_alone(seen: dict[str, Any], expected: object) -> None:
    judged = evaluate(seen)

    assert (judged.exit_code if isinstance(judged, Terminated) else judged) == expected


@pytest.mark.parametrize(
    ("seen", "stays"),
    [
        pytest.param(pod("Failed", ended(3)), True, id="a pod that has failed"),
        pytest.param(pod("Running", ended(3), running("side"), policy="Never"), True, id="it is never started again"),
        pytest.param(pod("Running", ended(0), running("side"), policy="OnFailure"), True, id="it has ended well"),
        pytest.param(pod("Running", ended(3), running("side"), policy="OnFailure"), False, id="it is started again"),
        pytest.param(pod("Running", ended(0), running("side"), policy="Always"), False, id="it always is"),
        pytest.param(pod("Running", waiting("CrashLoopBackOff"), policy="OnFailure"), False, id="it crashes on"),
        pytest.param(pod("Running", running(), running("side")), False, id="it runs, on a node that was given up"),
    ],
)
def test_which_ended_pod_may_be_left_for_an_administrator_to_look_at(seen: dict[str, Any], stays: bool) -> None:
    assert stays_ended(seen) is stays


@pytest.mark.parametrize(
    ("seen", "over"),
    [
        pytest.param(pod("Succeeded", ended(0)), True, id="it has finished"),
        pytest.param(pod("Failed", ended(1)), True, id="it has failed"),
        pytest.param(pod("Pending", node=""), True, id="no node has it"),
        pytest.param(pod("Pending", waiting("ContainerCreating")), False, id="a node has it"),
        pytest.param(pod("Unknown", running()), False, id="its node is silent"),
        pytest.param(pod("Running", ended(1)), False, id="its server has ended, and another container has not"),
    ],
)
def test_only_what_cannot_run_may_be_deleted_without_grace(seen: dict[str, Any], over: bool) -> None:
    assert is_over(seen) is over


def test_a_pod_that_is_gone_and_said_why_it_failed_ended_for_that() -> None:
    last = pod("Failed", ended(0), reason="DeadlineExceeded", deleting=True)

    assert "time limit" in evaluate_gone(last).reason
