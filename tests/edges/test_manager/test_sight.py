"""How a pod has ended, by what its status says: by itself, or by its deletion."""

from __future__ import annotations

from typing import Any

import pytest

from dlspawner.manager.namespaces import Namespaces
from dlspawner.manager.sight import read_pod

# Its deletion is asked for at noon, with half a minute of grace.
DELETED = {"deletionTimestamp": "2026-01-01T12:00:30Z", "deletionGracePeriodSeconds": 30}
MORNING, NOON, LATER = "2026-01-01T11:59:59Z", "2026-01-01T12:00:00Z", "2026-01-01T12:00:07Z"


def pod(code: int, at: str | None, metadata: dict[str, Any]) -> dict[str, Any]:
    end = {"exitCode": code, **({"finishedAt": at} if at else {})}
    statuses = [{"name": "notebook", "state": {"terminated": end}}]
    return {
        "metadata": {"name": "p", "uid": "u", "namespace": "jobs", **metadata},
        "spec": {"containers": [{"name": "notebook", "image": "any"}]},
        "status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses},
    }


@pytest.mark.parametrize(
    ("code", "at", "metadata", "failure", "stopped"),
    [
        pytest.param(0, MORNING, {}, "", False, id="a program that has ended"),
        pytest.param(3, MORNING, {}, "exit code 3.", False, id="one that has failed"),
        pytest.param(0, MORNING, DELETED, "", False, id="one that had ended before its pod was deleted"),
        pytest.param(3, MORNING, DELETED, "exit code 3.", False, id="one that had failed before"),
        pytest.param(0, NOON, DELETED, "", True, id="one that ends at once when it is asked to"),
        pytest.param(0, LATER, DELETED, "", True, id="one that takes its time"),
        pytest.param(143, LATER, DELETED, "", True, id="one that a signal ends"),
        pytest.param(1, LATER, DELETED, "", True, id="one that complains about its stop"),
        pytest.param(0, None, DELETED, "", True, id="one that tells no time"),
    ],
)
def test_an_end_is_the_programs_or_the_deletions(
    code: int, at: str | None, metadata: dict[str, Any], failure: str, stopped: bool
) -> None:
    found = read_pod(pod(code, at, metadata), Namespaces("jobs"))
    assert (found.over, found.failure, found.stopped) == (True, failure, stopped)
