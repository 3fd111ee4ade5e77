"""What the Hub's word that a start was interrupted by a stop means for the jobs of that server."""

from __future__ import annotations

from dlspawner.core.job import JobState
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.state.lifecycle import on_start_interrupted, stop
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import desk, full, is_due, reasons, record, state


async def tell(acting: LeaderElector, user: str = "alice", job: str = "") -> None:
    await desk(acting).store.transact(lambda turn: on_start_interrupted(turn, user, "", job))


async def test_a_stop_before_the_hub_knew_the_job_cancels_what_waits_for_the_server(office: Office) -> None:
    mine, theirs = wants(), wants("bob")
    async with office.manager() as acting:
        await full(acting)
        for question in (mine, theirs):
            await ask(acting, question)
        await tell(acting)
        assert (await reasons(acting, mine))[-1] == "cancelled"
        assert state(acting, theirs) is JobState.QUEUED


async def test_a_stop_after_its_turn_cancels_the_job_and_its_gpus_are_free(office: Office) -> None:
    mine, theirs = wants(gpus=8), wants("bob", gpus=8)
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, mine)
        await give_back()
        await until(lambda: is_due(acting, mine), "its turn has come")
        await tell(acting, job=mine.job)
        assert state(acting, mine) is JobState.ENDED
        assert (await ask(acting, theirs)).decision == "admit"


async def test_a_stop_after_the_admission_ends_the_job_though_its_reservation_lasts_longer(office: Office) -> None:
    question = wants(request_seconds=0)
    async with office.manager() as acting:
        assert (await ask(acting, question)).decision == "admit"
        await tell(acting, job=question.job)
        assert state(acting, question) is JobState.STOPPING, "a request for its pod may be on its way"
        await until(lambda: state(acting, question) is JobState.ENDED, "there is no pod", seconds=20)
        assert office.clock.moved.total_seconds() == 0


async def test_a_stop_of_a_job_that_is_over_leaves_the_next_one_of_its_server_alone(office: Office) -> None:
    first, second = wants(), wants()
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, first)
        await ask(acting, second)
        assert state(acting, first) is JobState.ENDED
        await tell(acting, job=first.job)
        assert state(acting, second) is JobState.QUEUED


async def test_nobody_cancels_the_job_of_another_server(office: Office) -> None:
    question = wants()
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, question)
        await tell(acting, "bob", question.job)
        assert state(acting, question) is JobState.QUEUED


async def test_what_the_manager_itself_stops_still_waits_again(office: Office) -> None:
    question = wants(preemptible=True, requeue=True)
    async with office.manager() as acting:
        await ask(acting, question)
        pod = await office.make_pod(question)
        await until(lambda: len(getattr(record(acting, question), "seen", ())) == 1, "its pod is there")
        await desk(acting).store.transact(
            lambda turn: stop(turn, question.job, EventReason.PREEMPTED, "Others need it.")
        )
        await tell(acting, job=question.job)
        await office.delete(pod, grace=0)

        async def requeued() -> bool:
            return "requeued" in await reasons(acting, question)

        await until(requeued, "it waits again")
