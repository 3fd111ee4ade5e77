"""What the leader writes once a minute: samples of GPUs and aggregates of ended jobs; old rows are pruned."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from dlspawner.clients.kubernetes import NODES
from dlspawner.clients.prometheus import PrometheusClient
from dlspawner.core.accounting import PER_HOUR, GpuTime
from dlspawner.manager.controllers import leader as leader_module
from dlspawner.manager.db import gpu_hours
from dlspawner.manager.db.store import Database
from dlspawner.manager.db.tables import jobs
from dlspawner.manager.history.gpu_hours import HistoryKeeper, HistoryRetention
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.gpu_hours import GpuHoursQuery, GroupBy
from dlspawner.manager.model.namespaces import JobNamespaces
from tests.component.manager import metrics
from tests.component.manager.history import Past, write_past
from tests.component.manager.manager_harness import NAMESPACE, Leader, ManagerHarness, until, wants
from tests.component.manager.metrics import Gpu

HISTORY = [Gpu("jupyter-alice", "GPU-1", lambda _: 100), Gpu("jupyter-alice", "GPU-2", lambda _: 50)]
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metrics.measuring(tmp_path_factory.mktemp("prometheus"), HISTORY, hours=1) as url:
        yield url


def keeper(leader: Leader, prometheus: PrometheusClient | None = None, **days: int) -> HistoryKeeper:
    return HistoryKeeper(
        leader.service.store, leader.repository, prometheus, JobNamespaces(NAMESPACE), HistoryRetention(**days)
    )


async def sampled(harness: ManagerHarness, keeps: HistoryKeeper, began: datetime, *minutes: int) -> None:
    """At each of these minutes, however long the samples take, and what a test does between them."""
    for minute in minutes:
        harness.clock.moved = began + minute * MINUTE - datetime.now(UTC)
        await keeps.run_once()


async def read_free(store: Database) -> dict[str, int]:
    """Minutes of GPUs, all days together."""
    today = datetime.now(UTC).date()
    request = GpuHoursQuery(GroupBy.TEAM, today, today + timedelta(days=2))
    found = await store.read(lambda connection: gpu_hours.read_free_gpus(connection, request))
    names = ("total", "free", "unschedulable", "fragmented")
    return {name: round(60 * sum(one[name] for one in found.values()) / PER_HOUR) for name in names}


async def by_user(store: Database, now: datetime) -> dict[str, GpuTime]:
    """The hours of the last and the next days."""
    today = datetime.now(UTC).date()
    request = GpuHoursQuery(GroupBy.USER, today - timedelta(days=9), today + timedelta(days=2))
    everything = Viewer("", all=True)
    found = await store.read(lambda connection: gpu_hours.read_gpu_hours(connection, request, everything, now))
    users = {user for _, user in found}
    return {user: sum((one for (_, name), one in found.items() if name == user), start=GpuTime()) for user in users}


async def total(store: Database, now: datetime) -> GpuTime:
    return sum((await by_user(store, now)).values(), start=GpuTime())


async def test_free_gpus_are_sampled_with_unschedulable_and_fragmented_ones(
    harness: ManagerHarness, leader: Leader, db_url: str
) -> None:
    store, keeps = leader.repository._database, keeper(leader)
    alices = wants("alice", gpus=5)
    await leader.run_job(alices)
    began = harness.clock()
    await sampled(harness, keeps, began, *range(11))
    assert await read_free(store) == {"total": 80, "free": 30, "unschedulable": 0, "fragmented": 0}
    await leader.ask(wants("bob", gpus=4))
    await sampled(harness, keeps, began, 11)
    assert await read_free(store) == {"total": 88, "free": 33, "unschedulable": 0, "fragmented": 3}
    await harness.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": True}})
    await until(lambda: leader.service.store.nodes["gpu-1"].cordoned, "the node is closed")
    await sampled(harness, keeps, began, 12)
    assert await read_free(store) == {"total": 96, "free": 36, "unschedulable": 3, "fragmented": 3}
    await sampled(harness, keeps, began, 12 + 5 * 60)
    assert (await read_free(store))["total"] == 96 + 16, "five hours without samples are unknown"


async def test_leader_samples_by_itself(harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_module, "EVERY", timedelta(seconds=0.1))
    async with harness.manager() as leader:

        async def sampled() -> bool:
            harness.clock.moved += MINUTE
            return (await read_free(leader.repository._database))["total"] > 0

        await until(sampled, "free GPUs are sampled")


async def test_gpu_use_is_sampled_from_prometheus(
    harness: ManagerHarness, prometheus: PrometheusClient, leader: Leader
) -> None:
    request = wants("alice", gpus=2)
    store, keeps = leader.repository._database, keeper(leader, prometheus)
    await leader.run_job(request)
    await sampled(harness, keeps, harness.clock(), *range(6))
    found = await total(store, leader.service.store.now())
    assert found.measured == pytest.approx(2 * PER_HOUR / 12, rel=0.05), "of both GPUs for five minutes"
    assert found.used == pytest.approx(1.5 * PER_HOUR / 12, rel=0.05), "one was busy, one was half busy"
    assert found.used <= found.measured <= found.allocated
    await sampled(harness, keeps, harness.clock() + timedelta(hours=2), *range(3))
    after = await total(store, leader.service.store.now())
    assert after.measured == found.measured, "no samples in Prometheus"
    assert after.allocated > found.allocated + 3.9 * PER_HOUR


async def test_unavailable_prometheus_stops_nothing_else(harness: ManagerHarness) -> None:
    request = wants("alice", gpus=2)
    away = PrometheusClient("http://127.0.0.1:9")
    async with harness.manager() as leader:
        await leader.run_job(request)
        await write_past(leader.repository._database, Past("T0 R0 E1", noon=datetime.now(UTC) - timedelta(days=3)))
        await sampled(harness, keeper(leader, away), harness.clock(), 0, 1)
        assert (await read_free(leader.repository._database))["total"] == 8
        left = await leader.repository._database.read(
            lambda connection: list(connection.scalars(select(jobs.c.job).where(jobs.c.folded.is_(False))))
        )
        assert left == [request.job]
    await away.close()


async def test_ended_jobs_are_aggregated_and_old_rows_pruned(leader: Leader, db_url: str) -> None:
    store, now = leader.repository._database, datetime.now(UTC)
    noon = now.replace(hour=12)  # so that each ends on its day
    past = [Past("T0 R0 E1", noon=noon - timedelta(days=days), user=f"u{days}") for days in (1, 3) for _ in range(250)]
    await write_past(store, *past)
    await keeper(leader, jobs=2).run_once()
    await leader.settled()
    left = await store.read(lambda connection: list(connection.execute(select(jobs.c.user_name, jobs.c.folded))))
    assert left == [("u1", True)] * 250
    hours = {user: one.allocated for user, one in (await by_user(store, now)).items()}
    assert hours == {"u1": 250 * PER_HOUR, "u3": 250 * PER_HOUR}
    await keeper(leader, jobs=2, hours=2).run_once()
    assert set(await by_user(store, now)) == {"u1"}
