"""Who wants more than a team gives one person waits for its admins; what they say counts once, whatever is killed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dlspawner.clients.hub import HubUnavailable
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import NoticeKind, Recipient
from dlspawner.manager.state.job_store import Transaction
from dlspawner.manager.state.lifecycle import stop
from tests.component.manager.api_client import TEAMS, asked, decides, set_caps, standings, written
from tests.component.manager.manager_harness import Office, ask, settled, until, wants
from tests.component.manager.queue_helpers import cancelled, desk, plays, reasons, record, says, state, told


def notices(acting: LeaderElector, user: str = "alice") -> list[str]:
    """What a person is told, by its kind."""
    return [one.kind.value for one in desk(acting).store.notices.read(Recipient(user), desk(acting).store.now())]


async def waits_for_word(acting: LeaderElector, question: AdmissionRequest) -> None:
    assert (await ask(acting, question)).reason == "approval"
    assert state(acting, question) is JobState.PENDING_APPROVAL


async def runs(office: Office, acting: LeaderElector, question: AdmissionRequest) -> None:
    await office.bind(await office.make_pod(question))
    await until(lambda: state(acting, question) is JobState.RUNNING, "it runs")


async def test_more_than_the_soft_cap_waits_for_an_approval_and_says_who_can_give_it(
    office: Office, db_url: str
) -> None:
    set_caps(office)
    async with office.manager() as acting:
        answer = await ask(acting, question := wants(gpus=3))
        assert (answer.decision, answer.reason) == ("wait", "approval")
        said = " ".join(answer.sentences)
        assert "Team Everybody gives one person at most 2 GPUs without approval; you asked for 3" in said
        assert "vera or victor can approve it for team Everybody." in said
        assert "What would start at once: 2 GPUs of type gpu" in said
        assert "in the queue" not in said
        (request,) = await written(acting, question)
        assert (request.user, request.team, request.gpus, request.what) == (
            "alice",
            "default",
            3000,
            "3 GPUs of type gpu",
        )
        assert request.why == "Team Everybody gives one person at most 2 GPUs without approval."
        look = desk(acting).explainer.explain(record(acting, question))  # type: ignore[arg-type]
        assert (look.state, [one.gpus for one in look.advice]) == ("pending-approval", [2000])


async def test_it_holds_nothing_and_competes_with_nobody(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, wants(gpus=6))
        for user in ("bob", "carol", "dave", "erin"):
            assert (await ask(acting, wants(user, gpus=2))).decision == "admit"


async def test_what_is_approved_starts_and_its_person_is_told(office: Office, db_url: str) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=3))
        first = record(acting, question)
        plays(office, acting, question)
        assert await decides(acting, asked(acting, question), why="The deadline is near.")
        await until(lambda: told(acting, question), "the Hub was told")
        assert notices(acting) == ["approved"]
        now = record(acting, question)
        assert first is not None
        assert now is not None
        assert (now.job.submitted, now.job.approved) == (first.job.submitted, True)
        assert await reasons(acting, question) == ["approval", "approved", "scheduled", "admitted"]
        (request,) = await written(acting, question)
        assert (request.standing.value, request.by, request.reason) == ("approved", "vera", "The deadline is near.")
        assert request.at is not None
        await runs(office, acting, question)
        assert notices(acting) == ["approved"], "one that starts at once is told of it as well"
        (notice,) = desk(acting).store.notices.read(Recipient("alice"), desk(acting).store.now())
        assert notice.text == "Approved: 3 GPUs of type gpu. It was approved by vera: The deadline is near."


async def test_what_is_approved_waits_for_its_turn_at_its_old_place(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        holders = [wants(user, gpus=2) for user in ("h1", "h2", "h3", "h4")]
        for one in holders:
            await ask(acting, one)
        await waits_for_word(acting, first := wants(gpus=3))
        await ask(acting, second := wants("bob", gpus=2))
        await decides(acting, asked(acting, first))
        assert state(acting, first) is JobState.QUEUED
        assert [desk(acting).pending(one.user)[0].position for one in (first, second)] == [1, 2]


async def test_what_is_denied_ends_and_its_person_reads_why_until_they_ask_again(office: Office, db_url: str) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=3))
        await decides(acting, asked(acting, question), yes=False, why="Not  this\nweek")
        assert state(acting, question) is JobState.ENDED
        assert notices(acting) == ["denied"]
        assert await desk(acting).last_event("alice", "") == ("denied", "by vera: Not this week")
        assert await standings(acting, question) == ["denied"]
        (notice,) = desk(acting).store.notices.read(Recipient("alice"), desk(acting).store.now())
        by = "It was denied by vera: Not this week."
        assert notice.text == f"Denied: 3 GPUs of type gpu. The request has ended. {by}"
    async with office.manager() as acting:
        assert notices(acting) == ["denied"], "it outlives the job, and a restart"
        await ask(acting, wants(gpus=1, server="other"))
        assert notices(acting) == ["denied"], "that was another server"
        await ask(acting, wants(gpus=1))
        assert notices(acting) == []


async def test_nobody_reads_for_ever_that_something_was_denied(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=3))
        await decides(acting, asked(acting, question), yes=False)
        office.clock.moved += timedelta(days=4)
        assert notices(acting) == []
        await until(lambda: not desk(acting).store.notices.pending((question.job, NoticeKind.DENIED)), "it is gone")


async def test_it_survives_a_restart_at_every_step(office: Office, db_url: str) -> None:
    set_caps(office)
    question = wants(gpus=3)
    async with office.manager() as acting:
        await waits_for_word(acting, question)
        before = record(acting, question)
        request = asked(acting, question)
    says(office, HubUnavailable("not yet"), question)
    async with office.manager() as acting:
        assert record(acting, question) == before
        assert asked(acting, question) == request
        await decides(acting, request)
    async with office.manager() as acting:
        known = record(acting, question)
        assert known is not None
        assert known.job.approved
        plays(office, acting, question)
        await until(lambda: told(acting, question), "the Hub was told")
    async with office.manager() as acting:
        await runs(office, acting, question)
        assert await standings(acting, question) == ["approved"]


async def test_of_two_words_the_first_counts(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=3))
        request = asked(acting, question)
        assert await decides(acting, request, yes=False, by="victor")
        assert not await decides(acting, request)
        assert state(acting, question) is JobState.ENDED
        (request,) = await written(acting, question)
        assert (request.by, request.standing.value) == ("victor", "denied")


async def test_a_request_that_is_cancelled_is_nobodys_to_decide(office: Office, db_url: str) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=3))
        request = asked(acting, question)
        assert await cancelled(acting)
        assert not await decides(acting, request)
        assert asked(acting, question) is None
        assert [(one.standing.value, one.reason) for one in await written(acting, question)] == [
            ("withdrawn", "cancelled")
        ]


async def test_who_asks_again_for_the_same_keeps_the_request(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=4))
        request = asked(acting, question)
        await waits_for_word(acting, question)
        assert asked(acting, question) == request
        assert await reasons(acting, question) == ["approval"]


async def test_who_asks_for_less_asks_anew_and_keeps_the_place(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=4))
        request, before = asked(acting, question), record(acting, question)
        await waits_for_word(acting, wants(gpus=3, job=question.job))
        now = record(acting, question)
        assert before is not None
        assert now is not None
        assert now.job.submitted == before.job.submitted
        assert not await decides(acting, request), "that was for four"
        assert await standings(acting, question) == ["waiting", "withdrawn"]


@pytest.mark.parametrize(
    ("gpus", "kept"),
    [(4, True), (3, True), (5, False)],
    ids=["the same keeps the approval", "less keeps the approval", "more needs another one"],
)
async def test_after_an_approval_asking_again_for(gpus: int, kept: bool, office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        for user in ("h1", "h2", "h3"):
            await ask(acting, wants(user, gpus=2))
        await waits_for_word(acting, question := wants(gpus=4))
        await decides(acting, asked(acting, question))
        answer = await ask(acting, wants(gpus=gpus, job=question.job))
        assert (answer.decision, answer.reason == "approval") == ("wait", not kept)
        assert (asked(acting, question) is None) == kept


async def test_a_cap_that_is_raised_lets_it_go_on_by_itself(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=3))
        request = asked(acting, question)
        plays(office, acting, question)
        set_caps(office, soft=3)
        await until(lambda: told(acting, question), "it starts")
        assert not await decides(acting, request)
        assert [one.reason for one in await written(acting, question)] == ["approval-not-needed"]


@pytest.mark.parametrize(
    ("teams", "sentence"),
    [
        (TEAMS % (2, 4), "Team Everybody gives one person at most 4 GPUs; you asked for 5."),
        ("teams:\n  other: {title: Other, quota: {gpu: 8}}\n", "Team default has no quota of GPUs of type gpu;"),
    ],
    ids=["a hard cap that was lowered", "a team that was removed"],
)
async def test_what_can_not_start_any_more_waits_for_no_word_and_says_so(
    teams: str, sentence: str, office: Office
) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=5))
        (office.folder / "teams.yaml").write_text(teams)
        await until(lambda: notices(acting) == ["cannot-start"], "it is told")
        look = desk(acting).explainer.explain(record(acting, question))  # type: ignore[arg-type]
        assert (look.state, look.sentence.startswith(sentence)) == ("queued", True), look.sentence
        set_caps(office)
        await until(lambda: not notices(acting), "it can be approved again")
        assert await standings(acting, question) == ["waiting", "withdrawn"]


async def test_who_holds_too_much_waits_for_the_own_jobs_or_a_word(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        first, second = wants(gpus=2, server="first"), wants(gpus=1, server="second")
        assert (await ask(acting, first)).decision == "admit"
        answer = await ask(acting, second)
        assert "until 1 of them is free, or until it is approved" in answer.sentences[0]
        assert state(acting, second) is JobState.PENDING_APPROVAL
        request = asked(acting, second)
        assert request is not None
        assert request.why.endswith("; alice holds 2.")
        plays(office, acting, second)
        await desk(acting).release_reservation(first.job, "alice")
        await until(lambda: told(acting, second), "the own GPUs are free, and it starts")
        assert await standings(acting, second) == ["withdrawn"]


async def test_what_meets_the_soft_cap_while_it_waits_goes_where_it_belongs(office: Office) -> None:
    set_caps(office, hard="null")
    async with office.manager() as acting:
        holders = [wants(user, gpus=2) for user in ("h1", "h2", "h3", "h4")]
        for one in holders:
            await ask(acting, one)
        first, second = wants(gpus=2, server="first"), wants(gpus=2, server="second")
        for one in (first, second):
            assert (await ask(acting, one)).reason == "team-quota"
        office.hub.servers = {("alice", "first"), ("alice", "second")}

        async def starts(user: str, server: str) -> None:
            await ask(acting, {"first": first, "second": second}[server])

        office.hub.starts = starts
        await desk(acting).release_reservation(holders[0].job, "h1")
        await until(lambda: told(acting, first), "the first one has its turn")
        await until(lambda: state(acting, second) is JobState.PENDING_APPROVAL, "the second one needs a word")
        await desk(acting).release_reservation(holders[1].job, "h2")
        await settled(acting)
        await decides(acting, asked(acting, second))
        await until(lambda: told(acting, second), "it has one")


async def test_the_hard_cap_holds_for_what_is_approved(office: Office) -> None:
    set_caps(office, hard=4)
    async with office.manager() as acting:
        first, second = wants(gpus=2, server="first"), wants(gpus=3, server="second")
        await ask(acting, first)
        await waits_for_word(acting, second)
        await decides(acting, asked(acting, second))
        found = desk(acting).explainer.explain(record(acting, second))  # type: ignore[arg-type]
        assert (found.state, found.sentence) == (
            "queued",
            "You hold 2 GPUs of the 4 that team Everybody gives one person; this job waits until 1 of them is free.",
        )


async def test_what_waits_for_a_word_ends_with_its_server(office: Office) -> None:
    set_caps(office)
    office.hub.servers = set()
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=3))
        await until(lambda: state(acting, question) is JobState.ENDED, "its server was removed")
        assert await standings(acting, question) == ["withdrawn"]


async def test_what_was_approved_and_had_to_leave_needs_no_other_word(office: Office) -> None:
    set_caps(office)
    async with office.manager() as acting:
        await waits_for_word(acting, question := wants(gpus=3, requeue=True))
        await decides(acting, asked(acting, question))
        plays(office, acting, question)
        await until(lambda: told(acting, question), "the Hub was told")
        await runs(office, acting, question)
        stopped = await desk(acting).store.transact(
            lambda turn: stop(turn, question.job, EventReason.PREEMPTED, "Others need it.")
        )
        assert stopped
        office.hub.servers, office.hub.starts = None, None
        await office.delete((await office.pods())["jupyter-alice"], grace=0)
        await until(lambda: state(acting, question) is not JobState.STOPPING, "its pod is gone")
        now = record(acting, question)
        assert now is not None
        assert now.job.approved
        assert await standings(acting, question) == ["approved"]


async def test_a_promise_is_over_when_a_lowered_cap_makes_an_approval_necessary(office: Office) -> None:
    set_caps(office, soft=4)
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, question := wants(gpus=3))

        def promise(turn: Transaction) -> None:
            known = turn.record(question.job)
            assert known is not None
            turn.write(replace(known, job=replace(known.job, nodes=("gpu-1",))), EventReason.NODES_RESERVED)

        set_caps(office, soft=2)
        await desk(acting).store.transact(promise)
        await until(lambda: state(acting, question) is JobState.PENDING_APPROVAL, "it needs a word")
        now = record(acting, question)
        assert now is not None
        assert now.job.nodes == ()
        assert (await written(acting, question))[0].why.endswith("without approval.")


async def full(acting: LeaderElector) -> None:
    """All eight GPUs are held."""
    for user in ("h1", "h2", "h3", "h4"):
        assert (await ask(acting, wants(user, gpus=2))).decision == "admit"
