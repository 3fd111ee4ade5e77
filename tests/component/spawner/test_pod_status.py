"""Whether a pod is alive, and why not; the sentences for recorded pods are in test_failures."""

from __future__ import annotations

from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.core.launch.pod_status import ALIVE, Terminated, evaluate, evaluate_gone, is_over, stays_ended
from dlspawner.spawner import start_problems


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


EVICTED = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]


def running(name: str = "notebook", ready: bool = True) -> dict[str, Any]:
    return {"name": name, "ready": ready, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


def waiting(reason: str, name: str = "notebook", message: str = "", **more: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": name, "ready": False, "image": "example.org/a:1", "state": state, **more}


def ended(code: int, name: str = "notebook", **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "state": {"terminated": {"exitCode": code, **more}}}


@pytest.mark.parametrize(
    "alive",
    [
        pytest.param(pod("Pending", node=""), id="no node"),
        pytest.param(pod("Pending", waiting("ErrImagePull")), id="a failed pull is repeated"),
        pytest.param(pod("Running", running(ready=False)), id="not ready"),
        pytest.param(
            pod("Running", {**running(), "restartCount": 1, "lastState": ended(1)["state"]}), id="restarted container"
        ),
        pytest.param(pod("Running", running(), ended(1, "sidecar")), id="ended sidecar"),
        pytest.param({"metadata": {"uid": "1"}, "spec": {}}, id="no status"),
    ],
)
def test_pod_is_alive(alive: dict[str, Any]) -> None:
    assert evaluate(alive) == ALIVE


@pytest.mark.parametrize(
    ("dead", "code", "words"),
    [
        pytest.param(None, 1, "from outside", id="no pod"),
        pytest.param(pod("Unknown", running()), 1, "gpu-1 does not answer", id="unknown phase"),
        pytest.param(pod("Succeeded", ended(0)), 0, "finished", id="succeeded"),
        pytest.param(pod("Running", ended(0)), 0, "ended by itself", id="server ended with 0"),
        pytest.param(pod("Running", ended(143)), 143, "signal 15 (SIGTERM): start", id="killed"),
        pytest.param(
            pod("Failed", ended(139, message="Bad address")), 139, "(SIGSEGV) after “Bad address”", id="words"
        ),
        pytest.param(pod("Running", ended(162)), 162, "signal 34", id="a real-time signal"),
        pytest.param(pod("Running", ended(193)), 193, "exit code 193", id="more than there are signals"),
        pytest.param(pod("Running", ended(255, message="No")), 255, "exit code 255 (“No”)", id="minus one"),
    ],
)
def test_pod_has_ended(dead: dict[str, Any] | None, code: int, words: str) -> None:
    verdict = evaluate(dead)

    assert isinstance(verdict, Terminated)
    assert verdict.exit_code == code
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (waiting("CreateContainerError", message="name is reserved for 0123"), "container notebook cannot be made"),
        (waiting("ContainerCreating"), None),
    ],
)
def test_start_problem_of_a_container(container: dict[str, Any], words: str | None) -> None:
    found = start_problems.of_pod(pod("Pending", container))

    assert found is None if words is None else words in (found.sentence if found else "")


@pytest.mark.parametrize(
    ("last", "words"),
    [
        pytest.param(None, "removed from outside", id="never seen"),
        pytest.param(pod("Failed", ended(143)), "removed from outside", id="no reason"),
        pytest.param(pod("Failed", ended(143), conditions=EVICTED), "emptying the job's node", id="drained node"),
        pytest.param(
            pod("Failed", ended(0), reason="DeadlineExceeded", deleting=True), "time limit", id="failed with a reason"
        ),
    ],
)
def test_reason_of_a_pod_that_is_gone(last: dict[str, Any] | None, words: str) -> None:
    assert words in evaluate_gone(last).reason


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(pod("Running", running(), ended(1, "main"), template=False), ALIVE, id="a sidecar called main"),
        pytest.param(
            pod("Running", ended(2, "lab"), containers=["lab", "proxy"], template=False), 2, id="no container notebook"
        ),
    ],
)
def test_only_the_server_of_a_pod_without_a_template_counts(seen: dict[str, Any], expected: object) -> None:
    verdict = evaluate(seen)

    assert (verdict.exit_code if isinstance(verdict, Terminated) else verdict) == expected


@pytest.mark.parametrize(
    ("seen", "stays"),
    [
        pytest.param(pod("Failed", ended(3)), True, id="failed"),
        pytest.param(pod("Running", ended(3), running("side"), policy="Never"), True, id="never restarted"),
        pytest.param(pod("Running", ended(0), running("side"), policy="OnFailure"), True, id="exited with 0"),
        pytest.param(pod("Running", ended(3), running("side"), policy="OnFailure"), False, id="restarted on failure"),
        pytest.param(pod("Running", ended(0), running("side"), policy="Always"), False, id="always restarted"),
        pytest.param(pod("Running", running(), running("side")), False, id="running on a lost node"),
    ],
)
def test_which_ended_pods_stay_ended(seen: dict[str, Any], stays: bool) -> None:
    assert stays_ended(seen) is stays


@pytest.mark.parametrize(
    ("seen", "over"),
    [
        pytest.param(pod("Succeeded", ended(0)), True, id="succeeded"),
        pytest.param(pod("Failed", ended(1)), True, id="failed"),
        pytest.param(pod("Pending", node=""), True, id="no node"),
        pytest.param(pod("Pending", waiting("ContainerCreating")), False, id="on a node"),
        pytest.param(pod("Unknown", running()), False, id="silent node"),
        pytest.param(pod("Running", ended(1)), False, id="another container runs"),
    ],
)
def test_which_pods_may_be_deleted_without_grace(seen: dict[str, Any], over: bool) -> None:
    assert is_over(seen) is over
