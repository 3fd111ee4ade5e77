"""What a job used over time: from a real Prometheus with a history, for who may see the job, and gaps are gaps."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dlspawner.clients.prometheus import MetricNames, MetricsUnavailable, PrometheusClient
from dlspawner.core.job import JobState
from dlspawner.manager.culling.evidence import NO_PROMETHEUS
from dlspawner.manager.http.api.history import TimeRange, expressions, read_time_range, read_usage
from dlspawner.manager.http.api.models.requests import UsageQuery
from dlspawner.manager.http.portal.history import moments
from dlspawner.manager.model.event_reason import EventReason
from tests.component.manager import metrics
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.metrics import NAMESPACE, Gpu
from tests.component.manager.portals import Portal, browsing, portals
from tests.component.manager.world import World

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
def test_what_points_are_asked_for(since: str, until_: str, step: str, expected: tuple[int, int, int] | str) -> None:
    found = read_time_range(usage_query(since, until_, step), NOON, NOON + 10 * HOUR)
    if isinstance(found, TimeRange):
        assert (found.since, found.until) == (NOON + expected[0] * HOUR, NOON + expected[1] * HOUR)  # type: ignore[operator]
        assert found.step.total_seconds() == expected[2]
        assert len(found.times) <= 1000
    else:
        assert isinstance(expected, str)
        assert expected in found


@pytest.mark.parametrize(
    ("step", "expected"),
    [(15, "2030-01-01 12:00:15"), (90, "2030-01-01 12:01:30"), (60, "2030-01-01 12:01"), (3600, "2030-01-01 13:00")],
)
def test_no_two_points_have_the_same_time(step: int, expected: str) -> None:
    told = moments(TimeRange(NOON, NOON + 10 * HOUR, timedelta(seconds=step)))
    assert told[0] == expected
    assert len(set(told)) == len(told)


def test_a_life_of_years_is_not_asked_for_at_once() -> None:
    assert "At most 31 days" in str(
        read_time_range(usage_query("2030-01-01T12:00:00Z", "", "3600"), NOON, NOON + 40 * 24 * HOUR)
    )


def test_no_name_of_a_pod_is_a_pattern() -> None:
    asked = expressions(MetricNames(), "jobs", ['a.b"} or up{x="', "c"], timedelta(seconds=30))
    assert all(r"a\\.b\"\\}" in one.expression for one in asked)


BEGIN = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
HISTORY = [
    Gpu("jupyter-alice--train", "GPU-1", lambda _: 100, memory_mib=2048),
    Gpu("jupyter-alice--train", "GPU-2", lambda seconds: 50 if seconds < 600 or seconds >= 1200 else None),
    Gpu("jupyter-alice--trainXother", "GPU-3", lambda _: 7),
]


def told_by_the_kubelet() -> dict[str, list[str]]:
    """Half a processor and 3 MiB of one container, under both addresses that a kubelet has, and the pod's own sum."""
    labels = 'namespace="jobs",pod="jupyter-carol--"'
    ways = [(f'{{{labels},container="notebook",job="{job}"}}', 1) for job in ("cadvisor", "resource")]
    ways += [(f'{{{labels},container="",job="cadvisor"}}', 2)]
    times = [BEGIN + number * metrics.STEP for number in range(180)]
    cpu = [f"{way} {n * 5 * more} {at.timestamp():.3f}" for way, more in ways for n, at in enumerate(times)]
    memory = [f"{way} {3 * 2**20 * more} {at.timestamp():.3f}" for way, more in ways for at in times]
    return {"container_cpu_usage_seconds_total": cpu, "container_memory_working_set_bytes": memory}


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    end = BEGIN + timedelta(hours=12)  # tests may run hours after they were collected
    metrics.write_history(folder, HISTORY, BEGIN, end, told_by_the_kubelet())
    with metrics.prometheus(folder) as url:
        yield url


@pytest.fixture
async def prometheus(prometheus_url: str) -> AsyncIterator[PrometheusClient]:
    made = PrometheusClient(prometheus_url)
    yield made
    await made.close()


async def test_points_are_the_means_of_their_steps_and_what_is_not_known_is_none(prometheus: PrometheusClient) -> None:
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


async def test_a_container_of_which_the_kubelet_tells_twice_counts_once(prometheus: PrometheusClient) -> None:
    span = TimeRange(BEGIN + timedelta(minutes=5), BEGIN + timedelta(minutes=20), timedelta(minutes=5))
    found = {one.name: one for one in await read_usage(prometheus, NAMESPACE, ["jupyter-carol--"], span)}
    assert found["cpu"].values == pytest.approx((0.5, 0.5, 0.5))
    assert found["memory"].values == pytest.approx((3 * 2**20,) * 3)


