"""GPU-hours in the database: the same before and after jobs are aggregated, for each viewer."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta

import pytest
from sqlalchemy import func, select

from dlspawner.core.accounting import PER_HOUR, GpuTime, JobTimeline, gpu_time_by_day
from dlspawner.core.job import JobState
from dlspawner.manager.db import gpu_hours
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import Database
from dlspawner.manager.db.tables import gpu_days, gpu_use, job_events, jobs
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.gpu_hours import GpuHoursQuery, GroupBy
from dlspawner.manager.model.records import JobEvent
from tests.component.manager.history import NOON, Past, day, write_past

ALL = Viewer("", all=True)
LATER = NOON + timedelta(days=9)


async def hours(
    store: Database,
    by: GroupBy = GroupBy.TEAM,
    viewer: Viewer = ALL,
    *,
    now: datetime = LATER,
    days: tuple[int, int] = (-9, 9),
) -> dict[tuple[int, str], GpuTime]:
    """By days after the first one."""
    query = GpuHoursQuery(by, day(days[0]), day(days[1]))
    found = await store.read(lambda connection: gpu_hours.read_gpu_hours(connection, query, viewer, now))
    return {((at - day()).days, name): one for (at, name), one in found.items() if one != GpuTime()}


async def fold(store: Database, now: datetime = LATER, size: int = 100) -> int:
    return await store.write(lambda connection: gpu_hours.aggregate(connection, now, size))


def amount(asked: float = 0, held: float = 0, reclaimed: float = 0, measured: float = 0, used: float = 0) -> GpuTime:
    return GpuTime(*(round(PER_HOUR * one) for one in (asked, held, measured, used, reclaimed)))


JOBS = (
    Past("Q0 T2 R2 E5", gpus=2),
    Past("T10 R10 E14", user="bob"),
    Past("T0 R1 X3 E4", user="bob", server="train", gpus=4, reason="idle"),
    Past("Q6 T7 R7 E8", user="bob", server="train", gpus=4),
    Past("T0 R0 E1", user="carol", team="language", gpu_type="big"),
    Past("T0 R0 E9", user="carol", team="language", gpus=0),
)
EXPECTED = {
    (0, "vision"): amount(asked=10 + 2 + 16 + 8, held=6 + 2 + 16 + 4, reclaimed=8),
    (1, "vision"): amount(asked=2, held=2),
    (0, "language"): amount(asked=1, held=1),
}


async def test_jobs_are_counted_once_before_and_after_aggregation(store: Database) -> None:
    await write_past(store, *JOBS)
    assert await hours(store) == EXPECTED
    assert await fold(store, size=4) == 4
    assert await hours(store) == EXPECTED, "half of them folded"
    assert await fold(store) == 2
    assert await fold(store) == 0
    assert await hours(store) == EXPECTED
    assert await store.read(lambda connection: connection.scalar(select(func.count()).select_from(gpu_days))) == 4
    assert await hours(store, GroupBy.USER) == {
        (0, "alice"): amount(asked=10, held=6),
        (0, "bob"): amount(asked=26, held=22, reclaimed=8),
        (1, "bob"): amount(asked=2, held=2),
        (0, "carol"): amount(asked=1, held=1),
    }
    assert set(await hours(store, GroupBy.GPU_TYPE)) == {(0, "gpu"), (1, "gpu"), (0, "big")}
    assert set(await hours(store, days=(1, 1))) == {(1, "vision")}


async def test_culled_job_is_aggregated_when_its_hours_are_final(store: Database) -> None:
    await write_past(store, Past("T0 R1 E4", reason="idle"))
    for now, reclaimed in ((4, 0), (6, 2), (100, 8)):
        at = NOON + timedelta(hours=now)
        assert await fold(store, at) == (now == 100)
        found = await hours(store, now=at)
        assert found[0, "vision"] == amount(asked=4, held=4, reclaimed=reclaimed)
    assert found[1, "vision"] == amount(reclaimed=16)


@pytest.mark.parametrize(
    ("viewer", "seen"),
    [
        (Viewer("alice"), {"alice"}),
        (Viewer("alice", frozenset({"language"})), {"alice", "carol"}),
        (Viewer("vera", frozenset({"vision"})), {"alice", "bob"}),
        (Viewer("dave"), set()),
        (ALL, {"alice", "bob", "carol"}),
    ],
    ids=["one's own", "and of a team that one administers", "a team's admin", "nobody's", "all for the Hub's admins"],
)
@pytest.mark.parametrize("folded", [False, True], ids=["anew", "folded"])
async def test_viewer_sees_hours(store: Database, folded: bool, viewer: Viewer, seen: set[str]) -> None:
    await write_past(store, *JOBS)
    if folded:
        await fold(store)
    assert {name for _, name in await hours(store, GroupBy.USER, viewer)} == seen


async def test_measured_use_counts_once(store: Database) -> None:
    runs, over = await write_past(store, Past("T0 R0", user="bob"), Past("T0 R0 E2"))
    sampled = {(job, day()): amount(measured=1, used=0.5) for job in (runs, over, "j-nobody")}
    for _ in range(2):
        await store.write(lambda connection: gpu_hours.add_gpu_use(connection, sampled))
    expected = {
        (0, "alice"): amount(asked=2, held=2, measured=2, used=1),
        (0, "bob"): amount(asked=3, held=3, measured=2, used=1),
    }
    now = NOON + timedelta(hours=3)
    assert await hours(store, GroupBy.USER, now=now) == expected
    assert await fold(store) == 1
    assert await hours(store, GroupBy.USER, now=now) == expected
    left = await store.read(lambda connection: list(connection.scalars(select(gpu_use.c.job))))
    assert left == [runs]


async def test_recovered_job_counts_on_after_aggregation(store: Database) -> None:
    (job,) = await write_past(store, Past("T0 R0 E2"))
    assert await fold(store) == 1

    repository = JobRepository(store)
    term, known = await repository.acquire("me", 60), await repository.find(job)
    assert term is not None
    assert known is not None
    running = replace(known, job=replace(known.job, state=JobState.RUNNING))
    await repository.write(term, [JobEvent(running, NOON + timedelta(hours=3), EventReason.POD_RECOVERED)])
    assert await hours(store, now=NOON + timedelta(hours=7)) == {(0, "vision"): amount(asked=6, held=6)}


async def test_report_is_consistent_during_aggregation(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    written = await write_past(store, *JOBS)
    sampled = {(job, day()): amount(measured=1, used=0.5) for job in written[:5]}
    await store.write(lambda connection: gpu_hours.add_gpu_use(connection, sampled))
    before, folded = await hours(store), []

    def counted(life: JobTimeline, until: datetime) -> dict[date, GpuTime]:
        if not folded:
            with store._engine.begin() as other:
                folded.append(gpu_hours.aggregate(other, LATER, 100))
        return gpu_time_by_day(life, until)

    monkeypatch.setattr(gpu_hours, "_TOGETHER", 2)
    monkeypatch.setattr(gpu_hours, "gpu_time_by_day", counted)
    assert await hours(store) == before
    assert folded == [6]
    assert await hours(store) == before


async def test_pruned_jobs_leave_their_hours(store: Database) -> None:
    old, young, runs, uncounted = await write_past(
        store,
        Past("T0 R0 E1"),
        Past("T30 R30 E31"),
        Past("T0 R0", user="bob"),
        Past("T0 R0 E1", reason="idle", user="carol"),
    )
    await fold(store, NOON + timedelta(hours=2))
    sampled = {(old, day()): amount(measured=1)}
    await store.write(lambda connection: gpu_hours.add_gpu_use(connection, sampled))
    before, now = NOON + timedelta(hours=20), NOON + timedelta(hours=2)
    known = await hours(store, now=now)

    async def prune() -> int:
        return await store.write(lambda connection: gpu_hours.prune_jobs(connection, before, 100))

    assert await prune() == 1
    assert await prune() == 0
    left = await store.read(lambda connection: set(connection.scalars(select(jobs.c.job))))
    assert left == {young, runs, uncounted}, "what is not counted yet stays until it is"
    events = await store.read(lambda connection: set(connection.scalars(select(job_events.c.job))))
    assert events == left
    assert {key: replace(one, measured=0) for key, one in (await hours(store, now=now)).items()} == {
        key: replace(one, measured=0) for key, one in known.items()
    }


async def test_old_days_are_pruned(store: Database) -> None:
    await write_past(store, *JOBS)
    await fold(store)
    free: dict[tuple[date, str], dict[str, int]] = {
        (day(offset), "gpu"): {"total": 8, "free": 3, "unschedulable": 2, "fragmented": 1} for offset in (0, 1)
    }
    for _ in range(2):
        await store.write(lambda connection: gpu_hours.add_free_gpus(connection, free))
    query = GpuHoursQuery(GroupBy.TEAM, day(), day(9))
    found = await store.read(lambda connection: gpu_hours.read_free_gpus(connection, query))
    assert found[day(1), "gpu"] == {"total": 16, "free": 6, "unschedulable": 4, "fragmented": 2}
    await store.write(lambda connection: gpu_hours.prune_days(connection, day(1)))
    assert set(await hours(store)) == {(1, "vision")}
    assert set(await store.read(lambda connection: gpu_hours.read_free_gpus(connection, query))) == {(day(1), "gpu")}
