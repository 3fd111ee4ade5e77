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
from dlspawner.core.job import JobState
from dlspawner.core.launch import pod_set
from dlspawner.core.resources import strip_manifest
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.culling.culler import Culler
from dlspawner.manager.culling.evidence import NO_PROMETHEUS
from dlspawner.manager.db.tables import idle_periods
from dlspawner.manager.model.activity import SshSessionReport
from dlspawner.manager.model.notice import NoticeKind
from tests.component.manager import metrics, quota
from tests.component.manager.manager_harness import NAMESPACE, Acting, Office, pod_of, until, wants
from tests.component.manager.metrics import Gpu

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
async def office(office: Office, prometheus_url: str) -> AsyncIterator[Office]:
    with (office.folder / "cluster.yaml").open("a") as file:
        file.write(CULLING % WINDOW)
    office.prometheus = PrometheusClient(prometheus_url)
    prometheus = office.prometheus
    yield office
    await prometheus.close()


async def run(office: Office, acting: Acting, user: str, gpus: int = 2, **more: Any) -> AdmissionRequest:
    """A running job that has just been used."""
    question = wants(user, gpus, **more)
    await acting.run_job(question)
    office.hub.servers = {*(office.hub.servers or ()), (user, "")}
    office.hub.used[user, ""] = office.clock()
    return question


def culler(acting: Acting) -> Culler:
    assert acting.culler is not None
    return acting.culler


async def after(office: Office, acting: Acting, seconds: float) -> None:
    """Evaluates all jobs so much later."""
    office.clock.moved += timedelta(seconds=seconds)
    await culler(acting).evaluate_all()


def warning(acting: Acting, question: AdmissionRequest) -> str | None:
    """The text of the notice about idleness."""
    notice = culler(acting).evidence.store.notices.pending((question.job, NoticeKind.IDLE))
    return notice.text if notice else None


def cause(acting: Acting, question: AdmissionRequest) -> str:
    """Of that notice."""
    notice = culler(acting).evidence.store.notices.pending((question.job, NoticeKind.IDLE))
    return notice.cause if notice else ""


def keep_reason(acting: Acting, question: AdmissionRequest) -> Cause | None:
    report = culler(acting).report
    found = [one.decision for one in (report.judged if report else ()) if one.job.id == question.job]
    return found[0].why if found and isinstance(found[0], KeepJob) else None


async def test_idle_gpus_are_warned_of_at_50_and_90_percent_and_then_stopped(office: Office, leader: Acting) -> None:
    job = await run(office, leader, "idle")
    await after(office, leader, 400)
    assert warning(leader, job) is None
    await after(office, leader, 150)
    assert (warning(leader, job) or "").startswith("2 gpu GPUs unused for ")
    assert cause(leader, job).startswith("50 % since ")
    await after(office, leader, 400)
    assert cause(leader, job).startswith("90 % since ")
    assert leader.state(job) is JobState.RUNNING
    await after(office, leader, 110)
    assert leader.state(job) is JobState.STOPPING
    assert "idle" in await leader.reasons(job)
    assert "“Start again” starts it with the same options" in (await leader.stop_of(job)).message


async def test_idle_periods_are_written_down(office: Office, leader: Acting) -> None:
    job = await run(office, leader, "idle")
    started, found = office.clock(), []
    for seconds in (200, 200, 200):
        await after(office, leader, seconds)
    office.hub.used["idle", ""] = used = office.clock()
    for seconds in (0, 100, 400):
        await after(office, leader, seconds)
        rows = await leader.repository.read(lambda connection: connection.execute(select(idle_periods)).all())
        found.append([(row.job, row.until) for row in rows])
        assert abs(rows[0].since - started) < timedelta(seconds=60)
    assert found == [[(job.job, used)], [(job.job, used)], [(job.job, used), (job.job, None)]]
    again = Culler(culler(leader).evidence, leader.repository)
    await again.load()
    assert again._idle == {job.job: used}, "after a restart"


