"""What a job used over time, from a real Prometheus with a history."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dlspawner.clients.kubernetes import PODS
from dlspawner.clients.prometheus import MetricNames, PrometheusClient
from dlspawner.core.job import JobState
from dlspawner.manager.culling.evidence import NO_PROMETHEUS
from dlspawner.manager.history.profile import ANNOTATIONS, ProfileWriter, alnair_annotations, read_maxima
from dlspawner.manager.http.api.history import TimeRange, expressions, read_time_range, read_usage
from dlspawner.manager.http.api.models.requests import UsageQuery
from tests.component.manager import metrics
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.metrics import NAMESPACE, Gpu
from tests.component.manager.portals import Portal

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def usage_query(since: str, until_: str, step: str) -> UsageQuery:
    given = {"since": since, "until": until_, "step": step}
    return UsageQuery.model_validate({name: [value] for name, value in given.items() if value})


@pytest.mark.parametrize(
    ("since", "until_", "step", "expected"),
    [
        ("", "", "", (4, 10, 120)),
        ("2030-01-01T13:00:00Z", "2030-01-01T14:00:00Z", "60", (1, 2, 60)),
        ("2030-01-01T13:00:00", "", "", (1, 10, 165)),
        ("2020-01-01T00:00:00Z", "2040-01-01T00:00:00Z", "3600", (0, 10, 3600)),
        ("", "2030-01-01T12:00:00Z", "", (4, 0, 15)),
        ("2030-01-01T12:00:00Z", "", "15", "more than 1000 points"),
    ],
    ids=[
        "the last six hours, in two hundred points at most",
        "what is asked for",
        "a time without a zone is UTC",
        "never more than the job's life",
        "nothing where that is nothing",
        "too many points",
    ],
)
def test_time_range_of_a_query(since: str, until_: str, step: str, expected: tuple[int, int, int] | str) -> None:
    found = read_time_range(usage_query(since, until_, step), NOON, NOON + 10 * HOUR)
    if isinstance(found, TimeRange):
        assert (found.since, found.until) == (NOON + expected[0] * HOUR, NOON + expected[1] * HOUR)  # type: ignore[operator]
        assert found.step.total_seconds() == expected[2]
        assert len(found.times) <= 1000
    else:
        assert isinstance(expected, str)
        assert expected in found


def test_time_range_has_at_most_31_days() -> None:
    query = usage_query("2030-01-01T12:00:00Z", "", "3600")
    assert "At most 31 days" in str(read_time_range(query, NOON, NOON + 40 * 24 * HOUR))


def test_pod_name_is_no_pattern() -> None:
    asked = expressions(MetricNames(), "jobs", ['a.b"} or up{x="', "c"], timedelta(seconds=30))
    assert all(r"a\\.b\"\\}" in one.expression for one in asked)


BEGIN = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
HISTORY = [
    Gpu("jupyter-alice--train", "GPU-1", lambda _: 100, memory_mib=2048),
    Gpu("jupyter-alice--train", "GPU-2", lambda seconds: 50 if seconds < 600 or seconds >= 1200 else None),
    Gpu("jupyter-alice--trainXother", "GPU-3", lambda _: 7),
    Gpu("jupyter-dora--", "GPU-4", lambda _: 40, instance="1"),
    Gpu("jupyter-dora--", "GPU-4", lambda _: 60, instance="2"),
]


def kubelet_samples() -> dict[str, list[str]]:
    """Half a processor and 3 MiB of one container, under both addresses that a kubelet has, and the pod's own sum."""
    labels = 'namespace="jobs",pod="jupyter-carol--"'
    labelled = [(f'{{{labels},container="notebook",job="{job}"}}', 1) for job in ("cadvisor", "resource")]
    labelled += [(f'{{{labels},container="",job="cadvisor"}}', 2)]
    times = [BEGIN + number * metrics.STEP for number in range(180)]
    cpu = [f"{one} {n * 5 * more} {at.timestamp():.3f}" for one, more in labelled for n, at in enumerate(times)]
    memory = [f"{one} {3 * 2**20 * more} {at.timestamp():.3f}" for one, more in labelled for at in times]
    traffic = [f'{{{labels},interface="eth0"}} {n * 10**7} {at.timestamp():.3f}' for n, at in enumerate(times)]
    disk = 'container="notebook",device="/dev/vda"'
    written = [f"{{{labels},{disk}}} {n * 10**8} {at.timestamp():.3f}" for n, at in enumerate(times)]
    pid = '{pod_name="jupyter-carol--",gpu_idx="0",gpu_uuid="GPU-9",pid="77"}'
    return {
        "container_cpu_usage_seconds_total": cpu,
        "container_memory_working_set_bytes": memory,
        "container_network_receive_bytes_total": traffic,
        "container_network_transmit_bytes_total": traffic,
        "container_fs_writes_bytes_total": written,
        "alnair_gpu_util": [f"{pid} {n % 60} {at.timestamp():.3f}" for n, at in enumerate(times)],
    }


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    end = BEGIN + timedelta(hours=12)  # tests may run hours after they were collected
    metrics.write_history(folder, HISTORY, BEGIN, end, kubelet_samples())
    with metrics.prometheus(folder) as url:
        yield url


