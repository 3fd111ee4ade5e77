"""The work queue: each due key once at a time, with pauses of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from dlspawner.clients.hub import HubUnavailable
from dlspawner.manager.controllers.workqueue import WorkQueue, periodic
from dlspawner.manager.db.repository import NotLeader
from tests.component.manager.manager_harness import until

LONG = 3600.0


@dataclass
class Controller:
    """Keys with the work that they still need; each reconciliation takes one unit of a key's work away."""

    needs: dict[str, int] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)  # raised at each reconciliation of a key
    pause: float | None = 0.0
    seconds: float = 0.0  # of one reconciliation
    done: list[str] = field(default_factory=list)
    at_once: int = 0
    most: int = 0

    def due(self) -> list[str]:
        return [key for key, needs in self.needs.items() if needs]

    async def reconcile(self, key: str) -> float | None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(self.seconds)
        self.at_once -= 1
        self.done.append(key)
        if key in self.errors:
            raise self.errors[key]
        self.needs[key] -= 1
        return self.pause


@contextlib.asynccontextmanager
async def running(queue: WorkQueue[str]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_due_keys_are_reconciled_in_order_until_they_are_due_no_more() -> None:
    work = Controller({"a": 2, "b": 1})
    async with running(WorkQueue("test", work.due, work.reconcile)):
        await until(lambda: not work.due(), "all is done")

    assert work.done in (["a", "b", "a"], ["a", "a", "b"])


async def test_workers_bound_what_runs_at_once_and_a_key_runs_once_at_a_time() -> None:
    work = Controller(dict.fromkeys("abcdef", 3), seconds=0.01)
    async with running(WorkQueue("test", work.due, work.reconcile, workers=4)):
        await until(lambda: not work.due(), "all is done")

    assert work.most == 4
    assert sorted(work.done) == sorted("abcdef" * 3)


async def test_wake_looks_at_once() -> None:
    work = Controller()
    queue = WorkQueue("test", work.due, work.reconcile, every=LONG)
    async with running(queue):
        await asyncio.sleep(0.01)
        work.needs["a"] = 1
        queue.wake.set()
        await until(lambda: work.done == ["a"], "it is done")


async def test_pause_of_a_key_delays_that_key_only() -> None:
    work = Controller({"a": 2}, pause=LONG)
    queue = WorkQueue("test", work.due, work.reconcile)
    async with running(queue):
        await until(lambda: work.done == ["a"], "it is done once")
        work.needs["b"] = 1
        queue.wake.set()
        await until(lambda: work.done == ["a", "b"], "the other one is done")


@pytest.mark.parametrize("error", [HubUnavailable("away"), ZeroDivisionError()])
async def test_failed_key_is_logged_and_repeated_after_a_pause(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    work = Controller({"bad": 1, "good": 1}, {"bad": error})
    async with running(WorkQueue("test", work.due, work.reconcile, first_pause=0.01, longest_pause=0.01)):
        await until(lambda: work.done.count("bad") >= 3 and "good" in work.done, "both are tried")

    assert "test bad" in caplog.text


async def test_pauses_grow_also_if_a_key_is_not_due_while_it_is_reconciled() -> None:
    work, times = Controller({"a": 1}, seconds=0.01), list[float]()

    async def fails(key: str) -> None:
        times.append(asyncio.get_running_loop().time())
        work.needs[key] = 0
        await asyncio.sleep(0.03)
        work.needs[key] = 1
        raise HubUnavailable("away")

    async with running(WorkQueue("test", work.due, fails, every=0.01, first_pause=0.02, longest_pause=10)):
        await until(lambda: len(times) >= 6, "it is repeated")

    assert times[5] - times[4] >= 0.02 * 2**4 / 2


async def test_pause_of_a_key_is_short_again_after_a_success() -> None:
    calls = 0

    async def fails_every_other_time() -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise HubUnavailable("away")

    queue = periodic("test", fails_every_other_time, 0.001)
    queue.first_pause, queue.longest_pause = 0.001, LONG
    async with running(queue):
        await until(lambda: calls >= 50, "no pause grows to hours")


async def test_end_of_the_term_ends_the_queue() -> None:
    work = Controller({"a": 1}, {"a": NotLeader("over")})
    async with running(WorkQueue("test", work.due, work.reconcile)) as task:
        with pytest.raises(ExceptionGroup) as raised:
            await task

    assert raised.group_contains(NotLeader)
