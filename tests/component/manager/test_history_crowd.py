"""A hundred thousand jobs that have ended: a report of three months is quick, and nothing of them is read for it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event, func, select, text

from dlspawner.core.accounting import PER_HOUR
from dlspawner.manager.db import gpu_hours
from dlspawner.manager.db.store import Database
from dlspawner.manager.db.tables import jobs
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.gpu_hours import GpuHoursQuery, GroupBy
from tests.component.manager.history import NOON, Past, day, write_past

pytestmark = pytest.mark.slow

JOBS, DAYS, LIVE = 100_000, 90, 500
SECONDS = 10.0  # fails where an index is missing, not where a machine is busy; the figures are printed
PATIENCE_SECONDS = 5  # a hundred times what some jobs together take, half of what all of them do
ALL = Viewer("", all=True)
NOW = NOON + timedelta(days=DAYS + 2)


def _past(number: int, dice: random.Random) -> Past:
    hours = dice.randrange(1, 30)
    told = f"Q0 T{dice.randrange(1, 5)} R5 X{5 + hours} E{6 + hours}" if number >= LIVE else "Q0 T1 R1"
    user = number % 200
    noon = NOON + timedelta(days=number % DAYS, seconds=dice.randrange(3600))
    return Past(told, f"user-{user}", f"team-{user % 10}", 1 + number % 8, f"type-{number % 3}", noon=noon)


async def _fill(store: Database) -> None:
    dice = random.Random(7)
    for first in range(0, JOBS, 5000):
        await write_past(store, *(_past(number, dice) for number in range(first, first + 5000)))
    if store._engine.dialect.name == "postgresql":  # which does it by itself, soon; plans without it are of no use
        await store.write(lambda connection: connection.execute(text("ANALYZE")))


async def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = await work()
    return time.perf_counter() - begun, answer


async def test_a_report_over_a_hundred_thousand_jobs_is_a_matter_of_seconds_at_most(
    db_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await asyncio.to_thread(Database.open, db_url)
    try:
        await _fill(store)
        question = GpuHoursQuery(GroupBy.USER, day(0), day(DAYS + 2))

        async def report(viewer: Viewer = ALL) -> Any:
            return await store.read(lambda connection: gpu_hours.read_gpu_hours(connection, question, viewer, NOW))

        def unfolded(connection: Connection) -> Any:
            """As right after an upgrade. It thinks for longer than PostgreSQL waits for it here, but not at once."""
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{PATIENCE_SECONDS}s'"))
            return gpu_hours.read_gpu_hours(connection, question, ALL, NOW)

        slow, before = await _timed(lambda: store.read(unfolded))
        longest, total = 0.0, 0.0
        while True:
            took, done = await _timed(lambda: store.write(lambda connection: gpu_hours.aggregate(connection, NOW, 200)))
            if not done:
                break
            longest, total = max(longest, took), total + took
        statements: list[str] = []
        event.listen(store._engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
        quick, after = await _timed(report)
        assert before == after, "exactly"
        assert len(statements) <= 6
        one, mine = await _timed(lambda: report(Viewer("user-7")))
        assert {name for _, name in mine} == {"user-7"}
        left = await store.read(
            lambda connection: connection.scalar(select(func.count()).where(jobs.c.folded.is_(False)))
        )
        assert left == LIVE
        held = sum(amount.allocated for amount in after.values()) / PER_HOUR
        with capsys.disabled():
            print(
                f"\n{db_url[:6]}: {JOBS} jobs, {held:.0f} GPU-hours held: report {quick * 1000:.0f} ms, one "
                f"person's {one * 1000:.0f} ms; before they were folded {slow:.1f} s; folding {total:.1f} s, the "
                f"longest transaction {longest * 1000:.0f} ms"
            )
        assert quick < min(SECONDS, slow / 2)
        assert one < SECONDS
        assert longest < SECONDS
    finally:
        await store.close()
