"""Reports over 100,000 ended jobs read aggregates, and the cluster page its own days. Prints figures of the benches."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, select, text

from dlspawner.manager.db import gpu_hours
from dlspawner.manager.db.store import Database
from dlspawner.manager.db.tables import jobs
from dlspawner.manager.http.portal import history
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.gpu_hours import GpuHoursQuery, GroupBy
from tests.component.manager.history import NOON, Past, day, write_past

pytestmark = pytest.mark.slow

JOBS, DAYS, LIVE = 100_000, 90, 500
NOW = NOON + timedelta(days=DAYS + 2)


def past_job(number: int, dice: random.Random) -> Past:
    hours = dice.randrange(1, 30)
    steps = f"Q0 T{dice.randrange(1, 5)} R5 X{5 + hours} E{6 + hours}" if number >= LIVE else "Q0 T1 R1"
    user, noon = number % 200, NOON + timedelta(days=number % DAYS, seconds=dice.randrange(3600))
    return Past(steps, f"user-{user}", f"team-{user % 10}", 1 + number % 8, f"type-{number % 3}", noon=noon)


async def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = await work()
    return time.perf_counter() - begun, answer


async def test_report_over_a_hundred_thousand_jobs_reads_aggregates(
    db_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, dice, statements = await asyncio.to_thread(Database.open, db_url), random.Random(7), list[str]()
    for first in range(0, JOBS, 5000):
        await write_past(store, *(past_job(number, dice) for number in range(first, first + 5000)))
    if store._engine.dialect.name == "postgresql":  # which does it by itself, soon
        await store.write(lambda connection: connection.execute(text("ANALYZE")))
    question = GpuHoursQuery(GroupBy.USER, day(0), day(DAYS + 2))

    async def report(viewer: Viewer = Viewer("", all=True)) -> Any:  # noqa: B008  (it is frozen)
        return await store.read(lambda connection: gpu_hours.read_gpu_hours(connection, question, viewer, NOW))

    slow, before = await timed(report)
    longest, done = 0.0, 1
    while done:
        took, done = await timed(lambda: store.write(lambda connection: gpu_hours.aggregate(connection, NOW, 200)))
        longest = max(longest, took)
    event.listen(store._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    quick, after = await timed(report)
    assert before == after, "exactly"
    assert len(statements) <= 6
    one, own = await timed(lambda: report(Viewer("user-7")))
    assert {name for _, name in own} == {"user-7"}
    left = await store.read(lambda connection: connection.scalar(select(func.count()).where(jobs.c.folded.is_(False))))
    assert left == LIVE
    week = NOW.replace(minute=0, second=0) - history._HOURS * history._HOUR
    statements.clear()
    read, past = await timed(lambda: store.read(lambda connection: gpu_hours.read_past_jobs(connection, week)))
    assert LIVE < len(past) < JOBS / 10
    assert len(statements) <= 3 + len(past) / 1000
    drawn, plots = await timed(lambda: asyncio.to_thread(history._load, past, [], {}, week))
    assert len(plots) == 4
    await store.close()
    with capsys.disabled():
        print(f"\n{db_url[:6]}: report {quick:.3f} s, of one user {one:.3f} s; before aggregation {slow:.1f} s")
        print(f"cluster's history of a week, {len(past)} jobs: {read + drawn:.3f} s")
        print(f"longest transaction of the aggregation {longest:.3f} s")
    assert quick < slow / 2