async def test_points_are_means_of_their_steps_and_gaps_are_none(prometheus: PrometheusClient) -> None:
    span = TimeRange(BEGIN - timedelta(minutes=10), BEGIN + timedelta(minutes=30), timedelta(minutes=5))
    found = {one.name: one for one in await read_usage(prometheus, NAMESPACE, ["jupyter-alice--train"], span)}
    gpu = found["gpu"].values
    assert len(gpu) == len(span.times) == 8
    assert gpu[:1] == (None,), "before it ran nothing was measured"
    assert gpu[2:4] == pytest.approx((75, 75))
    assert gpu[4] == pytest.approx(100), "of one of them nothing is known meanwhile"
    assert gpu[7] == pytest.approx(75)
    assert found["gpu_memory"].values[2] == pytest.approx((2048 + 1024) * 2**20)
    assert found["cpu"].values == found["memory"].values == (None,) * 8, "nobody tells of these here"
    other = await read_usage(prometheus, "elsewhere", ["jupyter-alice--train"], span)
    assert all(value is None for one in other for value in one.values)


async def test_parts_of_a_gpu_are_told_in_percent_as_gpus_are(prometheus: PrometheusClient) -> None:
    prometheus.names = MetricNames(utilisation=("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"))
    span = TimeRange(BEGIN + timedelta(minutes=1), BEGIN + timedelta(minutes=6), timedelta(minutes=5))
    pods = ["jupyter-dora--", "jupyter-alice--trainXother"]
    found = {one.name: one for one in await read_usage(prometheus, NAMESPACE, pods, span)}
    assert found["gpu"].values[-1] == pytest.approx((40 + 60 + 7) / 3)


async def test_container_with_two_series_counts_once(prometheus: PrometheusClient) -> None:
    span = TimeRange(BEGIN + timedelta(minutes=5), BEGIN + timedelta(minutes=20), timedelta(minutes=5))
    found = {one.name: one for one in await read_usage(prometheus, NAMESPACE, ["jupyter-carol--"], span)}
    assert found["cpu"].values == pytest.approx((0.5, 0.5, 0.5))
    assert found["memory"].values == pytest.approx((3 * 2**20,) * 3)


async def test_maxima_are_of_one_pod_and_name_processes_only_where_an_exporter_does(
    prometheus: PrometheusClient,
) -> None:
    until_ = BEGIN + timedelta(minutes=25)
    found = await read_maxima(prometheus, NAMESPACE, ["jupyter-alice--train", "jupyter-carol--"], BEGIN, until_)
    assert found["jupyter-alice--train"] == {("gpu", ""): 100, ("gpu_memory", ""): 2048 * 2**20}
    assert found["jupyter-carol--"] == pytest.approx(
        {
            ("cpu", ""): 0.5,
            ("memory", ""): 3 * 2**20,
            ("network", ""): 2e6,
            ("disk", ""): 1e7,
            ("gpu_util", "gpu_0_77"): 59,
        }
    )
    after = await read_maxima(prometheus, NAMESPACE, ["jupyter-carol--"], until_ + HOUR, until_ + 2 * HOUR)
    assert after == {}, "only the time that is asked for"
    seconds = await read_maxima(prometheus, NAMESPACE, ["jupyter-carol--"], until_ - timedelta(seconds=20), until_)
    assert set(seconds["jupyter-carol--"]) == {("gpu_util", "gpu_0_77")}, "rates need minutes"
    assert alnair_annotations(found["jupyter-carol--"], NOON) == {
        "alnair.centaurusinfra.io/max_cpu_util": "50.0",
        "alnair.centaurusinfra.io/max_cpu_mem_mb": "3.15",
        "alnair.centaurusinfra.io/max_network_mbps": "2.0",
        "alnair.centaurusinfra.io/max_disk_io": "10.0",
        "alnair.centaurusinfra.io/gpu_util": "{'gpu_0_77': 59.0}",
        "alnair.centaurusinfra.io/query_dt": "2030-01-01 12:00:00+00:00",
    }


