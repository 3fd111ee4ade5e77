"""Cancellations by the user and by a stop through the Hub, in every state of a job before it runs."""

from __future__ import annotations

import pytest

from dlspawner.core.job import JobState
from dlspawner.manager.cluster.termination import JobEnder
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.state.lifecycle import on_server_stopped
from tests.component.manager.manager_harness import AFTER_RESERVATION, Leader, ManagerHarness, until, wants


async def interrupt(leader: Leader, user: str = "alice", job: str = "") -> None:
    """The Hub says that a start on this user's default server was interrupted by a stop."""
    await leader.transact(on_server_stopped, user, "", job)


@pytest.mark.parametrize("by_hub", [False, True], ids=["by the user", "by a stop through the Hub"])
async def test_queued_job_is_cancelled_and_no_other(leader: Leader, by_hub: bool) -> None:
    mine, theirs = wants(), wants("bob")
    await leader.hold_all_gpus()
    for request in (mine, theirs):
        await leader.ask(request)
    if by_hub:
        await interrupt(leader)
    else:
        assert await leader.cancel()
    assert await leader.reasons(mine) == ["queued", "cancelled"]
    assert not await leader.cancel(), "there is none any more"
    assert leader.state(theirs) is JobState.QUEUED


@pytest.mark.parametrize("by_hub", [False, True], ids=["by the user", "by a stop through the Hub"])
async def test_scheduled_job_is_cancelled_and_its_gpus_are_free(leader: Leader, by_hub: bool) -> None:
    waits = wants(gpus=8)
    await leader.until_due(waits)
    if by_hub:
        await interrupt(leader, job=waits.job)
    else:
        assert await leader.cancel()
    assert await leader.reasons(waits) == ["queued", "scheduled", "cancelled"]
    assert (await leader.ask(wants("new", gpus=8))).decision == "admit"


async def test_cancellation_while_the_hub_is_asked_for_the_start_is_not_undone_by_it(leader: Leader) -> None:
    waits, answers = wants(), []

    async def starts(user: str, server: str) -> None:
        assert await leader.cancel()
        assert leader.service.pending(user, server) == [], "so that the Hub makes a new id"
        answers.append((await leader.ask(wants())).decision)

    await leader.queue_and_release(waits, starts=starts)
    await until(lambda: answers, "the Hub has asked")
    assert answers == ["refuse"]
    assert leader.service.store.records == {}
    assert (await leader.ask(wants())).decision == "admit", "a later start of the user"


async def test_admitted_job_that_is_cancelled_holds_its_gpus_until_no_pod_can_come(
    harness: ManagerHarness, leader: Leader
) -> None:
    waits = wants()
    await leader.queue_and_release(waits)
    await until(lambda: leader.started(waits), "it may have a pod")
    assert await leader.cancel()
    assert (await leader.ask(wants("new", gpus=8))).decision == "wait", "a pod may be on its way"
    assert (await leader.ask(waits)).decision == "refuse", "no pod after this"
    harness.clock.moved += AFTER_RESERVATION
    await leader.until_state(waits, JobState.ENDED)
    assert ("alice", "") in harness.hub.stopped


async def test_admitted_job_whose_start_the_hub_has_stopped_ends_before_its_reservation_is_over(
    harness: ManagerHarness, leader: Leader
) -> None:
    request = wants(request_seconds=0)
    assert (await leader.ask(request)).decision == "admit"
    await interrupt(leader, job=request.job)
    assert leader.state(request) is JobState.STOPPING, "a request for its pod may be on its way"
    await leader.until_state(request, JobState.ENDED)
    assert harness.clock.moved.total_seconds() == 0


async def test_interrupted_start_of_another_server_or_an_earlier_job_cancels_nothing(leader: Leader) -> None:
    first, second = wants(), wants()
    await leader.hold_all_gpus()
    await leader.ask(first)
    earlier = leader.record(first)
    await interrupt(leader, "bob", first.job)
    assert leader.state(first) is JobState.QUEUED
    await leader.ask(second)
    assert leader.state(first) is JobState.ENDED
    await interrupt(leader, job=first.job)
    assert not await JobEnder(leader.service.store, leader.hub).end(earlier, "vera")
    assert leader.state(second) is JobState.QUEUED


@pytest.mark.parametrize("cancelled", [False, True])
async def test_preempted_job_is_queued_again_unless_it_is_cancelled(
    harness: ManagerHarness, leader: Leader, cancelled: bool
) -> None:
    request = wants(preemptible=True, requeue=True)
    await leader.run_job(request)
    await leader.stop(request.job, EventReason.PREEMPTED)
    await interrupt(leader, job=request.job)
    if cancelled:
        assert await leader.cancel()
        assert not await leader.cancel(), "there is none any more"
    (pod,) = (await harness.pods()).values()
    await harness.delete(pod, grace=0)
    if cancelled:
        await leader.until_state(request, JobState.ENDED)
        assert (await leader.reasons(request))[-3:] == ["preempted", "cancelled", "gone"]
    else:
        await leader.until_reason(request, "requeued")


async def test_job_that_runs_by_the_time_its_end_is_decided_is_stopped(harness: ManagerHarness, leader: Leader) -> None:
    request = wants()
    await leader.ask(request)
    starting = leader.record(request)
    await leader.run_pod(request)
    assert await JobEnder(leader.service.store, leader.hub).end(starting, "alice")
    assert set(harness.hub.stopped) == {("alice", "")}