async def test_busy_gpu_of_a_further_pod_keeps_the_job(office: Office, leader: Acting) -> None:
    request = wants("pair")
    each = {"cpu": "50m", "memory": "64Mi", "nvidia.com/gpu": "1"}
    pods = pod_set.PodSet((pod_set.Role("chief", 1, each), pod_set.Role("worker", 1, each)))
    first = pod_set.as_first(pod_of(request), pods, "s", "x")
    manifests = [first, *pod_set.further_pods(first)]
    signed = naming.sign(request.nonce, f"{NAMESPACE}/jupyter-pair")
    await leader.ask(replace(request, pods=tuple(map(strip_manifest, manifests)), nonce=signed))
    for manifest in manifests:
        manifest["spec"]["schedulerName"] = "tests"
        await office.bind(await office.cluster.create(PODS, manifest, NAMESPACE))
    await until(lambda: leader.state(request) is JobState.RUNNING, "it runs")
    office.hub.servers, office.hub.used["pair", ""] = {("pair", "")}, office.clock()
    await after(office, leader, WINDOW + 100)
    assert keep_reason(leader, request) is Cause.USED


@pytest.mark.parametrize(
    ("user", "cause"),
    [("busy", Cause.USED), ("half", Cause.UNKNOWN)],
    ids=["a GPU that works now and then", "metrics of one GPU of two"],
)
async def test_used_or_partly_unknown_gpus_keep_the_job(
    office: Office, leader: Acting, user: str, cause: Cause
) -> None:
    job = await run(office, leader, user)
    for _ in range(6):
        await after(office, leader, 400)
    assert (leader.state(job), keep_reason(leader, job)) == (JobState.RUNNING, cause)
    assert warning(leader, job) is None


async def test_without_prometheus_no_gpu_job_is_stopped(office: Office) -> None:
    office.prometheus = None
    async with office.manager() as acting:
        with_gpus, without = await run(office, acting, "idle"), await run(office, acting, "plain", gpus=0)
        for seconds in (550, 400, 110):
            await after(office, acting, seconds)
        assert acting.state(with_gpus) is JobState.RUNNING
        assert acting.state(without) is JobState.STOPPING
        report = culler(acting).report
        assert report is not None
        assert report.gpus_unknown == NO_PROMETHEUS


