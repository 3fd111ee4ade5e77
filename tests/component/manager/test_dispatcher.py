"""Starts through the Hub: failures, refusals, and starts that the Hub has lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from dlspawner.clients.hub import HubFailed, HubRejected, HubUnavailable
from dlspawner.core.job import JobState
from dlspawner.core.resources import ResourceRequest
from dlspawner.manager.admission import dispatcher
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import end_sentence
from dlspawner.manager.model.records import MAX_START_ATTEMPTS
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import Office, ask, settled, until, wants
from tests.component.manager.queue_helpers import (
    hold_all_gpus,
    hub_starts,
    is_due,
    notices,
    queue_and_release,
    reasons,
    record,
    run_job,
    service,
    started,
    state,
    until_reason,
    until_state,
)

WANTS_LOGIN = HubRejected(403, "auth has expired for alice, login again")
FAILED = HubFailed("The Hub failed (status 500).")
UNCONFIRMED = timedelta(seconds=dispatcher._ADMITTED_SECONDS)
AFTER_ALL_REQUESTS = UNCONFIRMED + timedelta(seconds=6)  # an admission request is on its way for 3 seconds at most


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "_LOST_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(dispatcher, "_OWNER_LOOK_SECONDS", 0.1)


async def never(user: str, server: str) -> None:
    raise AssertionError("no start is expected")


async def test_hub_that_is_away_for_long_costs_no_place(office: Office) -> None:
    waits = wants()
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits, error=HubUnavailable("gone"))
        submitted = record(leader, waits).job.submitted
        for number in range(1, MAX_START_ATTEMPTS + 2):
            await until(lambda: is_due(leader, waits), "it is scheduled")
            office.clock.moved += timedelta(seconds=61)
            await until_reason(leader, waits, "start-timeout", number)
        hub_starts(office, leader, waits)
        await until(lambda: started(leader, waits), "the Hub is back")
        assert record(leader, waits).job.submitted == submitted
        await service(leader).release_reservation(waits.job, "alice", passes=True)
        assert state(leader, waits) is JobState.QUEUED, "this is the first start that has failed"


async def test_turn_ends_at_its_deadline_while_the_hub_hangs(office: Office) -> None:
    waits = wants()

    async def hangs(user: str, server: str) -> None:
        await asyncio.Event().wait()

    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        office.hub.servers, office.hub.starts = {("alice", "")}, hangs
        await release()
        await until(lambda: office.hub.started, "the Hub was asked")
        office.clock.moved += timedelta(seconds=121)
        await until_reason(leader, waits, "start-timeout")


async def test_third_failure_of_the_hub_ends_the_job_whichever_manager_leads(office: Office, db_url: str) -> None:
    waits = wants(gpus=8)
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits, error=FAILED)
        await until_reason(leader, waits, "start-failing")
        other = wants("bob", gpus=8)
        assert (await ask(leader, other)).decision == "admit", "it holds nothing between two tries"
        await service(leader).release_reservation(other.job, "bob")
    async with office.manager() as leader:
        await until_reason(leader, waits, "start-failing", 2)
    async with office.manager() as leader:
        await until_state(leader, waits, JobState.ENDED)
        assert (await reasons(leader, waits))[-2:] == ["scheduled", "start-failed"]
        assert len(office.hub.started) == 3
        last = (await leader.ledger.last_ends("alice"))[""]
        assert "administrator finds why in the Hub's log" in end_sentence(last.reason, last.detail, last.stop)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(FAILED, "start-failing"), (None, "start-timeout")],
    ids=["fails", "accepts it and gives up"],
)
async def test_start_at_which_the_hub_fails_is_repeated_after_a_pause(
    office: Office, error: Exception | None, reason: str
) -> None:
    waits = wants()

    async def accepts_or_fails(_user: str, _server: str) -> None:
        if error is not None:
            raise error

    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        office.hub.servers, office.hub.starts = {("alice", "")}, accepts_or_fails
        await release()
        await until_reason(leader, waits, reason)
        assert office.hub.started == [("alice", "")]
        assert state(leader, waits) is JobState.QUEUED
        hub_starts(office, leader, waits)
        office.clock.moved += timedelta(minutes=5)
        await until(lambda: started(leader, waits), "it starts later")


async def test_hub_has_no_more_starts_than_its_limit_until_their_pods_are_there(office: Office) -> None:
    office.max_concurrent_starts = 2
    requests = [wants(f"u{number}") for number in range(6)]
    async with office.manager() as leader:
        await queue_and_release(office, leader, *requests)

        def in_flight() -> list[str]:
            return [one.user for one in requests if state(leader, one) is JobState.STARTING and not is_due(leader, one)]

        for number in (2, 4):
            await until(lambda number=number: len(in_flight()) == number, "two more are started")  # type: ignore[misc]
            assert in_flight() == [f"u{one}" for one in range(number)], "in the order of the queue"
            assert (await ask(leader, wants("new"))).reason == "turn"
            await service(leader).store.transact(service(leader)._queue.schedule)
            assert not any(is_due(leader, one) for one in requests)
            for one in requests[number - 2 : number]:
                await office.make_pod(one)
        await until(lambda: len(in_flight()) == 6, "all are started")


@pytest.mark.parametrize(
    "error", [WANTS_LOGIN, HubRejected(400, "alice's authentication has expired")], ids=["403", "400"]
)
async def test_job_whose_hub_wants_a_login_holds_nothing_and_starts_after_it(
    office: Office, error: HubRejected
) -> None:
    waits, other = wants(), wants("bob", gpus=8)
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits, error=error)
        await until_state(leader, waits, JobState.LOGIN_REQUIRED)
        submitted = record(leader, waits).job.submitted
        assert (await ask(leader, other)).decision == "admit", "it holds nothing"
        await service(leader).release_reservation(other.job, "bob")
        assert (await ask(leader, waits)).decision == "admit"
        assert record(leader, waits).job.submitted == submitted


async def test_hub_that_is_full_is_asked_again(office: Office) -> None:
    waits = wants()
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits, error=HubRejected(429, "Too many users trying to log in."))
        await until(lambda: len(office.hub.started) > 1, "it was asked twice")
        hub_starts(office, leader, waits)
        await until(lambda: started(leader, waits), "it has started")
        assert "start-timeout" not in await reasons(leader, waits)


async def test_refused_job_keeps_its_place_blocks_no_other_and_its_user_reads_why(office: Office) -> None:
    waits = wants()
    never_starts = "It cannot start as things are: The image is not allowed. It keeps its place;"
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits, error=HubRejected(400, "The image is not allowed."))
        await until(lambda: office.hub.started and state(leader, waits) is JobState.QUEUED, "it is refused once")
        assert notices(leader) == [], "Hub and Manager may have read different files"
        office.clock.moved += timedelta(seconds=6)
        await until(lambda: [one.text for one in notices(leader) if one.text.startswith(never_starts)], "it is told")
        explainer = service(leader).explainer
        assert explainer.why(record(leader, waits).job, office.clock()) == "The image is not allowed."
        assert await reasons(leader, waits) == ["queued", "scheduled", "start-refused", "scheduled", "start-refused"]
        assert (await ask(leader, wants("bob"))).decision == "admit", "it blocks no other job"

        office.clock.moved += timedelta(minutes=5)
        await until(lambda: len(office.hub.started) == 3, "the Hub is asked again after a while")
        await until_state(leader, waits, JobState.QUEUED)
        assert len(notices(leader)) == 1, "it is told once"
        hub_starts(office, leader, waits)
        office.set_quota(7)
        office.clock.moved += timedelta(seconds=6)
        await until(lambda: started(leader, waits), "the files have changed, and it starts")
        assert notices(leader) == []


async def test_start_that_its_user_has_begun_meanwhile_is_not_refused(office: Office) -> None:
    waits = wants()
    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        office.hub.servers = {("alice", "")}

        async def starts(user: str, server: str) -> None:
            office.hub.pending.add((user, server))
            raise HubRejected(400, "alice is pending spawn")

        office.hub.starts = starts
        await release()
        await until(lambda: office.hub.pending, "the Hub says that it is starting")
        assert (await ask(leader, waits)).decision == "admit"
        assert await reasons(leader, waits) == ["queued", "scheduled", "admitted"]


async def test_server_that_was_removed_is_not_started(office: Office) -> None:
    waits = wants()
    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        office.hub.servers = set()
        await release()
        await until_state(leader, waits, JobState.ENDED)
        assert (await reasons(leader, waits))[-1] == "no-server"
        assert office.hub.started == []


@pytest.mark.parametrize("waiting", [JobState.QUEUED, JobState.LOGIN_REQUIRED])
async def test_pending_job_ends_when_its_server_is_removed(office: Office, waiting: JobState) -> None:
    gone, stays = wants("alice"), wants("bob")
    async with office.manager() as leader:
        if waiting is JobState.LOGIN_REQUIRED:
            await queue_and_release(office, leader, gone, stays, error=WANTS_LOGIN)
        else:
            await hold_all_gpus(leader)
            for request in (gone, stays):
                await ask(leader, request)
        for request in (gone, stays):
            await until_state(leader, request, waiting)
        office.hub.servers = {("bob", "")}
        await until_state(leader, gone, JobState.ENDED)
        assert (await reasons(leader, gone))[-1] == "no-server"
        assert state(leader, stays) is waiting


async def test_hub_that_still_shows_the_last_pod_as_running_costs_no_turn(office: Office) -> None:
    waits = wants()
    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        office.hub.servers = {("alice", "")}  # and this server runs
        looks = office.hub.looks
        await release()
        await until(lambda: office.hub.looks > looks + 1, "the Hub was asked twice")
        assert is_due(leader, waits)
        hub_starts(office, leader, waits)
        await until(lambda: started(leader, waits), "it has started")


async def test_job_whose_server_runs_another_job_ends_at_its_turn(office: Office) -> None:
    runs, waits = wants(gpus=4), wants("bob")
    async with office.manager() as leader:
        await run_job(office, leader, runs)
        await ask(leader, wants("holder", gpus=4))
        await ask(leader, waits)
        office.hub.servers = {("alice", ""), ("bob", "")}

        def move(transaction: Transaction) -> None:
            job = replace(record(leader, waits).job, user="alice", request=ResourceRequest())
            transaction.write(replace(record(leader, waits), job=job), EventReason.CHANGED)

        await service(leader).store.transact(move)
        await until_state(leader, waits, JobState.ENDED)
        assert (await reasons(leader, waits))[-1] == "runs-already"


async def test_start_that_kubernetes_could_not_make_just_now_is_queued_again(office: Office) -> None:
    passes, fails = wants(), wants("bob")
    async with office.manager() as leader:
        await queue_and_release(office, leader, passes, fails)
        await until(lambda: started(leader, passes, fails), "both may start")
        await service(leader).release_reservation(passes.job, "alice", passes=True)
        await service(leader).release_reservation(fails.job, "bob")
        assert state(leader, passes) is JobState.QUEUED
        assert state(leader, fails) is JobState.ENDED


# Starts that were admitted, and that the Hub, which was killed, has forgotten


async def test_lost_start_of_a_queued_job_has_its_place_again_long_before_the_reservation_ends(
    office: Office, db_url: str
) -> None:
    waits = wants()
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits)
        submitted = record(leader, waits).job.submitted
        await until(lambda: started(leader, waits), "it may have a pod")
        office.clock.moved += UNCONFIRMED
        await until_reason(leader, waits, "start-abandoned")
        office.clock.moved += AFTER_ALL_REQUESTS
        await until_reason(leader, waits, "scheduled", 2)
        expected = ["queued", "scheduled", "admitted", "start-abandoned", "pod-never-created"]
        assert (await reasons(leader, waits))[:5] == expected
        assert record(leader, waits).job.submitted == submitted


async def test_lost_start_that_never_waited_gives_its_gpus_back(office: Office) -> None:
    request = wants(gpus=8)
    async with office.manager() as leader:
        await ask(leader, request)
        office.hub.servers, office.hub.starts = {("alice", "")}, never
        office.clock.moved += UNCONFIRMED
        await until_reason(leader, request, "start-abandoned")
        assert state(leader, request) is JobState.STARTING, "a request for its pod may be on its way"
        office.clock.moved += AFTER_ALL_REQUESTS
        await until_state(leader, request, JobState.ENDED)
        assert (await ask(leader, wants("bob", gpus=8))).decision == "admit"


@pytest.mark.parametrize("answers", [True, False], ids=["it is being started", "the Hub does not answer"])
async def test_start_that_may_be_under_way_keeps_its_reservation(
    office: Office, answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    request = wants()
    async with office.manager() as leader:
        await ask(leader, request)
        if answers:
            office.hub.servers = office.hub.pending = {("alice", "")}
            office.hub.starts = never
        deadline, lists = record(leader, request).deadline, office.hub.lists
        office.clock.moved += UNCONFIRMED
        await until(lambda: office.hub.lists > lists + 1, "the Hub was asked twice")
        await settled(leader)
        assert record(leader, request).deadline == deadline
        assert answers or "check of admitted starts has to wait" in caplog.text
