"""Jobs beyond the soft cap wait for an approval; each decision counts once, also across restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlspawner.clients.hub import HubUnavailable
from dlspawner.core.job import JobState
from dlspawner.manager.model.event_reason import EventReason
from tests.component.manager.api_client import TEAMS, asked, decides, set_caps, standings, wait_for_approval, written
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants


@pytest.fixture(autouse=True)
def caps(harness: ManagerHarness) -> None:
    set_caps(harness)


def kinds(leader: Leader) -> list[str]:
    """The kinds of alice's notices."""
    return [one.kind.value for one in leader.notices()]


async def hold(leader: Leader, *users: str) -> None:
    """Each of these users holds two GPUs."""
    for user in users:
        assert (await leader.ask(wants(user, gpus=2))).decision == "admit"


async def test_job_beyond_the_soft_cap_waits_for_an_approval_and_holds_nothing(leader: Leader, db_url: str) -> None:
    answer = await leader.ask(job := wants(gpus=3))
    assert (answer.decision, answer.reason) == ("wait", "approval")
    text = " ".join(answer.sentences)
    assert "Team Everybody gives one person at most 2 GPUs without approval; you asked for 3" in text
    assert "vera or victor can approve it for team Everybody." in text
    assert "What would start at once: 2 GPUs of type gpu" in text
    assert "in the queue" not in text
    (request,) = await written(leader, job)
    assert (request.user, request.team, request.gpus) == ("alice", "default", 3000)
    assert request.what == "3 GPUs of type gpu"
    assert request.why == "Team Everybody gives one person at most 2 GPUs without approval."
    status = leader.service.explainer.explain(leader.record(job))
    assert (status.state, [one.gpus for one in status.advice]) == ("pending-approval", [2000])
    await hold(leader, "bob", "carol", "dave", "erin")


async def test_approved_job_starts_and_its_user_is_told(leader: Leader, db_url: str) -> None:
    request = await wait_for_approval(leader, job := wants(gpus=3))
    submitted = leader.record(job).job.submitted
    leader.hub_starts(job)
    assert await decides(leader, request, why="The deadline is near.")
    await until(lambda: leader.started(job), "the Hub was asked")
    assert (leader.record(job).job.submitted, leader.record(job).job.approved) == (submitted, True)
    assert await leader.reasons(job) == ["approval", "approved", "scheduled", "admitted"]
    (kept,) = await written(leader, job)
    assert (kept.standing.value, kept.by, kept.reason) == ("approved", "vera", "The deadline is near.")
    assert kept.at is not None
    await leader.run_pod(job)
    (notice,) = leader.notices()
    assert notice.kind.value == "approved"
    assert notice.text == "Approved: 3 GPUs of type gpu. It was approved by vera: The deadline is near."


async def test_denied_job_ends_and_its_user_reads_why_until_the_next_request(
    harness: ManagerHarness, db_url: str
) -> None:
    async with harness.manager() as leader:
        request = await wait_for_approval(leader, job := wants(gpus=3))
        await decides(leader, request, yes=False, why="Not  this\nweek")
        assert leader.state(job) is JobState.ENDED
        assert await leader.repository.last_event("alice", "") == ("denied", "by vera: Not this week")
        assert await standings(leader, job) == ["denied"]
        (notice,) = leader.notices()
        assert notice.kind.value == "denied"
        by = "It was denied by vera: Not this week."
        assert notice.text == f"Denied: 3 GPUs of type gpu. The request has ended. {by}"
    async with harness.manager() as leader:
        assert kinds(leader) == ["denied"], "also after a restart"
        await leader.ask(wants(gpus=1, server="other"))
        assert kinds(leader) == ["denied"], "that was another server"
        await leader.ask(wants(gpus=1))
        assert kinds(leader) == []


async def test_request_and_decision_survive_a_restart_at_every_step(harness: ManagerHarness, db_url: str) -> None:
    job = wants(gpus=3)
    async with harness.manager() as leader:
        request, before = await wait_for_approval(leader, job), leader.record(job)
    harness.hub_refuses(HubUnavailable("not yet"), job)
    async with harness.manager() as leader:
        assert leader.record(job) == before
        assert asked(leader, job) == request
        await decides(leader, request)
    async with harness.manager() as leader:
        assert leader.record(job).job.approved
        leader.hub_starts(job)
        await until(lambda: leader.started(job), "the Hub was asked")
    async with harness.manager() as leader:
        await leader.run_pod(job)
        assert await standings(leader, job) == ["approved"]