async def test_unavailable_prometheus_stops_nothing(office: Office, tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with metrics.measuring(folder, HISTORY[:2]) as url:
        office.prometheus = PrometheusClient(url)
        async with office.manager() as acting:
            job = await run(office, acting, "idle")
            await after(office, acting, 550)
            assert warning(acting, job) is not None
    async with office.manager() as acting:
        for _ in range(4):
            await after(office, acting, 400)
        assert keep_reason(acting, job) is Cause.UNKNOWN
        assert acting.state(job) is JobState.RUNNING
    await office.prometheus.close()


async def test_busy_kernel_withdraws_the_warning(office: Office, leader: Acting) -> None:
    job = await run(office, leader, "idle")
    await after(office, leader, 550)
    assert warning(leader, job) is not None
    assert culler(leader).evidence.store.cluster_state.jobs[job.job].idle, "preemption chooses it first"
    assert culler(leader).report_kernels("idle", "", True, None)
    await after(office, leader, 5)
    assert warning(leader, job) is None
    assert keep_reason(leader, job) is Cause.USED
    assert not culler(leader).evidence.store.cluster_state.jobs[job.job].idle, "it is no first victim any more"


def offer_ssh(office: Office) -> None:
    endpoints = [{"name": "ssh", "port": 2222, "protocol": "ssh"}]
    (office.folder / "jobs" / "tiny.yaml").write_text(json.dumps({**quota.TEMPLATE, "endpoints": endpoints}))


@pytest.mark.parametrize(("gateway", "forgotten"), [("gateway-1", False), ("gateway-2", True)])
async def test_time_without_reports_of_any_gateway_counts_as_use(office: Office, gateway: str, forgotten: bool) -> None:
    offer_ssh(office)
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        await culler(acting).report_ssh("gateway-1", [])
    office.clock.moved += timedelta(seconds=700)
    async with office.manager() as acting:
        await culler(acting).report_ssh(gateway, [])
        await culler(acting).evaluate_all()
        assert (warning(acting, job) is None) is forgotten


async def run_with_logs(office: Office, acting: Acting, user: str, template: str, log_dir: str) -> AdmissionRequest:
    """A running job without GPUs, whose logs are there."""
    question = wants(user, 0, server=template, template=template)
    assert (await acting.ask(question)).decision == "admit"
    told = {"user": user, "server": template, "team": "default", "log-dir": log_dir}
    annotations = {f"dlspawner.dev/{name}": value for name, value in told.items()}
    annotations[naming.NONCE_ANNOTATION] = question.nonce
    pod = await office.make_pod(question, name=f"jupyter-{user}--{template}", annotations=annotations)
    await office.bind(pod)
    await acting.until_state(question, JobState.RUNNING)
    office.hub.servers = {*(office.hub.servers or ()), (user, template)}
    return question


async def test_board_is_used_while_a_job_of_its_user_writes_the_logs_that_it_shows(office: Office) -> None:
    board = {**quota.TEMPLATE, "idle": {"counts": ["http"]}}
    (office.folder / "jobs" / "board.yaml").write_text(json.dumps(board))
    async with office.manager() as acting:
        shown = await run_with_logs(office, acting, "ann", "board", "/home/ann/runs")
        writes = await run_with_logs(office, acting, "ann", "tiny", "/home/ann/runs/first")
        foreign = await run_with_logs(office, acting, "dan", "board", "/home/ann/runs")
        await after(office, acting, 950)
        assert keep_reason(acting, shown) is Cause.USED
        assert warning(acting, foreign) is not None, "the logs are another user's"
        await office.cluster.delete(PODS, "jupyter-ann--tiny", NAMESPACE, grace=0)
        await acting.until_state(writes, JobState.ENDED)
        await after(office, acting, 950)
        assert warning(acting, shown) is not None


async def test_job_of_a_removed_template_goes_on(office: Office, leader: Acting) -> None:
    job = await run(office, leader, "plain", gpus=0, template="gone")
    for _ in range(6):
        await after(office, leader, 400)
    assert (leader.state(job), keep_reason(leader, job)) == (JobState.RUNNING, Cause.UNKNOWN)


async def test_keep_alive_has_a_limit(office: Office, leader: Acting) -> None:
    job = await run(office, leader, "plain", gpus=0)
    begun = office.clock()
    kept = None
    for _ in range(12):
        await after(office, leader, 300)
        kept = await culler(leader).keep(leader.record(job))
        if kept.longest:
            break
        assert warning(leader, job) is None
    assert kept is not None
    assert kept.longest
    assert kept.until is not None
    assert abs(kept.until - begun - timedelta(seconds=3000 + WINDOW)) < timedelta(seconds=60)


async def test_dry_run_reports_and_stops_nothing(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dlspawner.manager")
    file = office.folder / "cluster.yaml"
    file.write_text(file.read_text().replace("dry_run: false", "dry_run: true"))
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        for seconds in (550, 400, 110, 10):
            await after(office, acting, seconds)
        assert (acting.state(job), warning(acting, job)) == (JobState.RUNNING, None)
        report = culler(acting).report
        assert report is not None
        assert report.dry_run
        lines = [line for line in caplog.messages if line.startswith("dry run:")]
        assert len(lines) == 1
        assert f"job={job.job} user=idle server= would be stopped reason=idle" in lines[0]
        kept = await culler(acting).keep(acting.record(job))
        said = "Nothing stops this job for being unused: here it is only written down what would be stopped."
        assert (kept.sentence, kept.until, kept.longest) == (said, None, False)


async def test_unavailable_hub_stops_nothing(office: Office, leader: Acting) -> None:
    job = await run(office, leader, "plain", gpus=0)
    await after(office, leader, 950)
    office.hub.servers = None
    with pytest.raises(Exception, match="there is none"):
        await after(office, leader, 400)
    assert leader.state(job) is JobState.RUNNING


async def test_next_manager_knows_warnings_and_use(office: Office) -> None:
    async with office.manager() as acting:
        idle, used = await run(office, acting, "idle"), await run(office, acting, "plain", gpus=0)
        await after(office, acting, 950)
        await culler(acting).report_ssh("gateway-1", [SshSessionReport("plain", "", 0.0, open=False)])
    office.clock.moved += timedelta(seconds=110)
    async with office.manager() as acting:
        await culler(acting).evaluate_all()
        assert acting.state(idle) is JobState.STOPPING
        assert acting.state(used) is JobState.RUNNING
