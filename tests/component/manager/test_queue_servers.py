"""One server, one job that waits: whatever is cancelled, asked again, expires or comes back from a stop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dlspawner.clients.hub import HubRejected
from dlspawner.core.job import JobState
from dlspawner.core.resources import ResourceRequest
from dlspawner.manager.admission import dispatcher
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import MAX_START_ATTEMPTS, StopReason
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import (
    cancelled,
    desk,
    full,
    is_due,
    plays,
    reasons,
    record,
    says,
    state,
    told,
)


async def stop_for_others(acting: LeaderElector, question: AdmissionRequest, turns: int = 0) -> None:
    """It has to leave, and would wait again."""
    book = desk(acting).store

    def stops(turn: Transaction) -> None:
        found = book.records[question.job]
        leaving = replace(found.job, state=JobState.STOPPING)
        turn.write(
            replace(
                found, job=leaving, start_attempts=turns, stop=StopReason(EventReason.PREEMPTED, "Others need it.")
            ),
            EventReason.PREEMPTED,
        )

    await book.transact(stops)


def add_template(office: Office, name: str) -> None:
    """Another one that is as the usual one."""
    folder = office.folder / "jobs"
    (folder / f"{name}.yaml").write_text((folder / "tiny.yaml").read_text())


async def test_what_expires_does_not_wait_again_where_its_person_has_asked_for_another_job(office: Office) -> None:
    first, second = wants(gpus=4), wants(gpus=4)
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, first)
        plays(office, acting, first)
        await give_back()
        await until(lambda: told(acting, first), "the Hub may make its pod, and dies instead")
        await ask(acting, wants("other", gpus=4))
        office.hub.servers = None
        assert (await ask(acting, second)).decision == "wait"
        office.clock.moved += timedelta(seconds=70)
        await until(lambda: state(acting, first) is JobState.ENDED, "it has expired")
        assert (await reasons(acting, first))[-1] == "replaced"
        assert [place.job.id for place in desk(acting).pending("alice")] == [second.job]


async def test_what_was_not_created_does_not_wait_again_where_its_person_has_asked_for_another_job(
    office: Office,
) -> None:
    first, second = wants(gpus=8), wants(gpus=8)
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, first)
        plays(office, acting, first)
        await give_back()
        await until(lambda: told(acting, first), "the Hub may make its pod")
        assert (await ask(acting, second)).decision == "wait"
        await desk(acting).release_reservation(first.job, "alice", passes=True)
        assert state(acting, first) is JobState.ENDED
        assert [place.job.id for place in desk(acting).pending("alice")] == [second.job]


async def test_who_was_stopped_for_others_does_not_wait_again_where_another_job_runs(office: Office) -> None:
    old, new = wants(gpus=4, preemptible=True, requeue=True), wants(gpus=4)
    async with office.manager() as acting:
        await ask(acting, old)
        pod = await office.make_pod(old)
        await office.bind(pod)
        await until(lambda: state(acting, old) is JobState.RUNNING, "it runs")
        await stop_for_others(acting, old)
        assert (await ask(acting, new)).decision == "admit"
        await office.delete(pod, grace=0)
        await until(lambda: state(acting, old) is JobState.ENDED, "it is gone for good")
        assert (await reasons(acting, old))[-1] == "replaced"
        assert told(acting, new)


async def test_of_two_jobs_that_a_database_has_waiting_for_one_server_the_newest_goes_on(
    office: Office, db_url: str
) -> None:
    first, second = wants(), wants("bob")
    async with office.manager() as acting:
        await full(acting)
        for question in (first, second):
            await ask(acting, question)
        book = desk(acting).store

        def moves(turn: Transaction) -> None:
            found = book.records[first.job]
            turn.write(replace(found, job=replace(found.job, user="bob")), EventReason.CHANGED)

        await book.transact(moves)
    async with office.manager() as other:
        assert state(other, first) is JobState.ENDED
        assert [place.job.id for place in desk(other).pending("bob")] == [second.job]


async def test_a_turn_ends_after_its_deadline_although_the_hub_hangs(office: Office) -> None:
    waits = wants()

    async def hangs(user: str, server: str) -> None:
        await asyncio.Event().wait()

    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        office.hub.servers, office.hub.starts = {("alice", "")}, hangs
        await give_back()
        await until(lambda: office.hub.started, "the Hub was asked")
        office.clock.moved += timedelta(seconds=121)

        async def over() -> bool:
            return "start-timeout" in await reasons(acting, waits)

        await until(over, "its turn is over")


async def test_a_question_that_meets_the_end_of_its_job_begins_no_new_one(office: Office, db_url: str) -> None:
    waits = wants()
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, waits)
        was_there, answer = await asyncio.gather(cancelled(acting), ask(acting, waits))
        assert was_there
        assert (answer.decision, answer.reason) == ("refuse", "over")
        assert await reasons(acting, waits) == ["queued", "cancelled"]


@pytest.mark.parametrize("other", [{"template": "other"}, {"requeue": False}], ids=["template", "requeue"])
async def test_who_asks_again_for_the_same_amount_gets_what_was_chosen_this_time(
    office: Office, other: dict[str, Any]
) -> None:
    waits, behind = wants(requeue=True), wants("bob")
    add_template(office, "other")
    async with office.manager() as acting:
        await full(acting)
        for question in (waits, behind):
            await ask(acting, question)
        before = record(acting, waits)
        answer = await ask(acting, replace(waits, **other))
        assert "It is number 1 in the queue and starts by itself." in answer.sentences
        after = record(acting, waits)
        assert before is not None
        assert after is not None
        assert after.job == replace(before.job, **other)


async def test_a_turn_that_meets_other_options_starts_the_job_with_these(office: Office) -> None:
    waits = wants(requeue=True)
    add_template(office, "other")
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        await give_back()
        await until(lambda: is_due(acting, waits), "its turn has come")
        assert (await ask(acting, replace(waits, template="other"))).decision == "admit"
        found = record(acting, waits)
        assert found is not None
        assert found.job.template == "other"


async def test_a_hub_that_has_not_noticed_that_the_pod_is_gone_costs_no_place(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        office.hub.servers = {("alice", "")}  # and this server runs
        looks = office.hub.looks
        await give_back()
        await until(lambda: office.hub.looks > looks + 1, "the Hub was asked twice")
        assert is_due(acting, waits)
        plays(office, acting, waits)
        await until(lambda: told(acting, waits), "it goes on")


async def test_what_waits_for_a_server_where_another_job_runs_ends_at_its_turn(office: Office) -> None:
    runs, waits = wants(gpus=4), wants("bob")
    async with office.manager() as acting:
        await ask(acting, runs)
        await office.bind(await office.make_pod(runs))
        await until(lambda: state(acting, runs) is JobState.RUNNING, "it runs")
        await ask(acting, wants("holder", gpus=4))
        await ask(acting, waits)
        office.hub.servers = {("alice", ""), ("bob", "")}
        book = desk(acting).store

        def moves(turn: Transaction) -> None:
            found = book.records[waits.job]
            turn.write(
                replace(found, job=replace(found.job, user="alice", request=ResourceRequest())), EventReason.CHANGED
            )

        await book.transact(moves)
        await until(lambda: state(acting, waits) is JobState.ENDED, "its turn has come")
        assert (await reasons(acting, waits))[-1] == "runs-already"


async def test_a_job_that_was_stopped_for_others_ten_times_still_waits_after_a_start_that_came_to_nothing(
    office: Office,
) -> None:
    question = wants(preemptible=True, requeue=True)
    async with office.manager() as acting:
        await ask(acting, question)
        pod = await office.make_pod(question)
        await office.bind(pod)
        await until(lambda: state(acting, question) is JobState.RUNNING, "it runs")
        await stop_for_others(acting, question, turns=MAX_START_ATTEMPTS)
        plays(office, acting, question)
        await office.delete(pod, grace=0)
        await until(lambda: told(acting, question), "its turn has come again")
        await desk(acting).release_reservation(question.job, "alice", passes=True)
        assert state(acting, question) is JobState.QUEUED


async def test_what_waits_for_a_login_ends_when_its_server_is_removed(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_OWNER_LOOK_SECONDS", 0.1)
    waits, stays = wants(), wants("bob")
    async with office.manager() as acting:
        give_back = await full(acting)
        for question in (waits, stays):
            await ask(acting, question)
        says(office, HubRejected(403, "auth has expired for alice, login again"), waits, stays)
        await give_back()
        both = (waits, stays)
        await until(lambda: all(state(acting, one) is JobState.LOGIN_REQUIRED for one in both), "both wait for a login")
        office.hub.servers = {("bob", "")}
        await until(lambda: state(acting, waits) is JobState.ENDED, "nobody can log in any more")
        assert (await reasons(acting, waits))[-1] == "no-server"
        assert state(acting, stays) is JobState.LOGIN_REQUIRED


async def test_nobody_leaves_for_a_person_who_was_removed(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "_OWNER_LOOK_SECONDS", 0.1)
    gone = [wants(f"gone{number}") for number in range(4)]
    stays = wants("bob")
    async with office.manager() as acting:
        await full(acting)
        for question in (*gone, stays):
            await ask(acting, question)
        office.hub.servers = {("bob", "")}
        await until(lambda: all(state(acting, one) is JobState.ENDED for one in gone), "what they waited for has ended")
        assert {(await reasons(acting, one))[-1] for one in gone} == {"no-server"}
        assert state(acting, stays) is JobState.QUEUED


async def test_a_job_that_is_stopped_for_others_and_would_wait_again_can_be_cancelled(office: Office) -> None:
    question = wants(preemptible=True, requeue=True)
    async with office.manager() as acting:
        await ask(acting, question)
        pod = await office.make_pod(question)
        await office.bind(pod)
        await until(lambda: state(acting, question) is JobState.RUNNING, "it runs")
        await stop_for_others(acting, question)
        assert await cancelled(acting)
        assert not await cancelled(acting), "there is nothing any more"
        await office.delete(pod, grace=0)
        await until(lambda: state(acting, question) is JobState.ENDED, "it is gone for good")
        assert (await reasons(acting, question))[-3:] == ["preempted", "cancelled", "gone"]
