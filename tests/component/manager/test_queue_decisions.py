"""The queue: places, repeated requests and refusals."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from dlspawner.core.decisions import Admit, Preempt, Refuse
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.limits import Blocked
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import (
    cancel,
    hold_all_gpus,
    hub_starts,
    queue_and_release,
    reasons,
    record,
    service,
    started,
    state,
    until_due,
)

TEAMS = "teams: {default: {quota: {gpu: 8}}, speech: {title: Speech}}\n"


async def test_queued_job_is_started_when_gpus_are_free(office: Office, db_url: str) -> None:
    waits = wants()
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits)
        await until(lambda: started(leader, waits), "it has started")
        assert await reasons(leader, waits) == ["queued", "scheduled", "admitted"]
        assert office.hub.started == [("alice", "")]


async def test_places_and_ids_survive_a_restart(office: Office, db_url: str) -> None:
    users = [f"u{number}" for number in range(5)]
    async with office.manager() as leader:
        await hold_all_gpus(leader)
        for user in users:
            await ask(leader, wants(user))
        before = {user: [(one.job.id, one.position) for one in service(leader).pending(user)] for user in users}
    async with office.manager() as leader:
        after = {user: [(one.job.id, one.position) for one in service(leader).pending(user)] for user in users}
        assert after == before


async def test_scheduled_job_is_started_after_a_restart(office: Office, db_url: str) -> None:
    waits = wants()
    async with office.manager() as leader:
        await until_due(leader, waits)
    async with office.manager() as leader:
        hub_starts(office, leader, waits)
        await until(lambda: started(leader, waits), "the Hub was asked")
        assert await reasons(leader, waits) == ["queued", "scheduled", "admitted"]


async def test_free_gpus_are_for_the_queue_and_not_for_a_new_request(office: Office) -> None:
    waits = wants(gpus=8)
    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        _, answer = await asyncio.gather(release(), ask(leader, wants("new")))
        assert answer.decision == "wait"
        assert record(leader, waits).awaiting_start


@pytest.mark.parametrize(
    ("change", "position"),
    [
        pytest.param({}, 1, id="the same"),
        pytest.param({"pods": wants(gpus=1).pods}, 1, id="fewer GPUs"),
        pytest.param({"template": "other"}, 1, id="another template"),
        pytest.param({"requeue": False}, 1, id="no requeue"),
        pytest.param({"pods": wants(gpus=4).pods}, 2, id="more GPUs"),
    ],
)
async def test_repeated_request_keeps_its_place_unless_it_is_for_more(
    office: Office, change: dict[str, Any], position: int
) -> None:
    waits = wants(gpus=2, requeue=True)
    add_template(office, "other")
    async with office.manager() as leader:
        await hold_all_gpus(leader)
        for request in (waits, wants("behind")):
            await ask(leader, request)
        before = record(leader, waits).job
        answer = await ask(leader, replace(waits, **change))
        assert f"It is number {position} in the queue and starts by itself." in answer.sentences
        assert any("its place is a new one" in sentence for sentence in answer.sentences) == (position == 2)
        after = record(leader, waits).job
        assert (after.template, after.requeue) == (change.get("template", "tiny"), change.get("requeue", True))
        assert (after.submitted == before.submitted) == (position == 1)
        assert await reasons(leader, waits) == (["queued", "changed"] if change else ["queued"])


async def test_scheduled_job_that_asks_for_more_waits_again_and_holds_nothing(office: Office) -> None:
    waits = wants()
    async with office.manager() as leader:
        await until_due(leader, waits)
        await ask(leader, wants("bob", gpus=4))
        assert (await ask(leader, replace(waits, pods=wants(gpus=8).pods))).decision == "wait"
        assert not record(leader, waits).job.holds


async def test_scheduled_job_starts_with_the_options_of_the_last_request(office: Office) -> None:
    waits = wants(requeue=True)
    add_template(office, "other")
    async with office.manager() as leader:
        await until_due(leader, waits)
        assert (await ask(leader, replace(waits, template="other"))).decision == "admit"
        assert record(leader, waits).job.template == "other"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"team": "speech"}, id="a team without quota"),
        pytest.param({"priority": "top"}, id="a priority"),
        pytest.param({"pods": wants(gpus=9).pods}, id="more than there are"),
    ],
)
async def test_refused_change_leaves_the_queued_job_as_it_is(office: Office, change: dict[str, Any]) -> None:
    waits = wants(gpus=2)
    (office.folder / "teams.yaml").write_text(TEAMS)
    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        before = record(leader, waits)
        assert (await ask(leader, replace(wants(gpus=4), **change, job=waits.job))).decision == "refuse"
        assert record(leader, waits) == before
        assert await reasons(leader, waits) == ["queued"]
        hub_starts(office, leader, waits)
        await release()
        await until(lambda: started(leader, waits), "it starts with its first options")


async def test_request_during_the_cancellation_of_its_job_makes_no_new_job(office: Office, db_url: str) -> None:
    waits = wants()
    async with office.manager() as leader:
        await hold_all_gpus(leader)
        await ask(leader, waits)
        was_there, answer = await asyncio.gather(cancel(leader), ask(leader, waits))
        assert was_there
        assert (answer.decision, answer.reason) == ("refuse", "over")
        assert await reasons(leader, waits) == ["queued", "cancelled"]


async def test_job_whose_decision_raises_is_passed_over_and_logged_until_it_can_be_decided(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty, other, later = wants("alice"), wants("bob"), wants("carol")
    faults, evaluate = [0], admission.evaluate

    def decide(job: Job, world: ClusterState, now: datetime) -> Admit | Preempt | Refuse | Blocked:
        if job.id == faulty.job:
            faults[0] += 1
            raise ZeroDivisionError
        return evaluate(job, world, now)

    async with office.manager() as leader:
        before = leader.admission
        release = await hold_all_gpus(leader)
        for request in (faulty, other):
            await ask(leader, request)
        hub_starts(office, leader, faulty, other, later)
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "dlspawner.manager"):
            patch.setattr(admission, "evaluate", decide)
            await release()
            await until(lambda: started(leader, other), "the next one has started")
            await ask(leader, later)
            await until(lambda: started(leader, later), "a later one has started")
            await until(lambda: faults[0] >= 3, "it is decided again")
            assert state(leader, faulty) is JobState.QUEUED
        errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
        assert errors
        assert all(faulty.job in one.getMessage() and one.exc_info for one in errors)
        await until(lambda: started(leader, faulty), "it starts once it can be decided")
        assert leader.admission is before, "in the same term"


def add_template(office: Office, name: str) -> None:
    folder = office.folder / "jobs"
    (folder / f"{name}.yaml").write_text((folder / "tiny.yaml").read_text())
