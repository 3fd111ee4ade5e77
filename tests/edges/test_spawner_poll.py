"""What the Hub is told of a pod that goes, while a start is on its way and after it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dlspawner.spawner import DLSpawner
from tests.edges.spawner_builders import make_spawner

GOING: dict[str, Any] = {
    "metadata": {"name": "jupyter-alice", "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {},
    "status": {"phase": "Pending"},
}
GONE = None


@pytest.fixture
def spawner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One whose start the Hub is about to give up; a test shows it its pod."""

    async def no_cluster(_spawner: DLSpawner) -> None:
        """There is no watch: the tests say what it would have seen."""

    monkeypatch.setattr(DLSpawner, "_start_watching_pods", no_cluster)
    monkeypatch.setattr(DLSpawner, "pod", lambda spawner: spawner.shown)
    made = make_spawner(monkeypatch)
    made.shown = GOING
    return made


async def test_a_failed_start_that_is_being_stopped_has_not_ended_yet(spawner: Any) -> None:
    spawner._spawn_future = asyncio.current_task()
    spawner._stop_pending = True

    assert await spawner.poll() is None


async def test_who_else_asks_hears_it_when_the_failed_start_is_over(spawner: Any) -> None:
    spawner._spawn_future = over = asyncio.get_running_loop().create_future()
    spawner._stop_pending = True
    asked = asyncio.ensure_future(spawner.poll())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asked.done()
    over.set_result(None)

    assert await asked == 1


@pytest.mark.parametrize(
    ("starting", "stopping", "pod"),
    [
        pytest.param(False, True, GOING, id="a job that ran and is stopped"),
        pytest.param(True, False, GOING, id="a pod that somebody else removes while it starts"),
        pytest.param(True, True, GONE, id="a failed start whose pod is gone"),
        pytest.param(None, True, GOING, id="a job that an earlier Hub started"),
    ],
)
async def test_every_other_pod_that_goes_has_ended(
    starting: bool | None, stopping: bool, pod: dict[str, Any] | None, spawner: Any
) -> None:
    if starting is not None:
        spawner._spawn_future = asyncio.get_running_loop().create_future()
        if not starting:
            spawner._spawn_future.set_result(None)
    spawner._start_pending, spawner._stop_pending = bool(starting), stopping
    spawner.shown = pod

    assert await spawner.poll() == 1
