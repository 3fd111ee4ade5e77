"""What `kubectl get` shows of a pod, and how it tells time."""

from typing import Any

import pytest

from dlspawner.devcluster.api.objects.tables import duration, pod_reason

DURATIONS: dict[float, str] = {
    -5: "<invalid>",
    0: "0s",
    119: "119s",
    150: "2m30s",
    600: "10m",
    3 * 3600 + 120: "3h2m",
    49 * 3600: "2d1h",
    800 * 86400: "2y70d",
}


@pytest.mark.parametrize(("seconds", "text"), DURATIONS.items())
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def _pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}, {"name": "j"}]}
    return {"metadata": {"name": "p"} | metadata, "spec": spec, "status": status}


def _state(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "c", "ready": "running" in state, "state": state}]


RUNNING = {"phase": "Running", "containerStatuses": _state(running={})}

REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "the pod's own reason": (_pod({"phase": "Failed", "reason": "Evicted"}), "Evicted"),
    "a container that waits": (
        _pod({"phase": "Pending", "containerStatuses": _state(waiting={"reason": "ImagePullBackOff"})}),
        "ImagePullBackOff",
    ),
    "a container that failed": (
        _pod({"phase": "Running", "containerStatuses": _state(terminated={"exitCode": 3})}),
        "ExitCode:3",
    ),
    "an init container that fails": (
        _pod({"phase": "Pending", "initContainerStatuses": _state(terminated={"exitCode": 1, "reason": "Error"})}),
        "Init:Error",
    ),
    "a gate": (
        _pod(
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
            }
        ),
        "SchedulingGated",
    ),
    "being deleted": (_pod(RUNNING, deletionTimestamp="2026-01-01T00:00:00Z"), "Terminating"),
    "lost with its node": (
        _pod({"phase": "Running", "reason": "NodeLost"}, deletionTimestamp="2026-01-01T00:00:00Z"),
        "Unknown",
    ),
}


@pytest.mark.parametrize(("pod", "reason"), REASONS.values(), ids=REASONS.keys())
def test_the_status_column(pod: dict[str, Any], reason: str) -> None:
    assert pod_reason(pod) == reason