@pytest.fixture
def portal(portal: Portal, prometheus: PrometheusClient) -> Portal:
    portal.served.leader.prometheus = prometheus
    return portal


async def ask_usage(portal: Portal, user: str, job: str, query: str = "") -> tuple[int, Any]:
    return await portal.ask(user, f"jobs/{job}/usage?{query}")


@pytest.fixture
async def job(portal: Portal) -> str:
    """Alice's job, which has been running for half an hour according to its record."""
    request, store = await portal.runs(wants("alice", gpus=2, server="train")), portal.served.store
    await until(lambda: store.records[request.job].job.state is JobState.RUNNING, "it runs")
    await portal.began_earlier(request)
    return request.job


async def test_those_who_may_see_a_job_read_its_usage(portal: Portal, job: str) -> None:
    for user in ("alice", "vera", "root-admin"):
        status, usage = await ask_usage(portal, user, job)
        assert status == 200, usage
        gpu = next(one for one in usage["series"] if one["name"] == "gpu")
        assert gpu["unit"] == "percent"
        assert len(gpu["values"]) == len(usage["times"]) > 50
        assert {one["name"]: one["value"] for one in usage["maxima"]} == {"gpu": 100, "gpu_memory": 2**31}
        assert {round(value) for value in gpu["values"] if value is not None} <= {75, 83, 88, 90, 100}
    assert (await ask_usage(portal, "alice", job, "step=1"))[0] == 422


async def test_usage_page_has_charts_of_a_table(portal: Portal, job: str) -> None:
    assert f'href="/services/jobs/jobs/{job}/usage"' in (await portal.read("alice", f"jobs/{job}")).body
    page = await portal.read("alice", f"jobs/{job}/usage")
    assert page.status == 200
    assert re.findall(r'data-chart="use-table" data-unit="([^"]+)" data-column="(\d)"', page.body) == [
        ("%", "1"),
        ("GiB", "2"),
    ]
    assert "Processor" not in page.text, "unknown values have no line"
    assert re.search(r"GPUs, percent busy last [\d.]+, at most [\d.]+", page.text)
    assert re.search(r"From [\d-]+ \d\d:\d\d to [\d-]+ \d\d:\d\d UTC, a mean for every 15 seconds[.]", page.text)
    assert re.search(r"At most so far\s+Busiest GPU, percent\s*100.0\s+Memory of the fullest GPU, GiB\s*2.0", page.text)
    rows = re.findall(r'<th scope="row"><time datetime="([^"]+)">', page.body)
    assert len(set(rows)) == len(rows) > 100


async def test_pods_are_annotated_when_the_file_says_so_and_a_maximum_has_grown(portal: Portal, job: str) -> None:
    store, leader = portal.served.store, portal.served.leader
    writer = ProfileWriter(store, portal.harness.cluster, leader.prometheus, leader.culler.evidence.namespaces)  # type: ignore[union-attr]

    async def read() -> dict[str, str]:
        pod = await portal.harness.cluster.get(PODS, "jupyter-alice--train", NAMESPACE)
        told = pod["metadata"].get("annotations") or {}
        return {key.partition("/")[2]: one for key, one in told.items() if key.startswith(ANNOTATIONS)}

    await writer.run_once()
    assert await read() == {}
    store.configure(replace(store.cluster_state.cluster, profiler_annotations=True), store.cluster_state.teams)
    await writer.run_once()
    first = await read()
    assert (first["max_gpu_util"], first["max_gpu_mem_mb"]) == ("100.0", "2147.48")
    portal.harness.clock.moved += timedelta(minutes=1)
    await writer.run_once()
    assert await read() == first, "nothing has grown"


async def test_page_says_that_there_is_no_prometheus_or_no_answer(portal: Portal, job: str) -> None:
    portal.served.leader.prometheus = None
    page = await portal.read("alice", f"jobs/{job}/usage")
    assert (page.status, NO_PROMETHEUS in page.text) == (200, True)
    assert (await ask_usage(portal, "alice", job))[0] == 501
    away = portal.served.leader.prometheus = PrometheusClient("http://127.0.0.1:9")
    page = await portal.read("alice", f"jobs/{job}/usage")
    assert "Prometheus does not answer" in page.text
    assert (await ask_usage(portal, "alice", job))[0] == 503
    await away.close()


async def test_job_that_has_not_run_has_no_usage(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8, server="held"))
    request = await portal.waits(wants("alice", gpus=2, server="train"))
    assert "It has not run yet." in (await portal.read("alice", f"jobs/{request.job}/usage")).text
    status, usage = await ask_usage(portal, "alice", request.job)
    assert (status, usage["times"]) == (200, [])
