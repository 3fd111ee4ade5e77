"""Starts through the Hub: failures and refusals."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from dlspawner.clients.hub import HubFailed, HubRejected, HubUnavailable
from dlspawner.core.job import JobState
from dlspawner.manager.admission import dispatcher
from dlspawner.manager.model.job_history import end_sentence
from dlspawner.manager.model.records import MAX_START_ATTEMPTS
from tests.component.manager.manager_harness import Leader, ManagerHarness, until, wants

WANTS_LOGIN = HubRejected(403, "auth has expired for alice, login again")
FAILED = HubFailed("The Hub failed (status 500).")


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "_OWNER_LOOK_SECONDS", 0.1)


async def test_hub_that_is_away_for_long_costs_no_place(harness: ManagerHarness, leader: Leader) -> None:
    waits = wants()
    await leader.queue_and_release(waits, error=HubUnavailable("gone"))
    submitted = leader.record(waits).job.submitted
    for number in range(1, MAX_START_ATTEMPTS + 2):
        await until(lambda: leader.is_due(waits), "it is scheduled")
        harness.clock.moved += timedelta(seconds=61)
        await leader.until_reason(waits, "start-timeout", number)
        harness.clock.moved += dispatcher._UNANSWERED_PAUSE
    leader.hub_starts(waits)
    await until(lambda: leader.started(waits), "the Hub is back")
    assert leader.record(waits).job.submitted == submitted
    await leader.service.release_reservation(waits.job, "alice", temporary=True)
    assert leader.state(waits) is JobState.QUEUED, "this is the first start that has failed"


async def test_turn_ends_at_its_deadline_while_the_hub_hangs(harness: ManagerHarness, leader: Leader) -> None:
    waits = wants()

    async def hangs(user: str, server: str) -> None:
        await asyncio.Event().wait()

    await leader.queue_and_release(waits, starts=hangs)
    await until(lambda: harness.hub.started, "the Hub was asked")
    harness.clock.moved += timedelta(seconds=121)
    await leader.until_reason(waits, "start-timeout")


async def test_third_failure_of_the_hub_ends_the_job_whichever_manager_leads(
    harness: ManagerHarness, db_url: str
) -> None:
    waits = wants(gpus=8)
    async with harness.manager() as leader:
        await leader.queue_and_release(waits, error=FAILED)
        await leader.until_reason(waits, "start-failing")
        other = wants("bob", gpus=8)
        assert (await leader.ask(other)).decision == "admit", "it holds nothing between two tries"
        await leader.service.release_reservation(other.job, "bob")
    async with harness.manager() as leader:
        await leader.until_reason(waits, "start-failing", 2)
    async with harness.manager() as leader:
        await leader.until_state(waits, JobState.ENDED)
        assert (await leader.reasons(waits))[-2:] == ["scheduled", "start-failed"]
        assert len(harness.hub.started) == 3
        last = (await leader.repository.last_ends("alice"))[""]
        assert "Ask an administrator: the Hub's log says why." in end_sentence(last.reason, last.detail, last.stop)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(FAILED, "start-failing"), (None, "start-timeout")],
    ids=["fails", "accepts it and gives up"],
)
async def test_failed_start_is_repeated_after_a_pause(
    harness: ManagerHarness, leader: Leader, error: Exception | None, reason: str
) -> None:
    waits = wants()

    async def accepts_or_fails(_user: str, _server: str) -> None:
        if error is not None:
            raise error

    await leader.queue_and_release(waits, starts=accepts_or_fails)
    await leader.until_reason(waits, reason)
    assert harness.hub.started == [("alice", "")]
    assert leader.state(waits) is JobState.QUEUED
    leader.hub_starts(waits)
    harness.clock.moved += timedelta(minutes=5)
    await until(lambda: leader.started(waits), "it starts later")


async def test_hub_has_no_more_starts_than_its_limit_until_their_pods_are_there(harness: ManagerHarness) -> None:
    harness.max_concurrent_starts = 2
    requests = [wants(f"u{number}") for number in range(6)]
    async with harness.manager() as leader:
        await leader.queue_and_release(*requests)

        def in_flight() -> list[str]:
            return [one.user for one in requests if leader.state(one) is JobState.STARTING and not leader.is_due(one)]

        for number in (2, 4):
            await until(lambda number=number: len(in_flight()) == number, "two more are started")  # type: ignore[misc]
            assert in_flight() == [f"u{one}" for one in range(number)], "in the order of the queue"
            assert (await leader.ask(wants("new"))).reason == "blocked-by-earlier"
            await leader.transact(leader.service._queue.schedule)
            assert not any(leader.is_due(one) for one in requests)
            for one in requests[number - 2 : number]:
                await harness.make_pod(one)
        await until(lambda: len(in_flight()) == 6, "all are started")


@pytest.mark.parametrize(
    "error", [WANTS_LOGIN, HubRejected(400, "alice's authentication has expired")], ids=["403", "400"]
)
async def test_job_that_needs_a_login_holds_nothing_and_starts_after_it(leader: Leader, error: HubRejected) -> None:
    waits, other = wants(), wants("bob", gpus=8)
    await leader.queue_and_release(waits, error=error)
    await leader.until_state(waits, JobState.LOGIN_REQUIRED)
    submitted = leader.record(waits).job.submitted
    assert (await leader.ask(other)).decision == "admit", "it holds nothing"
    await leader.service.release_reservation(other.job, "bob")
    assert (await leader.ask(waits)).decision == "admit"
    assert leader.record(waits).job.submitted == submitted


async def test_hub_that_is_full_is_asked_again(harness: ManagerHarness, leader: Leader) -> None:
    waits = wants()
    await leader.queue_and_release(waits, error=HubRejected(429, "Too many users trying to log in."))
    await until(lambda: len(harness.hub.started) > 1, "it was asked twice")
    leader.hub_starts(waits)
    await until(lambda: leader.started(waits), "it has started")
    assert "start-timeout" not in await leader.reasons(waits)


async def test_refused_job_keeps_its_place_blocks_no_other_and_its_user_reads_why(
    harness: ManagerHarness, leader: Leader
) -> None:
    waits = wants()
    never_starts = "It cannot start as requested: The image is not allowed. It keeps its place;"
    await leader.queue_and_release(waits, error=HubRejected(400, "The image is not allowed."))
    await until(lambda: harness.hub.started and leader.state(waits) is JobState.QUEUED, "it is refused once")
    assert leader.notices() == [], "Hub and Manager may have read different files"
    harness.clock.moved += timedelta(seconds=6)
    await until(lambda: [one.text for one in leader.notices() if one.text.startswith(never_starts)], "it is told")
    explainer = leader.service.explainer
    assert explainer.why(leader.record(waits).job, harness.clock()) == "The image is not allowed."
    assert await leader.reasons(waits) == ["queued", "scheduled", "start-refused", "scheduled", "start-refused"]
    assert (await leader.ask(wants("bob"))).decision == "admit", "it blocks no other job"

    harness.clock.moved += timedelta(minutes=5)
    await until(lambda: len(harness.hub.started) == 3, "the Hub is asked again after a while")
    await leader.until_state(waits, JobState.QUEUED)
    assert len(leader.notices()) == 1, "it is told once"
    leader.hub_starts(waits)
    harness.set_quota(7)
    harness.clock.moved += timedelta(seconds=6)
    await until(lambda: leader.started(waits), "the files have changed, and it starts")
    assert leader.notices() == []


async def test_start_that_its_user_has_begun_meanwhile_is_not_refused(harness: ManagerHarness, leader: Leader) -> None:
    waits = wants()

    async def starts(user: str, server: str) -> None:
        harness.hub.pending.add((user, server))
        raise HubRejected(400, "alice is pending spawn")

    await leader.queue_and_release(waits, starts=starts)
    await until(lambda: harness.hub.pending, "the Hub says that it is starting")
    assert (await leader.ask(waits)).decision == "admit"
    assert await leader.reasons(waits) == ["queued", "scheduled", "admitted"]


@pytest.mark.parametrize("waiting", [JobState.QUEUED, JobState.LOGIN_REQUIRED])
async def test_pending_job_ends_when_its_server_is_removed(
    harness: ManagerHarness, leader: Leader, waiting: JobState
) -> None:
    gone, stays = wants("alice"), wants("bob")
    if waiting is JobState.LOGIN_REQUIRED:
        await leader.queue_and_release(gone, stays, error=WANTS_LOGIN)
    else:
        await leader.hold_all_gpus()
        for request in (gone, stays):
            await leader.ask(request)
    for request in (gone, stays):
        await leader.until_state(request, waiting)
    harness.hub.servers = {("bob", "")}
    await leader.until_state(gone, JobState.ENDED)
    assert (await leader.reasons(gone))[-1] == "no-server"
    assert leader.state(stays) is waiting


async def test_hub_that_still_shows_the_last_pod_as_running_costs_no_turn(
    harness: ManagerHarness, leader: Leader
) -> None:
    waits = wants()
    release = await leader.hold_all_gpus()
    await leader.ask(waits)
    harness.hub.servers = {("alice", "")}  # and this server runs
    looks = harness.hub.looks
    await release()
    await until(lambda: harness.hub.looks > looks + 1, "the Hub was asked twice")
    assert leader.is_due(waits)
    leader.hub_starts(waits)
    await until(lambda: leader.started(waits), "it has started")


async def test_start_that_kubernetes_could_not_make_just_now_is_queued_again(leader: Leader) -> None:
    passes, fails = wants(), wants("bob")
    await leader.queue_and_release(passes, fails)
    await until(lambda: leader.started(passes, fails), "both may start")
    await leader.service.release_reservation(passes.job, "alice", temporary=True)
    await leader.service.release_reservation(fails.job, "bob")
    assert leader.state(passes) is JobState.QUEUED
    assert leader.state(fails) is JobState.ENDED
