"""Jobs that nobody uses: a real API server, a real database, a real Prometheus, and time as it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dlspawner.clients.hub import HubUnavailable
from dlspawner.clients.kubernetes import KubernetesClient
from dlspawner.clients.prometheus import PrometheusClient
from dlspawner.core.idle import Cause, KeepJob
from dlspawner.core.job import JobState
from dlspawner.devcluster.api import start
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.culling.culler import Culler
from dlspawner.manager.culling.evidence import NO_PROMETHEUS
from dlspawner.manager.model.activity import SshSessionReport
from dlspawner.manager.model.notice import NoticeKind
from tests.component.manager import metrics, quota
from tests.component.manager.manager_harness import Office, ask, make_namespace, prepare, settled, until, wants
from tests.component.manager.metrics import Gpu
from tests.harness.ports import free_port

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
    Gpu("jupyter-gone", "GPU-6", lambda seconds: 0 if seconds < 1200 else None),
    Gpu("jupyter-gone", "GPU-7", lambda seconds: 0 if seconds < 1200 else None),
]


def write_history(folder: Path, gpus: list[Gpu], hours: int) -> None:
    """From a moment ago on: tests may run hours after they were collected."""
    begin = datetime.now(UTC) - timedelta(minutes=5)
    metrics.write_history(folder, gpus, begin, begin + timedelta(hours=hours))


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    write_history(folder, HISTORY, hours=3)
    with metrics.prometheus(folder) as url:
        yield url


@pytest.fixture
async def office(prometheus_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    api = await start(tmp_path / "cluster", 0)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    prepare(tmp_path)
    with (tmp_path / "cluster.yaml").open("a") as file:
        file.write(CULLING % WINDOW)
    async with await KubernetesClient.connect(api.kubeconfig) as cluster:
        await make_namespace(cluster)
        prometheus = PrometheusClient(prometheus_url)
        made = Office(tmp_path, f"sqlite:///{tmp_path / 'manager.sqlite'}", cluster, prometheus=prometheus)
        await made.make_node()
        yield made
        await prometheus.close()
    await api.stop()


async def run(office: Office, acting: LeaderElector, user: str, gpus: int = 2, **more: Any) -> AdmissionRequest:
    """A job that runs, of somebody who has just used it."""
    question = wants(user, gpus, **more)
    assert (await ask(acting, question)).decision == "admit"
    pod = await office.make_pod(question)
    await office.bind(pod)
    await until(lambda: state(acting, question) is JobState.RUNNING, "it runs")
    office.hub.servers = {*(office.hub.servers or ()), (user, "")}
    office.hub.used[user, ""] = office.clock()
    return question


def culler(acting: LeaderElector) -> Culler:
    assert acting.culler is not None
    return acting.culler


def state(acting: LeaderElector, question: AdmissionRequest) -> JobState | None:
    record = culler(acting).record(question.job)
    return record.job.state if record else None


async def after(office: Office, acting: LeaderElector, seconds: float) -> None:
    """So much later the Manager looks."""
    office.clock.moved += timedelta(seconds=seconds)
    await culler(acting).evaluate_all()


def told(acting: LeaderElector, question: AdmissionRequest) -> str | None:
    """What the owner of a job is told about not using it."""
    notice = culler(acting).evidence.book.notices.pending((question.job, NoticeKind.IDLE))
    return notice.text if notice else None


def cause(acting: LeaderElector, question: AdmissionRequest) -> str:
    """Of that notice."""
    notice = culler(acting).evidence.book.notices.pending((question.job, NoticeKind.IDLE))
    return notice.cause if notice else ""


def why(acting: LeaderElector, question: AdmissionRequest) -> Cause | None:
    """Why a job goes on."""
    report = culler(acting).report
    found = [one.decision for one in (report.judged if report else ()) if one.job.id == question.job]
    return found[0].why if found and isinstance(found[0], KeepJob) else None


async def reasons(acting: LeaderElector, question: AdmissionRequest) -> list[str]:
    await settled(acting)
    return [reason for _, _, reason in await acting.ledger.events(question.job)]


async def test_two_idle_gpus_are_warned_of_at_50_and_90_percent_and_then_stopped(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        await after(office, acting, 400)
        assert told(acting, job) is None
        await after(office, acting, 150)
        assert (told(acting, job) or "").startswith("2 gpu GPUs unused for ")
        assert cause(acting, job).startswith("50 % since ")
        await after(office, acting, 400)
        assert cause(acting, job).startswith("90 % since ")
        assert state(acting, job) is JobState.RUNNING
        await after(office, acting, 110)
        assert state(acting, job) is JobState.STOPPING
        assert "idle" in await reasons(acting, job)
        record = culler(acting).record(job.job)
        assert record is not None
        assert record.stop is not None
        assert "“Start again” starts it with the same options" in record.stop.message


async def test_a_gpu_that_works_now_and_then_is_used(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "busy")
        for _ in range(6):
            await after(office, acting, 400)
        assert why(acting, job) is Cause.USED
        assert told(acting, job) is None


@pytest.mark.parametrize("user", ["half", "gone", "nobody"])
async def test_gpus_that_are_not_all_known_stop_nothing(office: Office, user: str) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, user)
        for _ in range(8):
            await after(office, acting, 400)
        assert why(acting, job) is Cause.UNKNOWN
        assert state(acting, job) is JobState.RUNNING


async def test_without_prometheus_no_gpu_job_is_stopped_and_the_report_says_so(office: Office) -> None:
    office.prometheus = None
    async with office.manager() as acting:
        with_gpus, without = await run(office, acting, "idle"), await run(office, acting, "plain", gpus=0)
        for seconds in (550, 400, 110):
            await after(office, acting, seconds)
        assert state(acting, with_gpus) is JobState.RUNNING
        assert state(acting, without) is JobState.STOPPING
        report = culler(acting).report
        assert report is not None
        assert report.gpus_unknown == NO_PROMETHEUS


async def test_a_prometheus_that_is_gone_stops_nothing(office: Office, tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    write_history(folder, HISTORY[:2], hours=1)
    with metrics.prometheus(folder) as url:
        office.prometheus = PrometheusClient(url)
        async with office.manager() as acting:
            job = await run(office, acting, "idle")
            await after(office, acting, 550)
            assert told(acting, job) is not None
    async with office.manager() as acting:
        for _ in range(4):
            await after(office, acting, 400)
        assert why(acting, job) is Cause.UNKNOWN
        assert state(acting, job) is JobState.RUNNING
    await office.prometheus.close()


async def test_a_warning_whose_time_has_passed_while_nothing_is_known_is_taken_back_and_given_again(
    office: Office,
) -> None:
    away = PrometheusClient(f"http://127.0.0.1:{free_port()}")
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        await after(office, acting, 550)
        culler(acting).evidence.prometheus = away
        await after(office, acting, 200)
        assert why(acting, job) is Cause.UNKNOWN
        assert cause(acting, job).startswith("50 % since "), "it may be stopped then"
        await after(office, acting, 300)
        assert (state(acting, job), why(acting, job)) == (JobState.RUNNING, Cause.UNKNOWN)
        assert told(acting, job) is None, "it was not"
        culler(acting).evidence.prometheus = office.prometheus
        await after(office, acting, 10)
        assert cause(acting, job).startswith("90 % since ")
        assert state(acting, job) is JobState.RUNNING
        await after(office, acting, 110)
        assert state(acting, job) is JobState.STOPPING
    await away.close()


async def test_a_busy_kernel_keeps_its_job_and_what_was_told_is_taken_back(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        await after(office, acting, 550)
        assert told(acting, job) is not None
        assert culler(acting).report_kernels("idle", "", True, None)
        await after(office, acting, 5)
        assert told(acting, job) is None
        assert why(acting, job) is Cause.USED


async def test_kernels_of_which_nothing_is_heard_any_more_stop_nothing(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        culler(acting).report_kernels("idle", "", False, 2000)
        for _ in range(4):
            await after(office, acting, 400)
        assert why(acting, job) is Cause.UNKNOWN


async def test_an_open_ssh_session_protects_for_a_bounded_time(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        session = SshSessionReport("idle", "", 0.0, open=True)
        await culler(acting).report_ssh("gateway-1", [session])
        silent = 0.0
        for seconds in (510, 300):
            silent += seconds
            office.clock.moved += timedelta(seconds=seconds)
            await culler(acting).report_ssh("gateway-1", [SshSessionReport("idle", "", silent, open=True)])
            await culler(acting).evaluate_all()
            assert told(acting, job) is None
        for seconds in (110, 400, 120):
            silent += seconds
            office.clock.moved += timedelta(seconds=seconds)
            await culler(acting).report_ssh("gateway-1", [SshSessionReport("idle", "", silent, open=True)])
            await culler(acting).evaluate_all()
        assert state(acting, job) is JobState.STOPPING


async def test_a_session_whose_gateway_is_silent_may_be_in_use(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        await culler(acting).report_ssh("gateway-1", [SshSessionReport("idle", "", 0.0, open=True)])
        for _ in range(6):
            await after(office, acting, 400)
        assert why(acting, job) is Cause.USED


async def test_a_session_that_has_ended_protects_from_its_last_byte_on(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        await culler(acting).report_ssh("gateway-1", [SshSessionReport("idle", "", 0.0, open=True)])
        office.clock.moved += timedelta(seconds=300)
        await culler(acting).report_ssh("gateway-1", [])
        for seconds in (250, 400, 110):
            await after(office, acting, seconds)
        assert state(acting, job) is JobState.STOPPING


def offer_ssh(office: Office) -> None:
    """People can log in to the jobs of the template."""
    endpoints = [{"name": "ssh", "port": 2222, "protocol": "ssh"}]
    (office.folder / "jobs" / "tiny.yaml").write_text(json.dumps({**quota.TEMPLATE, "endpoints": endpoints}))


async def test_a_job_with_ssh_goes_on_while_no_gateway_tells_anything(office: Office) -> None:
    offer_ssh(office)
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        for _ in range(6):
            await after(office, acting, 400)
        assert (state(acting, job), why(acting, job)) == (JobState.RUNNING, Cause.UNKNOWN)


async def test_a_job_with_ssh_is_stopped_when_gateways_tell_that_nobody_is_there(office: Office) -> None:
    offer_ssh(office)
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        for _ in range(11):
            office.clock.moved += timedelta(seconds=100)
            await culler(acting).report_ssh("gateway-1", [])
            await culler(acting).evaluate_all()
        assert state(acting, job) is JobState.STOPPING


@pytest.mark.parametrize(("gateway", "forgotten"), [("gateway-1", False), ("gateway-2", True)])
async def test_what_a_gateway_saw_that_died_unheard_is_use_and_one_that_lives_remembers_it(
    office: Office, gateway: str, forgotten: bool
) -> None:
    offer_ssh(office)
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        await culler(acting).report_ssh("gateway-1", [])
    office.clock.moved += timedelta(seconds=700)
    async with office.manager() as acting:
        await culler(acting).report_ssh(gateway, [])
        await culler(acting).evaluate_all()
        assert (told(acting, job) is None) is forgotten


async def test_jobs_of_a_template_that_is_gone_go_on(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "plain", gpus=0, template="gone")
        for _ in range(6):
            await after(office, acting, 400)
        assert (state(acting, job), why(acting, job)) == (JobState.RUNNING, Cause.UNKNOWN)


async def test_keep_alive_keeps_a_job_and_has_a_limit(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "plain", gpus=0)
        begun = office.clock()
        kept = None
        for _ in range(12):
            await after(office, acting, 300)
            record = culler(acting).record(job.job)
            assert record is not None
            kept = await culler(acting).keep(record)
            if kept.longest:
                break
            assert told(acting, job) is None
        assert kept is not None
        assert kept.longest
        assert kept.until is not None
        assert abs(kept.until - begun - timedelta(seconds=3000 + WINDOW)) < timedelta(seconds=60)


async def test_the_button_asks_nobody_and_pressing_it_at_once_again_writes_nothing(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "plain", gpus=0)
        await after(office, acting, 550)
        assert told(acting, job) is not None
        record, lists = culler(acting).record(job.job), office.hub.lists
        assert record is not None
        kept = [(await culler(acting).keep(record)).sentence]
        pressed = culler(acting).evidence.activities.of(job.job).kept
        kept += [(await culler(acting).keep(record)).sentence for _ in range(3)]
        assert kept == ["It is kept for 16 min, longer while it is used."] * 4
        assert told(acting, job) is None
        assert (culler(acting).evidence.activities.of(job.job).kept, office.hub.lists) == (pressed, lists)


@pytest.mark.parametrize("number", [1, 2], ids=["while it is written down", "while what follows is"])
async def test_a_round_in_between_that_does_not_list_the_server_leaves_the_job_kept(
    office: Office, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "plain", gpus=0)
        await after(office, acting, 550)
        record, listed, writes = culler(acting).record(job.job), office.hub.servers, [0]
        assert record is not None
        save = Culler._save

        async def save_in_a_round(self: Culler) -> None:
            await save(self)
            writes[0] += 1
            if writes[0] == number:
                office.hub.servers = set()
                await self.evidence.collect()

        with monkeypatch.context() as patch:
            patch.setattr(Culler, "_save", save_in_a_round)
            with pytest.raises(HubUnavailable):
                await culler(acting).keep(record)
        office.hub.servers = listed
        await after(office, acting, 0)
        assert told(acting, job) is None, "the word of its person counts"


async def test_a_dry_run_reports_what_it_would_have_stopped_and_touches_nobody(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dlspawner.manager")
    file = office.folder / "cluster.yaml"
    file.write_text(file.read_text().replace("dry_run: false", "dry_run: true"))
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        for seconds in (550, 400, 110, 10):
            await after(office, acting, seconds)
        assert (state(acting, job), told(acting, job)) == (JobState.RUNNING, None)
        report = culler(acting).report
        assert report is not None
        assert report.dry_run
        lines = [line for line in caplog.messages if line.startswith("dry run:")]
        assert len(lines) == 1
        assert f"job={job.job} user=idle server= would be stopped reason=idle" in lines[0]
        record = culler(acting).record(job.job)
        assert record is not None
        kept = await culler(acting).keep(record)
        said = "Nothing stops this job for being unused: here it is only written down what would be stopped."
        assert (kept.sentence, kept.until, kept.longest) == (said, None, False)


async def test_files_that_say_nothing_of_unused_jobs_but_a_window_stop_nobody(office: Office) -> None:
    (office.folder / "cluster.yaml").write_text(quota.CLUSTER % quota.GPU)
    window = "teams:\n  default: {title: A, quota: {gpu: 8}, idle: {window_seconds: 300}}\n"
    (office.folder / "teams.yaml").write_text(window)
    async with office.manager() as acting:
        job = await run(office, acting, "plain", gpus=0)
        for seconds in (160, 120, 60, 60):
            await after(office, acting, seconds)
        assert (state(acting, job), told(acting, job)) == (JobState.RUNNING, None)


async def test_a_hub_that_does_not_answer_stops_nobody(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "plain", gpus=0)
        await after(office, acting, 950)
        office.hub.servers = None
        with pytest.raises(Exception, match="there is none"):
            await after(office, acting, 400)
        assert state(acting, job) is JobState.RUNNING


async def test_a_manager_that_dies_between_warning_and_stop_forgets_neither_warning_nor_use(office: Office) -> None:
    async with office.manager() as acting:
        idle, used = await run(office, acting, "idle"), await run(office, acting, "plain", gpus=0)
        await after(office, acting, 950)
        await culler(acting).report_ssh("gateway-1", [SshSessionReport("plain", "", 0.0, open=False)])
    office.clock.moved += timedelta(seconds=110)
    async with office.manager() as acting:
        await culler(acting).evaluate_all()
        assert state(acting, idle) is JobState.STOPPING
        assert state(acting, used) is JobState.RUNNING


async def test_what_gpus_did_while_nobody_looked_counts(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "busy")
        await after(office, acting, 100)
    office.clock.moved += timedelta(seconds=1500)
    async with office.manager() as acting:
        await culler(acting).evaluate_all()
        assert why(acting, job) is Cause.USED


async def test_an_unused_job_is_the_first_victim_of_preemption(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting, "idle")
        await after(office, acting, 550)
        assert culler(acting).evidence.book.cluster_state.jobs[job.job].idle
        culler(acting).report_kernels("idle", "", True, None)
        await culler(acting).evaluate_all()
        assert not culler(acting).evidence.book.cluster_state.jobs[job.job].idle


async def test_the_lifetime_ends_a_job_that_is_used(office: Office) -> None:
    file = office.folder / "cluster.yaml"
    file.write_text(file.read_text().replace("idle: {", "idle: {lifetime_seconds: 500, "))
    async with office.manager() as acting:
        job = await run(office, acting, "busy")
        for seconds in (460, 60):
            office.hub.used["busy", ""] = office.clock()
            await after(office, acting, seconds)
        assert state(acting, job) is JobState.STOPPING
        assert "lifetime" in await reasons(acting, job)


async def test_a_team_and_preemptibility_have_windows_of_their_own(office: Office) -> None:
    teams = (
        "teams:\n  default: {title: A, quota: {gpu: 8}, idle: {window_seconds: 300, preemptible_window_seconds: 100}}\n"
    )
    (office.folder / "teams.yaml").write_text(teams)
    async with office.manager() as acting:
        guaranteed = await run(office, acting, "plain", gpus=0)
        preemptible = await run(office, acting, "idle", preemptible=True)
        await after(office, acting, 70)
        assert told(acting, guaranteed) is None
        assert told(acting, preemptible) is not None
