"""Estimated starts: where the durations come from, what one round makes of them, and where they are read."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dlspawner.core.config import Culling, TeamsConfig
from dlspawner.core.scheduling.cluster_state import Snapshot
from dlspawner.core.scheduling.estimates import LEAST_RUNS, RunTime
from dlspawner.core.template import IdlePolicy, Template
from dlspawner.manager.admission.estimator import StartTimeEstimator, lifetimes
from dlspawner.manager.controllers import leader
from dlspawner.manager.db import jobs as db_jobs
from dlspawner.manager.db.store import Database
from dlspawner.settings import Settings
from tests.component.manager.history import NOON, Past, write_past
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import Portal
from tests.component.manager.test_preview import preview
from tests.unit.core.factories import CLUSTER, HOUR, NOW, queues, runs


@pytest.fixture
def again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Manager's rounds follow each other; to be asked for before the Manager."""
    monkeypatch.setattr(leader, "ESTIMATE_SECONDS", 0.1)


async def test_durations_are_those_of_the_newest_jobs_that_ran_and_ended_lately(db_url: str) -> None:
    store = await asyncio.to_thread(Database.open, db_url)
    told = ("Q0 R1 E4", "Q0 R1 E3", "Q0 R1 E2", "Q0 E5", "Q0 R1", "Q0 R-48 E-47")
    await write_past(store, *(Past(one) for one in told))
    found = await store.read(lambda connection: db_jobs.read_run_times(connection, NOON - timedelta(days=1), 2))
    assert found == [RunTime("vision", "tiny", 3 * 3600.0), RunTime("vision", "tiny", 2 * 3600.0)]
    assert (
        len(await store.read(lambda connection: db_jobs.read_run_times(connection, NOON - timedelta(days=1), 9))) == 3
    )
    await store.close()


@pytest.mark.parametrize("dry_run", [False, True], ids=["jobs are stopped", "a dry run stops nobody"])
def test_a_lifetime_is_an_end_where_jobs_are_stopped(dry_run: bool) -> None:
    cluster = replace(CLUSTER, culling=Culling(dry_run=dry_run))
    short = Template("short", "Short", idle=IdlePolicy(lifetime=4 * HOUR))
    jobs = (runs("r", "vision", 1, "n1", template="short"), runs("s", "vision", 1, "n1"), queues("q", "vision"))
    settings = Settings(cluster=cluster, teams=TeamsConfig(), templates=(short,))
    found = lifetimes(Snapshot(cluster, TeamsConfig(), (), jobs), settings)
    assert found == ({} if dry_run else {"r": NOW + 3 * HOUR})


async def has_ended(portal: Portal, hours: int, count: int = LEAST_RUNS) -> None:
    """So many jobs of this Manager ran for so long."""
    store = await asyncio.to_thread(Database.open, portal.harness.db_url)
    await write_past(store, *[Past(f"Q0 R0 E{hours}", noon=datetime.now(UTC) - timedelta(days=3))] * count)
    await store.close()


async def estimate(portal: Portal, **more: float) -> StartTimeEstimator:
    """One round, as the Manager makes one twice a minute."""
    leader = portal.served.leader
    desk = leader.service
    made = StartTimeEstimator(desk.store, leader.repository, desk.explainer, lambda: leader.settings, **more)  # type: ignore[arg-type]
    await made.refresh()
    return made


@pytest.mark.usefixtures("again_at_once")
async def test_who_waits_reads_between_which_times_where_such_jobs_differ(portal: Portal) -> None:
    await has_ended(portal, 1)
    await has_ended(portal, 5)
    await portal.runs(wants("holder", gpus=8))
    waits = await portal.waits(wants("alice"))
    explainer = portal.served.leader.service.explainer
    await until(lambda: waits.job in explainer.estimates, "the Manager has estimated it")
    basis = "an estimate from how long 20 such jobs ran"
    said = rf"It starts probably between \d\d:\d\d UTC and \d\d:\d\d UTC ; {basis}\."
    clock = r'<time datetime="([^"]*)" data-clock>\d\d:\d\d UTC</time>'
    for path in ("wait/alice/", "queue", ""):
        page = await portal.read("alice", path)
        assert re.search(said, page.text), path
        found = re.search(f"probably between {clock} and {clock}", page.body)
        assert found is not None, path
        for at, hours in zip(found.groups(), (1, 5), strict=True):
            assert abs(datetime.fromisoformat(at) - datetime.now(UTC) - hours * HOUR) < timedelta(minutes=2), path
    assert re.search(f"between {clock} and {clock}", (await portal.read("bob", "queue")).body), "no secret"
    told = (await portal.ask("alice", f"jobs/{waits.job}"))[1]["estimate"]
    assert datetime.fromisoformat(told["to"]) - datetime.fromisoformat(told["from"]) == 4 * HOUR
    page = await preview(portal, gpus=1)
    assert re.search(rf"Will be queued, starts probably between {clock} and {clock}\.</strong>", page.body)
    assert f"The start time is {basis}." in page.text


async def test_where_too_little_is_known_the_pages_say_so(portal: Portal) -> None:
    await has_ended(portal, 2, LEAST_RUNS - 1)
    await portal.runs(wants("holder", gpus=8))
    waits = await portal.waits(wants("alice"))
    await estimate(portal)
    assert "There is no estimate of its start yet" in (await portal.read("alice", "wait/alice/")).text
    assert "not known" in (await portal.read("bob", "queue")).text
    assert (await portal.ask("alice", f"jobs/{waits.job}"))[1]["estimate"] is None


async def test_a_round_that_takes_too_long_says_nothing_and_looks_at_fewer_next_time(portal: Portal) -> None:
    await has_ended(portal, 2)
    await portal.runs(wants("holder", gpus=8))
    await portal.waits(wants("alice"))
    made = await estimate(portal, budget_seconds=0.0)
    assert (made.explainer.estimates, made.most) == ({}, 200)