async def test_cancelled_job_has_no_request_to_decide(leader: Leader, db_url: str) -> None:
    request = await wait_for_approval(leader, job := wants(gpus=3))
    assert await leader.cancel()
    assert not await decides(leader, request)
    assert asked(leader, job) is None
    assert [(one.standing.value, one.reason) for one in await written(leader, job)] == [("withdrawn", "cancelled")]


@pytest.mark.parametrize(("gpus", "kept"), [(4, True), (3, False)], ids=["the same", "less"])
async def test_repeated_request_for_the_same_keeps_the_approval_request(leader: Leader, gpus: int, kept: bool) -> None:
    first = await wait_for_approval(leader, job := wants(gpus=4))
    submitted = leader.record(job).job.submitted
    second = await wait_for_approval(leader, replace(job, pods=wants(gpus=gpus).pods))
    assert leader.record(job).job.submitted == submitted
    assert (second == first) == kept
    assert await standings(leader, job) == (["waiting"] if kept else ["waiting", "withdrawn"])
    assert await decides(leader, first) == kept


@pytest.mark.parametrize(
    ("gpus", "kept"),
    [(4, True), (3, True), (5, False)],
    ids=["the same keeps the approval", "less keeps the approval", "more needs another one"],
)
async def test_after_an_approval_asking_again_for(gpus: int, kept: bool, leader: Leader) -> None:
    await hold(leader, "h1", "h2", "h3")
    await decides(leader, await wait_for_approval(leader, job := wants(gpus=4)))
    answer = await leader.ask(wants(gpus=gpus, job=job.job))
    assert (answer.decision, answer.reason == "approval") == ("wait", not kept)
    assert (asked(leader, job) is None) == kept


async def test_job_below_a_raised_cap_starts_without_an_approval(harness: ManagerHarness, leader: Leader) -> None:
    request = await wait_for_approval(leader, job := wants(gpus=3))
    leader.hub_starts(job)
    set_caps(harness, soft=3)
    await until(lambda: leader.started(job), "it starts")
    assert not await decides(leader, request)
    assert [one.reason for one in await written(leader, job)] == ["approval-not-needed"]


@pytest.mark.parametrize(
    ("teams", "sentence"),
    [
        (TEAMS % (2, 4), "Team Everybody gives one person at most 4 GPUs; you asked for 5."),
        ("teams:\n  other: {title: Other, quota: {gpu: 8}}\n", "Team default has no quota of GPUs of type gpu;"),
    ],
    ids=["a hard cap that was lowered", "a team that was removed"],
)
async def test_job_that_cannot_start_any_more_waits_for_no_approval(
    teams: str, sentence: str, harness: ManagerHarness, leader: Leader
) -> None:
    await wait_for_approval(leader, job := wants(gpus=5))
    (harness.folder / "teams.yaml").write_text(teams)
    # The notice comes with the file, the approval goes and comes with the next scheduling cycle.
    await until(lambda: kinds(leader) == ["cannot-start"] and leader.state(job) is JobState.QUEUED, "it is told")
    status = leader.service.explainer.explain(leader.record(job))
    assert (status.state, status.sentence.startswith(sentence)) == ("queued", True), status.sentence
    set_caps(harness)
    await until(
        lambda: not leader.notices() and leader.state(job) is JobState.PENDING_APPROVAL, "it can be approved again"
    )
    assert await standings(leader, job) == ["waiting", "withdrawn"]


async def test_approved_job_that_was_preempted_needs_no_other_approval(harness: ManagerHarness, leader: Leader) -> None:
    await decides(leader, await wait_for_approval(leader, job := wants(gpus=3, requeue=True)))
    leader.hub_starts(job)
    await until(lambda: leader.started(job), "the Hub was asked")
    await leader.run_pod(job)
    assert await leader.stop(job.job, EventReason.PREEMPTED)
    harness.hub.servers, harness.hub.starts = None, None
    await harness.delete((await harness.pods())["jupyter-alice"], grace=0)
    await until(lambda: leader.state(job) is not JobState.STOPPING, "its pod is gone")
    assert leader.record(job).job.approved
    assert await standings(leader, job) == ["approved"]
