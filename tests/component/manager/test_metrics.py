"""The Manager's metrics, and the dashboard on a real Prometheus."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from dlspawner.core.job import JobState
from dlspawner.manager.db import store
from dlspawner.manager.model.event_reason import EventReason
from tests.component.manager import metrics
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants
from tests.component.manager.quota import OPTIONS, TEMPLATE, QuotaHub, running
from tests.component.manager.real_hub import RealHub
from tests.e2e.people import wait_for

DASHBOARD = Path(__file__).parents[3] / "hub_config" / "grafana" / "dlspawner.json"


def value(leader: Leader, name: str, **labels: str) -> float | None:
    found: float | None = leader.metrics.registry.get_sample_value(name, labels)
    return found


async def test_held_and_queued_gpus(harness: ManagerHarness, leader: Leader) -> None:
    await leader.ask(wants("alice", gpus=6))
    await leader.ask(wants("bob", gpus=8))
    place = {"team": "default", "gpu_type": "gpu"}
    assert value(leader, "dlspawner_gpus_held", **place) == 6
    assert value(leader, "dlspawner_gpus_queued", **place) == 8
    assert value(leader, "dlspawner_gpus_waiting_approval", **place) == 0
    assert value(leader, "dlspawner_gpus_quota", **place) == 8
    assert value(leader, "dlspawner_gpus_capacity", gpu_type="gpu") == 8
    assert value(leader, "dlspawner_gpus_free", gpu_type="gpu") == 2
    assert value(leader, "dlspawner_gpus_unusable", gpu_type="gpu", why="fragmented") == 2
    assert value(leader, "dlspawner_jobs", state="queued") == 1
    assert value(leader, "dlspawner_leader") == 1
    async with harness.manager(waits=False) as stands_by:
        assert value(stands_by, "dlspawner_leader") == 0
        assert value(stands_by, "dlspawner_gpus_held", **place) is None, "a sum counts nothing twice"


async def test_wait_is_from_submit_to_admission(harness: ManagerHarness, leader: Leader) -> None:
    holder, waits = wants("alice", gpus=8), wants("bob", gpus=8)
    leader.hub_starts(holder, waits)
    before = harness.clock()
    await leader.ask(holder)
    await leader.ask(waits)
    harness.clock.moved += timedelta(minutes=10)
    await leader.service.release_reservation(holder.job, "alice")
    await until(lambda: leader.state(waits) is JobState.STARTING, "it was let in")
    labels = {"gpu_type": "gpu", "preemptible": "false"}
    await until(lambda: value(leader, "dlspawner_wait_seconds_count", **labels) == 2, "both were let in")
    waited = value(leader, "dlspawner_wait_seconds_sum", **labels)
    assert waited is not None
    assert 600 <= waited <= (harness.clock() - before).total_seconds()
    assert value(leader, "dlspawner_wait_seconds_bucket", le="1.0", **labels) == 1
    assert value(leader, "dlspawner_job_ends_total", reason="not-created") == 1


@pytest.mark.parametrize(
    ("reason", "name", "labels"),
    [
        (EventReason.PREEMPTED, "dlspawner_preemptions_total", {"team": "default", "gpu_type": "gpu"}),
        (EventReason.IDLE, "dlspawner_culls_total", {"reason": "idle", "gpu_type": "gpu"}),
    ],
)
async def test_stops_are_counted(leader: Leader, reason: EventReason, name: str, labels: dict[str, str]) -> None:
    await leader.run_job(request := wants(gpus=1))
    assert value(leader, "dlspawner_gpus_held", team="default", gpu_type="gpu") == 1
    assert value(leader, name, **labels) == 0, "series exist from the beginning"
    assert await leader.stop(request.job, reason)
    assert value(leader, name, **labels) == 1


async def test_unwritten_change_is_not_counted(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    await leader.ask(wants("alice", gpus=8))
    await leader.ask(wants("bob", gpus=8))

    async def fails(*_: Any) -> None:
        raise store.DatabaseUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(leader.repository, "write", fails)
        with pytest.raises(store.DatabaseUnavailable):
            await leader.cancel("bob")
    assert value(leader, "dlspawner_job_ends_total", reason="cancelled") == 0
    assert await leader.cancel("bob")
    assert value(leader, "dlspawner_job_ends_total", reason="cancelled") == 1


def test_manager_without_files_is_scraped_with_the_scope_for_metrics(real_hub: RealHub) -> None:
    headers = {"Authorization": f"Bearer {real_hub.token('root-admin', ('read:metrics',))}"}
    answer = requests.get(f"{real_hub.manager}/services/jobs/api/metrics", headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    assert "dlspawner_leader 0.0" in answer.text, "it has no files, and decides nothing"
    assert re.search(r"^dlspawner_loop_lag_seconds_count [1-9]", answer.text, re.MULTILINE), "measured all the time"


# The dashboard, against a Prometheus that scrapes a Manager

EXTRA = """
c.JupyterHub.services.append({"name": "prometheus", "api_token": "metrics-token"})
c.JupyterHub.load_roles.append({"name": "prometheus", "services": ["prometheus"], "scopes": ["read:metrics"]})
"""


VARIABLES = {"team": "default", "gpu_type": "gpu"}
QUOTA = 7  # of the eight GPUs, so that somebody may ask for more than they ever get


def expressions() -> list[tuple[str, str]]:
    """Every panel's, as Grafana fills them in for one team and one GPU type: every series needs these labels."""
    files = DASHBOARD, DASHBOARD.with_name("users.json")
    panels = [panel for file in files for panel in json.loads(file.read_text())["panels"]]
    filled = []
    for panel in panels:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m")
            filled.append((panel["title"], re.sub(r"\$(\w+)", lambda one: VARIABLES[one[1]], text)))
    return filled


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes a Manager whose jobs ran, borrowed, waited, were refused and ended."""
    state = tmp_path_factory.mktemp("metrics")
    metrics.program("prometheus")
    borrowed = {"tiny": {**TEMPLATE, "options": OPTIONS}}
    with running(QuotaHub(state, extra=EXTRA, gpus=QUOTA, own_templates=borrowed)) as hub:
        hub.add_users(["alice", "bob", "carol", "dave"])
        for user, options in (("alice", {"gpus": 6}), ("carol", {"gpus": 1, "preemptible": True})):
            assert hub.start_server(user, **options).status_code in {201, 202}
            wait_for(lambda name=user: f"{name}/" in hub.ready(), "it runs", 120)  # type: ignore[misc]
        assert "in the queue" in hub.refusal("bob", hub.start_server("bob", gpus=4)), "it waits"
        assert "in the queue" not in hub.refusal("dave", hub.start_server("dave", gpus=QUOTA + 1)), "it never starts"
        folder = state / "prometheus"
        folder.mkdir()
        manager = (
            "job_name: dlspawner, metrics_path: /services/jobs/api/metrics, "
            "authorization: {type: Bearer, credentials: metrics-token}, "
            f"static_configs: [{{targets: ['127.0.0.1:{hub.manager_port}']}}]"
        )
        of_hub = (
            "job_name: hub, metrics_path: /hub/metrics, authorization: {type: Bearer, credentials: metrics-token}, "
            f"static_configs: [{{targets: ['{hub.address}:{hub.hub_port}']}}]"
        )
        with metrics.prometheus(folder, more=[manager, of_hub]) as url:
            # Of what happened before the first look nothing has increased.
            wait_for(lambda: ask_prometheus(url, "count_over_time(dlspawner_leader[1m]) > 1"), "it has looked", 60)
            hub.api("DELETE", "/users/alice/server")
            wait_for(lambda: "bob/" in hub.ready(), "its turn came", 120)
            yield url


def ask_prometheus(url: str, expression: str) -> list[Any]:
    answer = requests.get(f"{url}/api/v1/query", params={"query": expression}, timeout=30)
    assert answer.status_code == 200, f"{expression}: {answer.text}"
    found: list[Any] = answer.json()["data"]["result"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("title", "expression"), expressions(), ids=lambda text: text[:60])
def test_expressions_of_the_dashboard_have_values(scraped: str, title: str, expression: str) -> None:
    def numbers() -> bool:
        found = [float(one["value"][1]) for one in ask_prometheus(scraped, expression)]
        return bool(found) and all(map(math.isfinite, found))

    wait_for(numbers, f"{title}: {expression}", 60)


@pytest.mark.slow
def test_variables_of_the_dashboard_have_values(scraped: str) -> None:
    for one in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if one["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["definition"]).groups()  # type: ignore[union-attr]
            wait_for(lambda m=metric: ask_prometheus(scraped, m), metric, 60)  # type: ignore[misc]
            assert label in ask_prometheus(scraped, metric)[0]["metric"]