async def test_who_is_away_is_said_to_be_away() -> None:
    away = PrometheusClient("http://127.0.0.1:9")
    with pytest.raises(MetricsUnavailable):
        await read_usage(away, NAMESPACE, ["p"], TimeRange(BEGIN, BEGIN + HOUR, timedelta(minutes=1)))
    await away.close()


@pytest.fixture
async def portal(
    world: World, prometheus: PrometheusClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        made.served.acting.prometheus = prometheus
        yield made


async def ask_usage(portal: Portal, user: str, job: str, query: str = "") -> tuple[int, Any]:
    token = await asyncio.to_thread(portal.world.token, user)
    url = f"{portal.served.url}/api/jobs/{job}/usage?{query}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Authorization": f"token {token}"}) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def running(portal: Portal) -> str:
    """Alice's job, which has been running for half an hour as far as anybody knows."""
    question = await portal.runs(wants("alice", gpus=2, server="train"))
    book = portal.served.book
    await until(lambda: book.records[question.job].job.state is JobState.RUNNING, "it runs")
    started = datetime.now(UTC) - timedelta(minutes=30)

    def since(turn: Any) -> None:
        from dataclasses import replace

        known = turn.record(question.job)
        turn.write(replace(known, job=replace(known.job, started=started)), EventReason.QUEUED)

    await book.transact(since)
    return question.job


async def test_who_may_see_a_job_reads_what_it_used(portal: Portal) -> None:
    job = await running(portal)
    for user in ("alice", "vera", "root-admin"):
        status, told = await ask_usage(portal, user, job)
        assert status == 200, told
        gpu = next(one for one in told["series"] if one["name"] == "gpu")
        assert gpu["unit"] == "percent"
        assert len(gpu["values"]) == len(told["times"]) > 50
        assert {round(value) for value in gpu["values"] if value is not None} <= {75, 83, 88, 90, 100}
    for user in ("bob", "lars"):
        status, told = await ask_usage(portal, user, job)
        assert (status, told["detail"]) == (404, "There is no such job of yours.")
    assert (await ask_usage(portal, "alice", "j-zzzzzzzzzzzz"))[0] == 404
    assert (await ask_usage(portal, "alice", job, "step=1"))[0] == 422
    assert (await portal.read("", f"api/jobs/{job}/usage")).status == 401


async def test_the_page_of_a_job_leads_to_its_use_with_lines_and_a_table(portal: Portal) -> None:
    job = await running(portal)
    assert f'href="/services/jobs/jobs/{job}/usage"' in (await portal.read("alice", f"jobs/{job}")).body
    page = await portal.read("alice", f"jobs/{job}/usage")
    assert page.status == 200
    assert "GPUs, percent busy" in page.text
    assert "<polyline" in page.body
    assert "Processor" not in page.text, "of what nobody knows there is no line"
    assert re.search(r"GPUs, percent busy last [\d.]+, at most [\d.]+", page.text)
    assert "now " not in page.text
    shown = re.search(r"From [\d-]+ \d\d:\d\d to [\d-]+ \d\d:\d\d UTC, a mean for every 15 seconds[.]", page.text)
    assert shown is not None
    rows = re.findall(r'<th scope="row">([^<]+)</th>', page.body)
    assert len(set(rows)) == len(rows) > 100
    assert (await portal.read("bob", f"jobs/{job}/usage")).status == 404


async def test_without_a_prometheus_and_while_it_is_away_the_page_says_so(portal: Portal) -> None:
    job = await running(portal)
    portal.served.acting.prometheus = None
    page = await portal.read("alice", f"jobs/{job}/usage")
    assert (page.status, NO_PROMETHEUS in page.text) == (200, True)
    assert (await ask_usage(portal, "alice", job))[0] == 501
    away = portal.served.acting.prometheus = PrometheusClient("http://127.0.0.1:9")
    page = await portal.read("alice", f"jobs/{job}/usage")
    assert "Prometheus does not answer" in page.text
    assert (await ask_usage(portal, "alice", job))[0] == 503
    await away.close()


async def test_a_job_that_has_not_run_has_used_nothing(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8, server="held"))
    question = await portal.waits(wants("alice", gpus=2, server="train"))
    page = await portal.read("alice", f"jobs/{question.job}/usage")
    assert "It has not run yet." in page.text
    status, told = await ask_usage(portal, "alice", question.job)
    assert (status, told["times"]) == (200, [])


@pytest.mark.slow
@pytest.mark.browser
async def test_lines_are_drawn_in_a_browser_on_a_phone(portal: Portal) -> None:
    job = await running(portal)
    async with browsing(portal, "alice", viewport={"width": 360, "height": 800}) as page:
        await page.goto(f"{portal.world.jobs}/jobs/{job}/usage")
        line = page.get_by_role("img", name="GPUs, percent busy", exact=True)
        assert await line.is_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
