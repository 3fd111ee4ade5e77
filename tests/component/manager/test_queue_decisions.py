"""The queue: places, repeated requests and refusals, at most one job of a server, and teams that change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from dlspawner.core.decisions import Admit, Preempt, Refuse
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.limits import Blocked
from dlspawner.manager.model.event_reason import EventReason
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants


async def test_places_and_ids_survive_a_restart(harness: ManagerHarness, db_url: str) -> None:
    users = [f"u{number}" for number in range(5)]
    async with harness.manager() as leader:
        await leader.hold_all_gpus()
        for user in users:
            await leader.ask(wants(user))
        before = {user: [(one.job.id, one.position) for one in leader.service.pending(user)] for user in users}
    async with harness.manager() as leader:
        after = {user: [(one.job.id, one.position) for one in leader.service.pending(user)] for user in users}
        assert after == before


async def test_scheduled_job_is_started_after_a_restart(harness: ManagerHarness, db_url: str) -> None:
    waits = wants()
    async with harness.manager() as leader:
        await leader.until_due(waits)
    async with harness.manager() as leader:
        leader.hub_starts(waits)
        await until(lambda: leader.started(waits), "the Hub was asked")
        assert await leader.reasons(waits) == ["queued", "scheduled", "admitted"]


async def test_free_gpus_are_for_the_queue_and_not_for_a_new_request(leader: Leader) -> None:
    waits = wants(gpus=8)
    release = await leader.hold_all_gpus()
    await leader.ask(waits)
    _, answer = await asyncio.gather(release(), leader.ask(wants("new")))
    assert answer.decision == "wait"
    assert leader.record(waits).awaiting_start


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
async def test_repeated_request_for_no_more_keeps_its_place(
    harness: ManagerHarness, change: dict[str, Any], position: int
) -> None:
    waits = wants(gpus=2, requeue=True)
    add_template(harness, "other")
    async with harness.manager() as leader:
        await leader.hold_all_gpus()
        for request in (waits, wants("behind")):
            await leader.ask(request)
        before = leader.record(waits).job
        answer = await leader.ask(replace(waits, **change))
        assert f"Number {position} in the queue; it starts automatically." in answer.sentences
        assert any("its place is a new one" in sentence for sentence in answer.sentences) == (position == 2)
        after = leader.record(waits).job
        assert (after.template, after.requeue) == (change.get("template", "tiny"), change.get("requeue", True))
        assert (after.submitted == before.submitted) == (position == 1)
        assert await leader.reasons(waits) == (["queued", "changed"] if change else ["queued"])


async def test_scheduled_job_that_asks_for_more_waits_again_and_holds_nothing(leader: Leader) -> None:
    waits = wants()
    await leader.until_due(waits)
    await leader.ask(wants("bob", gpus=4))
    assert (await leader.ask(replace(waits, pods=wants(gpus=8).pods))).decision == "wait"
    assert not leader.record(waits).job.holds


async def test_scheduled_job_starts_with_the_options_of_the_last_request(harness: ManagerHarness) -> None:
    waits = wants(requeue=True)
    add_template(harness, "other")
    async with harness.manager() as leader:
        await leader.until_due(waits)
        assert (await leader.ask(replace(waits, template="other"))).decision == "admit"
        assert leader.record(waits).job.template == "other"


async def test_refused_change_leaves_the_queued_job_as_it_is(leader: Leader) -> None:
    waits = wants(gpus=2)
    release = await leader.hold_all_gpus()
    await leader.ask(waits)
    before = leader.record(waits)
    assert (await leader.ask(wants(gpus=9, job=waits.job))).decision == "refuse"
    assert leader.record(waits) == before
    assert await leader.reasons(waits) == ["queued"]
    leader.hub_starts(waits)
    await release()
    await until(lambda: leader.started(waits), "it starts with its first options")


async def test_request_during_the_cancellation_of_its_job_makes_no_new_job(leader: Leader, db_url: str) -> None:
    waits = wants()
    await leader.hold_all_gpus()
    await leader.ask(waits)
    was_there, answer = await asyncio.gather(leader.cancel(), leader.ask(waits))
    assert was_there
    assert (answer.decision, answer.reason) == ("refuse", "expired")
    assert await leader.reasons(waits) == ["queued", "cancelled"]


async def test_job_whose_decision_raises_is_passed_over(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty, other, evaluate = wants("alice"), wants("bob"), admission.evaluate

    def decide(job: Job, cluster_state: ClusterState, now: datetime) -> Admit | Preempt | Refuse | Blocked:
        if job.id == faulty.job:
            raise ZeroDivisionError
        return evaluate(job, cluster_state, now)

    release = await leader.hold_all_gpus()
    for request in (faulty, other):
        await leader.ask(request)
    leader.hub_starts(faulty, other)
    with monkeypatch.context() as patch:
        patch.setattr(admission, "evaluate", decide)
        await release()
        await until(lambda: leader.started(other), "the next one has started")
        assert leader.state(faulty) is JobState.QUEUED
    assert any(faulty.job in one.getMessage() and one.exc_info for one in caplog.records), "with a traceback"
    await until(lambda: leader.started(faulty), "it starts once it can be decided")


def add_template(harness: ManagerHarness, name: str) -> None:
    folder = harness.folder / "jobs"
    (folder / f"{name}.yaml").write_text((folder / "tiny.yaml").read_text())


TEAMS = """
teams:
  default: {title: Everybody, quota: {gpu: 8}}
  other: {title: Others, quota: {gpu: 0}}
"""


async def test_preempted_job_is_not_queued_again_beside_a_new_job_of_its_server(
    harness: ManagerHarness, leader: Leader
) -> None:
    old, new = wants(gpus=4, preemptible=True, requeue=True), wants(gpus=4)
    await leader.run_job(old)
    await leader.stop(old.job, EventReason.PREEMPTED)
    assert (await leader.ask(new)).decision == "admit"
    (pod,) = (await harness.pods()).values()
    await harness.delete(pod, grace=0)
    await leader.until_state(old, JobState.ENDED)
    assert (await leader.reasons(old))[-1] == "replaced"
    assert leader.started(new)


async def test_user_whose_team_has_changed_while_the_job_waits_reads_both_teams(harness: ManagerHarness) -> None:
    (harness.folder / "teams.yaml").write_text(TEAMS)
    waits = wants()
    moved = replace(waits, team="other", preemptible=True)
    async with harness.manager() as leader:

        async def starts(_user: str, _server: str) -> None:
            await leader.ask(moved)

        await leader.queue_and_release(waits, starts=starts)
        await until(lambda: leader.record(waits).job.team == "other", "it is a job of the other team")
        await until(leader.notices, "the change is committed")
        assert [one.text for one in leader.notices()] == [
            "Your job does not count for team “Everybody” any more: it is now one of team “Others”, at the place it "
            "gets there."
        ]
