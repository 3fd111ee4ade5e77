"""What a job tells of its kernels: with the notebook server's own list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dlspawner.spawner.files import tell_kernels

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def kernel(state: str, seconds: float) -> dict[str, str]:
    at = (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    return {"id": "k", "execution_state": state, "last_activity": at}


TOLD = {
    "no kernel": ([], {"busy": False, "seconds": None}),
    "an idle one": ([kernel("idle", 90)], {"busy": False, "seconds": 90.0}),
    "of several the one that was used last": ([kernel("idle", 90), kernel("idle", 5)], {"busy": False, "seconds": 5.0}),
    "one that is busy": ([kernel("idle", 90), kernel("busy", 7200)], {"busy": True, "seconds": 90.0}),
    "one that starts is not idle": ([kernel("starting", 30)], {"busy": True, "seconds": 30.0}),
    "a clock that went back": ([kernel("idle", -60)], {"busy": False, "seconds": 0.0}),
}


@pytest.mark.parametrize("name", TOLD)
def test_told_is(name: str) -> None:
    kernels, expected = TOLD[name]

    assert tell_kernels.report(kernels, NOW) == expected
