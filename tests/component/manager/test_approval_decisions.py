"""Jobs beyond the soft cap wait for an approval; each decision counts once, also across restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlspawner.clients.hub import HubUnavailable
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.approval_request import ApprovalRequest
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.api_client import TEAMS, asked, decides, set_caps, standings, written
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import (
    cancel,
    hub_refuses,
    hub_starts,
    notices,
    reasons,
    record,
    service,
    started,
    state,
    stop,
    until_state,
)


def kinds(leader: LeaderElector) -> list[str]:
    """The kinds of alice's notices."""
    return [one.kind.value for one in notices(leader)]


async def wait_for_approval(leader: LeaderElector, job: AdmissionRequest) -> ApprovalRequest:
    assert (await ask(leader, job)).reason == "approval"
    assert state(leader, job) is JobState.PENDING_APPROVAL
    request = asked(leader, job)
    assert request is not None
    return request


async def hold(leader: LeaderElector, *users: str) -> None:
    """Each of these users holds two GPUs."""
    for user in users:
        assert (await ask(leader, wants(user, gpus=2))).decision == "admit"


async def test_job_beyond_the_soft_cap_waits_for_an_approval_and_holds_nothing(office: Office, db_url: str) -> None:
    set_caps(office)
    async with office.manager() as leader:
        answer = await ask(leader, job := wants(gpus=3))
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
        status = service(leader).explainer.explain(record(leader, job))
        assert (status.state, [one.gpus for one in status.advice]) == ("pending-approval", [2000])
        await hold(leader, "bob", "carol", "dave", "erin")


async def test_approved_job_starts_and_its_user_is_told(office: Office, db_url: str) -> None:
    set_caps(office)
    async with office.manager() as leader:
        request = await wait_for_approval(leader, job := wants(gpus=3))
        submitted = record(leader, job).job.submitted
        hub_starts(office, leader, job)
        assert await decides(leader, request, why="The deadline is near.")
        await until(lambda: started(leader, job), "the Hub was asked")
        assert (record(leader, job).job.submitted, record(leader, job).job.approved) == (submitted, True)
        assert await reasons(leader, job) == ["approval", "approved", "scheduled", "admitted"]
        (kept,) = await written(leader, job)
        assert (kept.standing.value, kept.by, kept.reason) == ("approved", "vera", "The deadline is near.")
        assert kept.at is not None
        await office.bind(await office.make_pod(job))
        await until_state(leader, job, JobState.RUNNING)
        (notice,) = notices(leader)
        assert notice.kind.value == "approved"
        assert notice.text == "Approved: 3 GPUs of type gpu. It was approved by vera: The deadline is near."


async def test_approved_job_has_its_old_place_in_the_queue(office: Office) -> None:
    set_caps(office)
    async with office.manager() as leader:
        await hold(leader, "h1", "h2", "h3", "h4")
        request = await wait_for_approval(leader, first := wants(gpus=3))
        await ask(leader, second := wants("bob", gpus=2))
        await decides(leader, request)
        assert state(leader, first) is JobState.QUEUED
        assert [service(leader).pending(one.user)[0].position for one in (first, second)] == [1, 2]


async def test_denied_job_ends_and_its_user_reads_why_until_the_next_request(office: Office, db_url: str) -> None:
    set_caps(office)
    async with office.manager() as leader:
        request = await wait_for_approval(leader, job := wants(gpus=3))
        await decides(leader, request, yes=False, why="Not  this\nweek")
        assert state(leader, job) is JobState.ENDED
        assert await service(leader).last_event("alice", "") == ("denied", "by vera: Not this week")
        assert await standings(leader, job) == ["denied"]
        (notice,) = notices(leader)
        assert notice.kind.value == "denied"
        by = "It was denied by vera: Not this week."
        assert notice.text == f"Denied: 3 GPUs of type gpu. The request has ended. {by}"
    async with office.manager() as leader:
        assert kinds(leader) == ["denied"], "also after a restart"
        await ask(leader, wants(gpus=1, server="other"))
        assert kinds(leader) == ["denied"], "that was another server"
        await ask(leader, wants(gpus=1))
        assert kinds(leader) == []


async def test_request_and_decision_survive_a_restart_at_every_step(office: Office, db_url: str) -> None:
    set_caps(office)
    job = wants(gpus=3)
    async with office.manager() as leader:
        request, before = await wait_for_approval(leader, job), record(leader, job)
    hub_refuses(office, HubUnavailable("not yet"), job)
    async with office.manager() as leader:
        assert record(leader, job) == before
        assert asked(leader, job) == request
        await decides(leader, request)
    async with office.manager() as leader:
        assert record(leader, job).job.approved
        hub_starts(office, leader, job)
        await until(lambda: started(leader, job), "the Hub was asked")
    async with office.manager() as leader:
        await office.bind(await office.make_pod(job))
        await until_state(leader, job, JobState.RUNNING)
        assert await standings(leader, job) == ["approved"]


