"""The queue with a real API server, both databases, and a Hub that the test plays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dlspawner.clients.hub import HubFailed, HubRejected, HubUnavailable
from dlspawner.core.job import JobState
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.job_history import end_sentence
from dlspawner.manager.model.notice import NoticeKind, Recipient
from dlspawner.manager.model.records import MAX_START_ATTEMPTS
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


async def test_who_waits_is_started_when_its_turn_comes(office: Office, db_url: str) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        assert (await ask(acting, waits)).decision == "wait"
        plays(office, acting, waits)
        await give_back()
        await until(lambda: told(acting, waits), "it has")
        assert await reasons(acting, waits) == ["queued", "scheduled", "admitted"]
        assert office.hub.started == [("alice", "")]


async def test_turns_come_in_the_order_of_the_queue_and_small_jobs_pass(office: Office) -> None:
    big, small = wants("big", gpus=8), wants("small", gpus=2)
    async with office.manager() as acting:
        await ask(acting, wants("holder", gpus=6))
        assert (await ask(acting, big)).decision == "wait"
        assert (await ask(acting, small)).decision == "admit"
        assert [place.position for place in desk(acting).pending("big")] == [1]


async def test_place_and_id_survive_a_restart(office: Office, db_url: str) -> None:
    questions = [wants(f"u{number}") for number in range(5)]
    async with office.manager() as acting:
        await full(acting)
        for question in questions:
            await ask(acting, question)
        before = {one.job: one.job for q in questions for one in desk(acting).pending(q.user)}
        places = {q.user: desk(acting).pending(q.user)[0].position for q in questions}
    async with office.manager() as other:
        after = {one.job: one.job for q in questions for one in desk(other).pending(q.user)}
        assert after == before
        assert {q.user: desk(other).pending(q.user)[0].position for q in questions} == places


async def test_a_turn_that_was_given_before_a_restart_goes_on_after_it(office: Office, db_url: str) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        await give_back()
        await until(lambda: is_due(acting, waits), "its turn has come")
    async with office.manager() as other:
        plays(office, other, waits)
        await until(lambda: told(other, waits), "the Hub was told")
        assert await reasons(other, waits) == ["queued", "scheduled", "admitted"]


async def test_a_hub_that_does_not_answer_costs_a_turn_and_not_the_place(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        first = record(acting, waits)
        says(office, HubUnavailable("gone"), waits)
        await give_back()
        await until(lambda: office.hub.started, "the Hub was asked")
        office.clock.moved += timedelta(seconds=61)

        async def over() -> bool:
            return "start-timeout" in await reasons(acting, waits)

        await until(over, "its turn is over")
        plays(office, acting, waits)
        await until(lambda: told(acting, waits), "it has")
        found = record(acting, waits)
        assert first is not None
        assert found is not None
        assert found.job.submitted == first.job.submitted


async def test_a_hub_that_is_away_for_long_costs_no_place(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        says(office, HubUnavailable("gone"), waits)
        await give_back()
        for number in range(MAX_START_ATTEMPTS + 1):

            async def over(number: int = number) -> bool:
                return (await reasons(acting, waits)).count("start-timeout") > number

            await until(lambda: is_due(acting, waits), "its turn has come")
            office.clock.moved += timedelta(seconds=61)
            await until(over, "the turn is over")
        plays(office, acting, waits)
        await until(lambda: told(acting, waits), "the Hub is there")
        await desk(acting).release_reservation(waits.job, "alice", passes=True)
        assert state(acting, waits) is JobState.QUEUED, "this is the first start that came to nothing"


async def test_a_start_that_the_hub_fails_at_ends_after_few_tries_and_holds_nothing_between_them(
    office: Office,
) -> None:
    waits, other = wants(gpus=8), wants("bob", gpus=8)
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        says(office, HubFailed("The Hub failed (status 500)."), waits)
        await give_back()
        for number in (1, 2):

            async def failing(number: int = number) -> bool:
                return (await reasons(acting, waits)).count("start-failing") == number

            await until(failing, "the Hub has failed")
            assert (await ask(acting, other)).decision == "admit", "others pass"
            await desk(acting).release_reservation(other.job, other.user)
            other = replace(other, job=wants().job)
            office.clock.moved += timedelta(minutes=3)
        await until(lambda: state(acting, waits) is JobState.ENDED, "it has ended")
        assert (await reasons(acting, waits))[-2:] == ["scheduled", "start-failed"]
        assert len(office.hub.started) == 3
        last = (await acting.ledger.last_ends("alice"))[""]
        assert "administrator finds why in the Hub's log" in end_sentence(last.reason, last.detail, last.stop)


async def test_a_start_that_failed_once_goes_on_in_a_hub_that_is_well_again(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        first = record(acting, waits)
        says(office, HubFailed("The Hub failed (status 500)."), waits)
        await give_back()

        async def failing() -> bool:
            return "start-failing" in await reasons(acting, waits)

        await until(failing, "the Hub has failed")
        plays(office, acting, waits)
        office.clock.moved += timedelta(minutes=1)
        await until(lambda: told(acting, waits), "it has")
        found = record(acting, waits)
        assert first is not None
        assert found is not None
        assert found.job.submitted == first.job.submitted


@pytest.mark.parametrize(
    "said",
    [
        HubRejected(403, "auth has expired for alice, login again"),
        HubRejected(400, "alice's authentication has expired"),
    ],
    ids=["403", "400"],
)
async def test_where_the_hub_wants_a_fresh_login_the_job_holds_nothing_and_goes_on_after_it(
    office: Office, said: HubRejected
) -> None:
    waits, other = wants(), wants("bob")
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        first = record(acting, waits)
        says(office, said, waits)
        await give_back()
        await until(lambda: state(acting, waits) is JobState.LOGIN_REQUIRED, "it waits for a login")
        assert (await ask(acting, replace(other, pods=wants(gpus=8).pods))).decision == "admit", "it holds nothing"
        await desk(acting).release_reservation(other.job, "bob")
        assert (await ask(acting, waits)).decision == "admit"
        found = record(acting, waits)
        assert first is not None
        assert found is not None
        assert found.job.submitted == first.job.submitted


async def test_who_waits_for_a_login_in_vain_reads_that_alone_until_the_quota_is_raised_again(office: Office) -> None:
    waits = wants()

    def notices(acting: LeaderElector) -> list[NoticeKind]:
        return [one.kind for one in desk(acting).store.notices.read(Recipient(user="alice"), office.clock())]

    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        says(office, HubRejected(403, "auth has expired for alice, login again"), waits)
        await give_back()
        await until(lambda: notices(acting) == [NoticeKind.LOGIN_REQUIRED], "it waits for a login")
        office.set_quota(0)
        await until(lambda: notices(acting) == [NoticeKind.CANNOT_START], "it waits in vain")
        office.set_quota(8)
        await until(lambda: notices(acting) == [NoticeKind.LOGIN_REQUIRED], "it does not any more")


async def test_a_hub_that_is_full_is_asked_again(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        says(office, HubRejected(429, "Too many users trying to log in right now."), waits)
        await give_back()
        await until(lambda: len(office.hub.started) > 1, "it was asked twice")
        plays(office, acting, waits)
        await until(lambda: told(acting, waits), "it goes on")
        assert "start-timeout" not in await reasons(acting, waits)


async def test_who_is_refused_by_the_hub_keeps_the_place_holds_up_nobody_and_reads_why(office: Office) -> None:
    waits, other = wants(), wants("bob")
    never = "It cannot start as things are: The image is not allowed. It keeps its place;"
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        says(office, HubRejected(400, "The image is not allowed."), waits)
        await give_back()
        await until(lambda: office.hub.started and state(acting, waits) is JobState.QUEUED, "it is asked again")
        assert texts(acting, office) == []
        office.clock.moved += timedelta(seconds=6)
        await until(lambda: any(one.startswith(never) for one in texts(acting, office)), "its person reads why")
        assert desk(acting).explainer.why(desk(acting).store.records[waits.job].job, office.clock()) == (
            "The image is not allowed."
        )
        assert await reasons(acting, waits) == ["queued", "scheduled", "start-refused", "scheduled", "start-refused"]
        assert (await ask(acting, other)).decision == "admit", "nobody waits for it"

        office.clock.moved += timedelta(minutes=5)
        await until(lambda: len(office.hub.started) == 3, "the Hub is asked again after a while")
        await until(lambda: state(acting, waits) is JobState.QUEUED, "it keeps its place")
        assert len(texts(acting, office)) == 1, "it is told once"
        plays(office, acting, waits)
        office.set_quota(7)
        office.clock.moved += timedelta(seconds=6)
        await until(lambda: told(acting, waits), "the files have changed, and it starts")
        assert texts(acting, office) == []


def texts(acting: LeaderElector, office: Office) -> list[str]:
    """What alice reads."""
    return [one.text for one in desk(acting).store.notices.read(Recipient(user="alice"), office.clock())]


async def test_whose_team_is_another_one_by_now_reads_what_that_one_lacks(office: Office) -> None:
    waits = wants()
    (office.folder / "teams.yaml").write_text("teams: {default: {quota: {gpu: 8}}, speech: {title: Speech}}\n")
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        office.hub.servers = {("alice", "")}

        async def starts(_user: str, _server: str) -> None:
            """Its spawner asks for the team that its person is in now."""
            raise HubRejected(403, (await ask(acting, replace(waits, team="speech"))).sentences[0])

        office.hub.starts = starts
        await give_back()
        await until(lambda: len(office.hub.started) == 1, "its turn has come")
        await until(lambda: state(acting, waits) is JobState.QUEUED, "it is over")
        office.clock.moved += timedelta(seconds=6)
        await until(lambda: any("Team Speech has no quota" in one for one in texts(acting, office)), "it is told")
        assert state(acting, waits) is JobState.QUEUED


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"team": "speech"}, id="a team without quota"),
        pytest.param({"priority": "top"}, id="a priority"),
        pytest.param({"pods": wants(gpus=9).pods}, id="more than there are"),
    ],
)
async def test_a_request_that_is_refused_leaves_what_waits_there_as_it_is(office: Office, more: dict[str, Any]) -> None:
    waits = wants(gpus=2)
    (office.folder / "teams.yaml").write_text("teams: {default: {quota: {gpu: 8}}, speech: {title: Speech}}\n")
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        before = desk(acting).store.records[waits.job]
        answer = await ask(acting, replace(wants(gpus=4), **more, job=waits.job))
        assert answer.decision == "refuse"
        assert desk(acting).store.records[waits.job] == before
        assert await reasons(acting, waits) == ["queued"]
        plays(office, acting, waits)
        await give_back()
        await until(lambda: told(acting, waits), "it starts as it was asked for")


async def test_who_is_refused_by_files_that_the_hub_has_read_before_us_keeps_the_place(office: Office) -> None:
    waits = replace(wants(), team="vision")
    teams = office.folder / "teams.yaml"
    teams.write_text("teams: {default: {quota: {gpu: 8}}, vision: {quota: {gpu: 1}}}\n")
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        says(office, HubRejected(400, "Team must be one of default; you chose “vision”."), waits)
        await give_back()
        await until(lambda: office.hub.started, "the Hub has refused it")
        teams.write_text("teams: {default: {quota: {gpu: 8}}}\n")
        await until(
            lambda: "vision" not in {one.name for one in desk(acting).store.cluster_state.teams.teams}, "it is read"
        )
        office.clock.moved += timedelta(seconds=6)
        await asyncio.sleep(1.5)  # and longer than anything that gives turns
        assert state(acting, waits) is JobState.QUEUED
        assert office.hub.started == [("alice", "")]


async def test_whose_team_is_removed_while_the_hub_is_asked_reads_it_although_the_file_was_read_before(
    office: Office,
) -> None:
    waits = replace(wants(), team="vision")
    teams = office.folder / "teams.yaml"
    teams.write_text("teams: {default: {quota: {gpu: 8}}, vision: {quota: {gpu: 1}}}\n")
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        office.hub.servers = {("alice", "")}

        async def starts(_user: str, _server: str) -> None:
            teams.write_text("teams: {default: {quota: {gpu: 8}}}\n")
            await until(
                lambda: "vision" not in {one.name for one in desk(acting).store.cluster_state.teams.teams}, "it is read"
            )
            raise HubRejected(400, "Team must be one of default; you chose “vision”.")

        office.hub.starts = starts
        await give_back()
        never = "It cannot start as things are: There is no team “vision” any more; choose another one."
        await until(lambda: any(one.startswith(never) for one in texts(acting, office)), "it is told")
        assert state(acting, waits) is JobState.QUEUED


async def test_a_person_who_starts_it_just_then_is_not_in_the_way(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        office.hub.servers = {("alice", "")}

        async def starts(user: str, server: str) -> None:
            office.hub.pending.add((user, server))
            raise HubRejected(400, "alice is pending spawn")

        office.hub.starts = starts
        await give_back()
        await until(lambda: office.hub.pending, "the Hub has said that it is starting")
        assert (await ask(acting, waits)).decision == "admit"
        assert await reasons(acting, waits) == ["queued", "scheduled", "admitted"]


async def test_a_hub_that_tells_nothing_of_the_person_is_asked_again(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        plays(office, acting, waits)
        office.hub.refusals = [HubRejected(403, "Action is not authorized with current scopes")]
        await give_back()
        await until(lambda: told(acting, waits), "it has started after all")


async def test_a_server_that_was_removed_is_not_started(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        office.hub.servers = set()
        await give_back()
        await until(lambda: state(acting, waits) is JobState.ENDED, "it has ended")
        assert (await reasons(acting, waits))[-1] == "no-server"
        assert office.hub.started == []


async def test_who_asks_again_for_the_same_or_less_keeps_the_place(office: Office) -> None:
    first, second = wants("first", gpus=2), wants("second", gpus=2)
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, first)
        await ask(acting, second)
        for gpus in (2, 1):
            answer = await ask(acting, replace(first, pods=wants(gpus=gpus).pods))
            assert "It is number 1 in the queue and starts by itself." in answer.sentences
        assert await reasons(acting, first) == ["queued", "changed"]


async def test_who_asks_for_more_gets_a_new_place_and_is_told_so(office: Office) -> None:
    first, second = wants("first"), wants("second")
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, first)
        await ask(acting, second)
        answer = await ask(acting, replace(first, pods=wants(gpus=2).pods))
        assert "It is number 2 in the queue and starts by itself." in answer.sentences
        assert any("its place is a new one" in sentence for sentence in answer.sentences)


async def test_a_turn_for_one_gpu_is_no_turn_for_eight(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        await give_back()
        await until(lambda: is_due(acting, waits), "its turn has come")
        await ask(acting, wants("bob", gpus=4))
        answer = await ask(acting, replace(waits, pods=wants(gpus=8).pods))
        assert answer.decision == "wait"
        found = record(acting, waits)
        assert found is not None
        assert not found.job.holds


async def test_what_waits_is_replaced_by_a_new_job_of_the_same_server(office: Office) -> None:
    old, new = wants(), wants()
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, old)
        await ask(acting, new)
        assert state(acting, old) is JobState.ENDED
        assert [place.job.id for place in desk(acting).pending("alice")] == [new.job]


async def test_nobody_new_gets_what_somebody_waits_for(office: Office) -> None:
    waits = wants(gpus=8)
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        _, answer = await asyncio.gather(give_back(), ask(acting, wants("new")))
        assert answer.decision == "wait"
        found = record(acting, waits)
        assert found is not None
        assert found.awaiting_start


@pytest.mark.slow
async def test_no_more_are_due_at_one_time_than_the_hub_takes(office: Office) -> None:
    office.max_concurrent_starts = 2
    questions = [wants(f"u{number}") for number in range(6)]
    async with office.manager() as acting:
        give_back = await full(acting)
        for question in questions:
            await ask(acting, question)
        await give_back()

        def due() -> list[str]:
            return [question.user for question in questions if is_due(acting, question)]

        await until(lambda: len(due()) == 2, "two are due")
        assert due() == ["u0", "u1"]
        assert (await ask(acting, wants("new"))).reason == "turn"
        plays(office, acting, *questions)
        await until(lambda: told(acting, *questions[:2]), "these two are started")
        for question in questions[:2]:
            await office.make_pod(question)
        await until(lambda: told(acting, *questions[2:4]), "the next two are")


async def test_who_waits_can_cancel(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, waits)
        assert await cancelled(acting)
        assert await reasons(acting, waits) == ["queued", "cancelled"]
        assert not await cancelled(acting), "there is nothing any more"


async def test_whose_turn_has_come_can_cancel_and_gives_back_what_was_reserved(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        await give_back()
        await until(lambda: is_due(acting, waits), "its turn has come")
        assert await cancelled(acting)
        assert await reasons(acting, waits) == ["queued", "scheduled", "cancelled"]
        assert (await ask(acting, wants("new", gpus=8))).decision == "admit"


async def test_a_cancel_while_the_hub_is_told_to_start_the_job_is_not_undone_by_that_start(office: Office) -> None:
    waits, heard = wants(), []
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        office.hub.servers = {("alice", "")}

        async def starts(user: str, server: str) -> None:
            assert await cancelled(acting)
            assert desk(acting).pending(user, server) == [], "so that the Hub makes a new id"
            heard.append((await ask(acting, wants())).decision)

        office.hub.starts = starts
        await give_back()
        await until(lambda: heard, "the Hub has asked")
        assert heard == ["refuse"]
        assert desk(acting).store.records == {}
        assert (await ask(acting, wants())).decision == "admit", "its person starts it later"


async def test_where_it_waits_for_a_login_it_can_be_cancelled(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        says(office, HubRejected(403, "auth has expired for alice, login again"), waits)
        await give_back()
        await until(lambda: state(acting, waits) is JobState.LOGIN_REQUIRED, "the Hub wants a login")
        assert await cancelled(acting)
        assert state(acting, waits) is JobState.ENDED


async def test_who_was_let_in_can_cancel_and_holds_its_gpus_until_no_pod_can_come(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        plays(office, acting, waits)
        await give_back()
        await until(lambda: told(acting, waits), "the Hub may make its pod")
        assert await cancelled(acting)
        assert (await ask(acting, wants("new", gpus=8))).decision == "wait", "a pod may be on its way"
        assert (await ask(acting, waits)).decision == "refuse", "no pod after this"
        office.clock.moved += timedelta(seconds=70)
        await until(lambda: state(acting, waits) is JobState.ENDED, "it is over")
        assert ("alice", "") in office.hub.stopped


async def test_a_start_that_kubernetes_could_not_make_just_now_waits_on(office: Office) -> None:
    waits, never = wants(), wants("never")
    async with office.manager() as acting:
        give_back = await full(acting)
        for question in (waits, never):
            await ask(acting, question)
        plays(office, acting, waits, never)
        await give_back()
        await until(lambda: told(acting, waits, never), "both")
        await desk(acting).release_reservation(waits.job, "alice", passes=True)
        await desk(acting).release_reservation(never.job, "never")
        assert state(acting, waits) is JobState.QUEUED
        assert state(acting, never) is JobState.ENDED


async def test_a_reservation_of_the_queue_that_nobody_used_becomes_a_place_again(office: Office) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        first = record(acting, waits)
        plays(office, acting, waits)
        await give_back()
        await until(lambda: told(acting, waits), "it has")
        office.hub.servers = None
        office.clock.moved += timedelta(seconds=70)

        async def back() -> bool:
            return "pod-never-created" in await reasons(acting, waits)

        await until(back, "it has expired")
        found = record(acting, waits)
        assert first is not None
        assert found is not None
        assert found.job.submitted == first.job.submitted
