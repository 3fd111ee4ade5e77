"""Parts of GPUs through the real Manager: nodes of two kinds, quota, fit, queue, evidence of use and GPU-hours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from dlspawner.clients.prometheus import MetricNames, PrometheusClient
from dlspawner.core.accounting import PER_HOUR
from dlspawner.core.idle import Cause
from dlspawner.core.job import JobState
from dlspawner.core.scheduling import usage_report
from dlspawner.manager.admission.service import AdmissionRequest
from tests.component.manager import metrics
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants
from tests.component.manager.metrics import NAMESPACE, Gpu
from tests.component.manager.test_history_keeping import keeper, sampled, total
from tests.component.manager.test_idle_culling import after, keep_reason

MIG = "nvidia.com/mig-1g.10gb"
CLUSTER = """
gpu_types:
  gpu: {resource: nvidia.com/gpu, cpu_per_gpu: 50m, memory_per_gpu: 64Mi}
  part: {resource: nvidia.com/mig-1g.10gb, share: 1/7, cpu_per_gpu: 50m, memory_per_gpu: 64Mi}
idle: {window_seconds: 1000, dry_run: false, metrics_age_seconds: 100}
defaults: {template: tiny}
"""
TEAMS = "teams:\n  default: {title: Everybody, quota: {gpu: 8, part: 1}}\n"
NAMES = MetricNames(utilisation=("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"))
HISTORY = [
    Gpu("jupyter-idle", "GPU-1", lambda _: 0, instance="1"),
    Gpu("jupyter-idle", "GPU-1", lambda _: 4, instance="2"),
    Gpu("jupyter-busy", "GPU-1", lambda _: 0, instance="3"),
    Gpu("jupyter-busy", "GPU-1", lambda seconds: 90 if seconds % 300 < 30 else 0, instance="4"),
    Gpu("jupyter-half", "GPU-1", lambda _: 0, instance="5"),
]


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metrics.measuring(tmp_path_factory.mktemp("prometheus"), HISTORY) as url:
        yield url


@pytest.fixture
async def harness(harness: ManagerHarness, prometheus_url: str) -> AsyncIterator[ManagerHarness]:
    (harness.folder / "cluster.yaml").write_text(CLUSTER)
    (harness.folder / "teams.yaml").write_text(TEAMS)
    await harness.make_node("mig-1", 14, MIG)
    harness.prometheus = PrometheusClient(prometheus_url, names=NAMES)
    yield harness
    await harness.prometheus.close()


async def run(harness: ManagerHarness, leader: Leader, request: AdmissionRequest) -> None:
    await leader.run_job(request, "mig-1")
    harness.hub.servers = {*(harness.hub.servers or ()), (request.user, "")}
    harness.hub.used[request.user, ""] = harness.clock()


async def test_quota_of_one_gpu_is_seven_parts_of_it(harness: ManagerHarness, leader: Leader) -> None:
    first, second = wants("alice", 5, MIG), wants("bob", 3, MIG)
    await run(harness, leader, first)
    waits = await leader.ask(second)
    assert waits.decision == "wait"
    assert "Team Everybody uses 0.71 of its 0.994 GPUs of type part; this job needs 0.426." in waits.sentences
    assert (await leader.ask(wants("carol", 8))).nodes == ("gpu-1",), "whole GPUs are of another type"
    cluster_state = leader.service.store.cluster_state
    found = usage_report.type_statuses(cluster_state, usage_report.node_statuses(cluster_state))
    assert [(one.gpu_type.name, one.total, one.free) for one in found] == [("gpu", 8000, 0), ("part", 1988, 1278)]
    leader.hub_starts(second)
    await harness.delete((await harness.pods())["jupyter-alice"], grace=0)
    await until(lambda: leader.started(second), "the parts that are given back start the next job")
    assert leader.record(second).job.nodes == ("mig-1",)


async def test_parts_of_one_gpu_are_judged_apart(harness: ManagerHarness, leader: Leader) -> None:
    idle, busy, half = (wants(user, 2, MIG) for user in ("idle", "busy", "half"))
    for one in (idle, busy, half):
        await run(harness, leader, one)
    for _ in range(4):
        await after(harness, leader, 400)
    assert keep_reason(leader, busy) is Cause.USED
    assert keep_reason(leader, half) is Cause.UNKNOWN, "of one of its two parts nothing is known"
    assert leader.state(idle) is JobState.STOPPING


async def test_hours_of_parts_are_parts_of_hours(harness: ManagerHarness, leader: Leader) -> None:
    assert harness.prometheus is not None
    keeps = keeper(leader, harness.prometheus)
    await run(harness, leader, wants("idle", 2, MIG))
    await sampled(harness, keeps, harness.clock(), *range(6))
    found = await total(leader.repository._database, leader.service.store.now())
    five_minutes = 0.284 * PER_HOUR / 12
    assert found.measured == pytest.approx(five_minutes, rel=0.05)
    assert found.used == pytest.approx(0.02 * five_minutes, rel=0.05), "one part of two was busy for 4 percent"
    known = await harness.prometheus.gpus(NAMESPACE, harness.clock() - timedelta(minutes=9), harness.clock())
    assert sorted(known["jupyter-idle"]) == ["GPU-1/1", "GPU-1/2"]
