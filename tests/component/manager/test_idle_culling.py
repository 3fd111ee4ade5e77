"""Culling with a real API server, database and Prometheus; the rules are rows of tests/unit/core/test_idle.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from dlspawner.clients.kubernetes import PODS
from dlspawner.clients.prometheus import PrometheusClient
from dlspawner.core import naming
from dlspawner.core.idle import Cause, KeepJob
from dlspawner.core.job import Job, JobState
from dlspawner.core.launch import pod_set
from dlspawner.core.resources import PodRequest, ResourceRequest, strip_manifest
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.culling.culler import Culler, held_text, span_text
from dlspawner.manager.culling.evidence import NO_PROMETHEUS
from dlspawner.manager.db.tables import idle_periods
from dlspawner.manager.model.activity import SshSessionReport
from dlspawner.manager.model.notice import Notice, NoticeKind
from tests.component.manager import metrics, quota
from tests.component.manager.manager_harness import NAMESPACE, Leader, ManagerHarness, pod_of, until, wants
from tests.component.manager.metrics import Gpu
from tests.unit.core.factories import NOW

WINDOW = 1000
CULLING = (
    "idle: {window_seconds: %d, silent_ssh_seconds: 400, keep_alive_seconds: 3000, metrics_age_seconds: 100, "
    "dry_run: false}\n"
)
HISTORY = [
    Gpu("jupyter-idle", "GPU-1", lambda _: 0),
    Gpu("jupyter-idle", "GPU-2", lambda _: 4, memory_mib=70_000),
    Gpu("jupyter-busy", "GPU-3", lambda _: 0),
    Gpu("jupyter-busy", "GPU-4", lambda seconds: 95 if seconds % 300 < 30 else 0),
    Gpu("jupyter-half", "GPU-5", lambda _: 0),
    Gpu("jupyter-pair", "GPU-6", lambda _: 0),
    Gpu("jupyter-pair----worker-0", "GPU-7", lambda seconds: 95 if seconds % 300 < 30 else 0),
]


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metrics.measuring(tmp_path_factory.mktemp("prometheus"), HISTORY) as url:
        yield url


@pytest.fixture
async def harness(harness: ManagerHarness, prometheus_url: str) -> AsyncIterator[ManagerHarness]:
    with (harness.folder / "cluster.yaml").open("a") as file:
        file.write(CULLING % WINDOW)
    harness.prometheus = PrometheusClient(prometheus_url)
    prometheus = harness.prometheus
    yield harness
    await prometheus.close()


async def run(harness: ManagerHarness, leader: Leader, user: str, gpus: int = 2, **more: Any) -> AdmissionRequest:
    """A running job that has just been used."""
    request = wants(user, gpus, **more)
    await leader.run_job(request)
    harness.hub.servers = {*(harness.hub.servers or ()), (user, "")}
    harness.hub.used[user, ""] = harness.clock()
    return request


def culler(leader: Leader) -> Culler:
    assert leader.culler is not None
    return leader.culler


async def after(harness: ManagerHarness, leader: Leader, seconds: float) -> None:
    """Evaluates all jobs so much later."""
    harness.clock.moved += timedelta(seconds=seconds)
    await culler(leader).evaluate_all()


def warning(leader: Leader, request: AdmissionRequest) -> Notice | None:
    """The notice about idleness."""
    return culler(leader).evidence.store.notices.pending((request.job, NoticeKind.IDLE))


def keep_reason(leader: Leader, request: AdmissionRequest) -> Cause | None:
    report = culler(leader).report
    found = [one.decision for one in (report.judged if report else ()) if one.job.id == request.job]
    return found[0].why if found and isinstance(found[0], KeepJob) else None


async def test_idle_gpus_are_warned_of_at_50_and_90_percent_and_then_stopped(
    harness: ManagerHarness, leader: Leader
) -> None:
    job = await run(harness, leader, "idle")
    await after(harness, leader, 400)
    assert warning(leader, job) is None
    await after(harness, leader, 150)
    first = warning(leader, job)
    assert first is not None
    assert (first.text[:22], first.cause[:11]) == ("2 gpu GPUs unused for ", "50 % since ")
    await after(harness, leader, 400)
    second = warning(leader, job)
    assert second is not None
    assert second.cause.startswith("90 % since ")
    assert leader.state(job) is JobState.RUNNING
    await after(harness, leader, 110)
    assert leader.state(job) is JobState.STOPPING
    assert "idle" in await leader.reasons(job)
    assert "“Start again” starts it with the same options" in (await leader.stop_of(job)).message


async def test_idle_periods_are_written_down(harness: ManagerHarness, leader: Leader) -> None:
    job = await run(harness, leader, "idle")
    started, found = harness.clock(), []
    for seconds in (200, 200, 200):
        await after(harness, leader, seconds)
    harness.hub.used["idle", ""] = used = harness.clock()
    for seconds in (0, 100, 400):
        await after(harness, leader, seconds)
        rows = await leader.repository.read(lambda connection: connection.execute(select(idle_periods)).all())
        found.append([(row.job, row.until) for row in rows])
        assert abs(rows[0].since - started) < timedelta(seconds=60)
    assert found == [[(job.job, used)], [(job.job, used)], [(job.job, used), (job.job, None)]]
    again = Culler(culler(leader).evidence, leader.repository)
    await again.load()
    assert again._idle == {job.job: used}, "after a restart"


async def test_busy_gpu_of_a_further_pod_keeps_the_job(harness: ManagerHarness, leader: Leader) -> None:
    request = wants("pair")
    each = {"cpu": "50m", "memory": "64Mi", "nvidia.com/gpu": "1"}
    pods = pod_set.PodSet((pod_set.Role("chief", 1, each), pod_set.Role("worker", 1, each)))
    first = pod_set.as_first(pod_of(request), pods, "s", "x")
    manifests = [first, *pod_set.further_pods(first)]
    signed = naming.sign(request.nonce, f"{NAMESPACE}/jupyter-pair")
    await leader.ask(replace(request, pods=tuple(map(strip_manifest, manifests)), nonce=signed))
    for manifest in manifests:
        manifest["spec"]["schedulerName"] = "tests"
        await harness.bind(await harness.cluster.create(PODS, manifest, NAMESPACE))
    await until(lambda: leader.state(request) is JobState.RUNNING, "it runs")
    harness.hub.servers, harness.hub.used["pair", ""] = {("pair", "")}, harness.clock()
    await after(harness, leader, WINDOW + 100)
    assert keep_reason(leader, request) is Cause.USED


@pytest.mark.parametrize(
    ("user", "cause"),
    [("busy", Cause.USED), ("half", Cause.UNKNOWN)],
    ids=["a GPU that works now and then", "metrics of one GPU of two"],
)
async def test_used_or_partly_unknown_gpus_keep_the_job(
    harness: ManagerHarness, leader: Leader, user: str, cause: Cause
) -> None:
    job = await run(harness, leader, user)
    for _ in range(6):
        await after(harness, leader, 400)
    assert (leader.state(job), keep_reason(leader, job)) == (JobState.RUNNING, cause)
    assert warning(leader, job) is None


async def test_without_prometheus_no_gpu_job_is_stopped(harness: ManagerHarness) -> None:
    harness.prometheus = None
    async with harness.manager() as leader:
        with_gpus, without = await run(harness, leader, "idle"), await run(harness, leader, "plain", gpus=0)
        for seconds in (550, 400, 110):
            await after(harness, leader, seconds)
        assert leader.state(with_gpus) is JobState.RUNNING
        assert leader.state(without) is JobState.STOPPING
        report = culler(leader).report
        assert report is not None
        assert report.gpus_unknown == NO_PROMETHEUS


async def test_unavailable_prometheus_stops_nothing(harness: ManagerHarness, tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with metrics.measuring(folder, HISTORY[:2]) as url:
        harness.prometheus = PrometheusClient(url)
        async with harness.manager() as leader:
            job = await run(harness, leader, "idle")
            await after(harness, leader, 550)
            assert warning(leader, job) is not None
    async with harness.manager() as leader:
        for _ in range(4):
            await after(harness, leader, 400)
        assert keep_reason(leader, job) is Cause.UNKNOWN
        assert leader.state(job) is JobState.RUNNING
    await harness.prometheus.close()


async def test_busy_kernel_withdraws_the_warning(harness: ManagerHarness, leader: Leader) -> None:
    job = await run(harness, leader, "idle")
    await after(harness, leader, 550)
    assert warning(leader, job) is not None
    assert culler(leader).evidence.store.cluster_state.jobs[job.job].idle, "preemption chooses it first"
    assert culler(leader).report_kernels("idle", "", True, None)
    await after(harness, leader, 5)
    assert warning(leader, job) is None
    assert keep_reason(leader, job) is Cause.USED
    assert not culler(leader).evidence.store.cluster_state.jobs[job.job].idle, "it is no first victim any more"


def offer_ssh(harness: ManagerHarness) -> None:
    endpoints = [{"name": "ssh", "port": 2222, "protocol": "ssh"}]
    (harness.folder / "jobs" / "tiny.yaml").write_text(json.dumps({**quota.TEMPLATE, "endpoints": endpoints}))


@pytest.mark.parametrize(("gateway", "forgotten"), [("gateway-1", False), ("gateway-2", True)])
async def test_time_without_reports_of_any_gateway_counts_as_use(
    harness: ManagerHarness, gateway: str, forgotten: bool
) -> None:
    offer_ssh(harness)
    async with harness.manager() as leader:
        job = await run(harness, leader, "idle")
        await culler(leader).report_ssh("gateway-1", [])
    harness.clock.moved += timedelta(seconds=700)
    async with harness.manager() as leader:
        await culler(leader).report_ssh(gateway, [])
        await culler(leader).evaluate_all()
        assert (warning(leader, job) is None) is forgotten


async def run_with_logs(
    harness: ManagerHarness, leader: Leader, user: str, template: str, log_dir: str
) -> AdmissionRequest:
    """A running job without GPUs, whose logs are there."""
    request = wants(user, 0, server=template, template=template)
    assert (await leader.ask(request)).decision == "admit"
    told = {"user": user, "server": template, "team": "default", "log-dir": log_dir}
    annotations = {f"dlspawner.dev/{name}": value for name, value in told.items()}
    annotations[naming.NONCE_ANNOTATION] = request.nonce
    await leader.run_pod(request, name=f"jupyter-{user}--{template}", annotations=annotations)
    harness.hub.servers = {*(harness.hub.servers or ()), (user, template)}
    return request


async def test_board_is_used_while_a_job_of_its_user_writes_the_logs_that_it_shows(harness: ManagerHarness) -> None:
    board = {**quota.TEMPLATE, "idle": {"counts": ["http"]}}
    (harness.folder / "jobs" / "board.yaml").write_text(json.dumps(board))
    async with harness.manager() as leader:
        shown = await run_with_logs(harness, leader, "ann", "board", "/home/ann/runs")
        writes = await run_with_logs(harness, leader, "ann", "tiny", "/home/ann/runs/first")
        foreign = await run_with_logs(harness, leader, "dan", "board", "/home/ann/runs")
        await after(harness, leader, 950)
        assert keep_reason(leader, shown) is Cause.USED
        assert warning(leader, foreign) is not None, "the logs are another user's"
        await harness.cluster.delete(PODS, "jupyter-ann--tiny", NAMESPACE, grace=0)
        await leader.until_state(writes, JobState.ENDED)
        await after(harness, leader, 950)
        assert warning(leader, shown) is not None


async def test_job_of_a_removed_template_goes_on(harness: ManagerHarness, leader: Leader) -> None:
    job = await run(harness, leader, "plain", gpus=0, template="gone")
    for _ in range(6):
        await after(harness, leader, 400)
    assert (leader.state(job), keep_reason(leader, job)) == (JobState.RUNNING, Cause.UNKNOWN)


async def test_keep_alive_has_a_limit(harness: ManagerHarness, leader: Leader) -> None:
    job = await run(harness, leader, "plain", gpus=0)
    begun = harness.clock()
    kept = None
    for _ in range(12):
        await after(harness, leader, 300)
        kept = await culler(leader).keep(leader.record(job))
        if kept.longest:
            break
        assert warning(leader, job) is None
    assert kept is not None
    assert kept.longest
    assert kept.until is not None
    assert abs(kept.until - begun - timedelta(seconds=3000 + WINDOW)) < timedelta(seconds=60)


async def test_dry_run_reports_and_stops_nothing(harness: ManagerHarness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dlspawner.manager")
    file = harness.folder / "cluster.yaml"
    file.write_text(file.read_text().replace("dry_run: false", "dry_run: true"))
    async with harness.manager() as leader:
        job = await run(harness, leader, "idle")
        for seconds in (550, 400, 110, 10):
            await after(harness, leader, seconds)
        assert (leader.state(job), warning(leader, job)) == (JobState.RUNNING, None)
        report = culler(leader).report
        assert report is not None
        assert report.dry_run
        lines = [line for line in caplog.messages if line.startswith("dry run:")]
        assert len(lines) == 1
        assert f"job={job.job} user=idle server= would be stopped reason=idle" in lines[0]
        kept = await culler(leader).keep(leader.record(job))
        said = "Nothing stops this job for being unused: here it is only written down what would be stopped."
        assert (kept.sentence, kept.until, kept.longest) == (said, None, False)


async def test_unavailable_hub_stops_nothing(harness: ManagerHarness, leader: Leader) -> None:
    job = await run(harness, leader, "plain", gpus=0)
    await after(harness, leader, 950)
    harness.hub.servers = None
    with pytest.raises(Exception, match="there is none"):
        await after(harness, leader, 400)
    assert leader.state(job) is JobState.RUNNING


async def test_next_manager_knows_warnings_and_use(harness: ManagerHarness) -> None:
    async with harness.manager() as leader:
        idle, used = await run(harness, leader, "idle"), await run(harness, leader, "plain", gpus=0)
        await after(harness, leader, 950)
        await culler(leader).report_ssh("gateway-1", [SshSessionReport("plain", "", 0.0, open=False)])
    harness.clock.moved += timedelta(seconds=110)
    async with harness.manager() as leader:
        await culler(leader).evaluate_all()
        assert leader.state(idle) is JobState.STOPPING
        assert leader.state(used) is JobState.RUNNING


# Texts about unused jobs


JOB = Job("j-1", "alice", "vision", NOW, ResourceRequest("a100", (PodRequest("nvidia.com/gpu", 2000),)))
PLAIN = replace(JOB, request=ResourceRequest(None, (PodRequest(cpu_milli=500, memory_bytes=2 * 1024**3),)))


def test_resources_of_a_job_without_gpus() -> None:
    assert held_text(PLAIN) == "500m CPU and 2 GiB of memory"


SPANS = {
    "0 s": timedelta(0),
    "59 s": timedelta(seconds=59),
    "1 min": timedelta(seconds=119),
    "1 h": timedelta(hours=1),
    "1 h 30 min": timedelta(minutes=90),
    "3 d 2 h": timedelta(days=3, hours=2, minutes=40),
}


@pytest.mark.parametrize("text", SPANS)
def test_duration_has_two_units_at_most(text: str) -> None:
    assert span_text(SPANS[text]) == text