async def test_cancelled_job_has_no_request_to_decide(office: Office, db_url: str) -> None:
    set_caps(office)
    async with office.manager() as leader:
        request = await wait_for_approval(leader, job := wants(gpus=3))
        assert await cancel(leader)
        assert not await decides(leader, request)
        assert asked(leader, job) is None
        assert [(one.standing.value, one.reason) for one in await written(leader, job)] == [("withdrawn", "cancelled")]


@pytest.mark.parametrize(("gpus", "kept"), [(4, True), (3, False)], ids=["the same", "less"])
async def test_repeated_request_for_the_same_keeps_the_approval_request(office: Office, gpus: int, kept: bool) -> None:
    set_caps(office)
    async with office.manager() as leader:
        first = await wait_for_approval(leader, job := wants(gpus=4))
        submitted = record(leader, job).job.submitted
        second = await wait_for_approval(leader, replace(job, pods=wants(gpus=gpus).pods))
        assert record(leader, job).job.submitted == submitted
        assert (second == first) == kept
        assert await standings(leader, job) == (["waiting"] if kept else ["waiting", "withdrawn"])
        assert await decides(leader, first) == kept


@pytest.mark.parametrize(
    ("gpus", "kept"),
    [(4, True), (3, True), (5, False)],
    ids=["the same keeps the approval", "less keeps the approval", "more needs another one"],
)
async def test_after_an_approval_asking_again_for(gpus: int, kept: bool, office: Office) -> None:
    set_caps(office)
    async with office.manager() as leader:
        await hold(leader, "h1", "h2", "h3")
        await decides(leader, await wait_for_approval(leader, job := wants(gpus=4)))
        answer = await ask(leader, wants(gpus=gpus, job=job.job))
        assert (answer.decision, answer.reason == "approval") == ("wait", not kept)
        assert (asked(leader, job) is None) == kept


async def test_job_below_a_raised_cap_starts_without_an_approval(office: Office) -> None:
    set_caps(office)
    async with office.manager() as leader:
        request = await wait_for_approval(leader, job := wants(gpus=3))
        hub_starts(office, leader, job)
        set_caps(office, soft=3)
        await until(lambda: started(leader, job), "it starts")
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
async def test_job_that_cannot_start_any_more_waits_for_no_approval(teams: str, sentence: str, office: Office) -> None:
    set_caps(office)
    async with office.manager() as leader:
        await wait_for_approval(leader, job := wants(gpus=5))
        (office.folder / "teams.yaml").write_text(teams)
        await until(lambda: kinds(leader) == ["cannot-start"], "it is told")
        status = service(leader).explainer.explain(record(leader, job))
        assert (status.state, status.sentence.startswith(sentence)) == ("queued", True), status.sentence
        set_caps(office)
        await until(lambda: not notices(leader), "it can be approved again")
        assert await standings(leader, job) == ["waiting", "withdrawn"]


async def test_job_that_waits_for_an_approval_ends_with_its_server(office: Office) -> None:
    set_caps(office)
    office.hub.servers = set()
    async with office.manager() as leader:
        await wait_for_approval(leader, job := wants(gpus=3))
        await until_state(leader, job, JobState.ENDED)
        assert await standings(leader, job) == ["withdrawn"]


async def test_approved_job_that_was_preempted_needs_no_other_approval(office: Office) -> None:
    set_caps(office)
    async with office.manager() as leader:
        await decides(leader, await wait_for_approval(leader, job := wants(gpus=3, requeue=True)))
        hub_starts(office, leader, job)
        await until(lambda: started(leader, job), "the Hub was asked")
        await office.bind(await office.make_pod(job))
        await until_state(leader, job, JobState.RUNNING)
        assert await stop(leader, job.job, EventReason.PREEMPTED)
        office.hub.servers, office.hub.starts = None, None
        await office.delete((await office.pods())["jupyter-alice"], grace=0)
        await until(lambda: state(leader, job) is not JobState.STOPPING, "its pod is gone")
        assert record(leader, job).job.approved
        assert await standings(leader, job) == ["approved"]


async def test_reserved_nodes_are_released_when_a_lowered_cap_makes_an_approval_necessary(office: Office) -> None:
    set_caps(office, soft=4)
    async with office.manager() as leader:
        await hold(leader, "h1", "h2", "h3", "h4")
        await ask(leader, job := wants(gpus=3))

        def reserve(transaction: Transaction) -> None:
            known = record(leader, job)
            transaction.write(replace(known, job=replace(known.job, nodes=("gpu-1",))), EventReason.NODES_RESERVED)

        set_caps(office, soft=2)
        await service(leader).store.transact(reserve)
        await until_state(leader, job, JobState.PENDING_APPROVAL)
        assert record(leader, job).job.nodes == ()
        assert (await written(leader, job))[0].why.endswith("without approval.")
