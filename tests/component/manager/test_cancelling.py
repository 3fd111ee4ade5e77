"""Cancellations by the user and by a stop through the Hub, in every state of a job before it runs."""

from __future__ import annotations

import pytest

from dlspawner.clients.hub import HubRejected
from dlspawner.core.job import JobState
from dlspawner.manager.cluster.termination import JobEnder
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.state.lifecycle import on_start_interrupted
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import (
    AFTER_RESERVATION,
    cancel,
    hold_all_gpus,
    queue_and_release,
    reasons,
    record,
    run_job,
    service,
    started,
    state,
    stop,
    until_due,
    until_reason,
    until_state,
)


async def interrupt(leader: LeaderElector, user: str = "alice", job: str = "") -> None:
    """The Hub says that a start on this user's default server was interrupted by a stop."""
    await service(leader).store.transact(lambda transaction: on_start_interrupted(transaction, user, "", job))


@pytest.mark.parametrize("by_hub", [False, True], ids=["by the user", "by a stop through the Hub"])
async def test_queued_job_is_cancelled_and_no_other(office: Office, by_hub: bool) -> None:
    mine, theirs = wants(), wants("bob")
    async with office.manager() as leader:
        await hold_all_gpus(leader)
        for request in (mine, theirs):
            await ask(leader, request)
        if by_hub:
            await interrupt(leader)
        else:
            assert await cancel(leader)
        assert await reasons(leader, mine) == ["queued", "cancelled"]
        assert not await cancel(leader), "there is none any more"
        assert state(leader, theirs) is JobState.QUEUED


@pytest.mark.parametrize("by_hub", [False, True], ids=["by the user", "by a stop through the Hub"])
async def test_scheduled_job_is_cancelled_and_its_gpus_are_free(office: Office, by_hub: bool) -> None:
    waits = wants(gpus=8)
    async with office.manager() as leader:
        await until_due(leader, waits)
        if by_hub:
            await interrupt(leader, job=waits.job)
        else:
            assert await cancel(leader)
        assert await reasons(leader, waits) == ["queued", "scheduled", "cancelled"]
        assert (await ask(leader, wants("new", gpus=8))).decision == "admit"


async def test_job_that_waits_for_a_login_is_cancelled(office: Office) -> None:
    waits = wants()
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits, error=HubRejected(403, "auth has expired, login again"))
        await until_state(leader, waits, JobState.LOGIN_REQUIRED)
        assert await cancel(leader)
        assert state(leader, waits) is JobState.ENDED


async def test_cancellation_while_the_hub_is_asked_for_the_start_is_not_undone_by_it(office: Office) -> None:
    waits, answers = wants(), []
    async with office.manager() as leader:
        release = await hold_all_gpus(leader)
        await ask(leader, waits)
        office.hub.servers = {("alice", "")}

        async def starts(user: str, server: str) -> None:
            assert await cancel(leader)
            assert service(leader).pending(user, server) == [], "so that the Hub makes a new id"
            answers.append((await ask(leader, wants())).decision)

        office.hub.starts = starts
        await release()
        await until(lambda: answers, "the Hub has asked")
        assert answers == ["refuse"]
        assert service(leader).store.records == {}
        assert (await ask(leader, wants())).decision == "admit", "a later start of the user"


async def test_admitted_job_that_is_cancelled_holds_its_gpus_until_no_pod_can_come(office: Office) -> None:
    waits = wants()
    async with office.manager() as leader:
        await queue_and_release(office, leader, waits)
        await until(lambda: started(leader, waits), "it may have a pod")
        assert await cancel(leader)
        assert (await ask(leader, wants("new", gpus=8))).decision == "wait", "a pod may be on its way"
        assert (await ask(leader, waits)).decision == "refuse", "no pod after this"
        office.clock.moved += AFTER_RESERVATION
        await until_state(leader, waits, JobState.ENDED)
        assert ("alice", "") in office.hub.stopped


async def test_admitted_job_whose_start_the_hub_has_stopped_ends_before_its_reservation_is_over(office: Office) -> None:
    request = wants(request_seconds=0)
    async with office.manager() as leader:
        assert (await ask(leader, request)).decision == "admit"
        await interrupt(leader, job=request.job)
        assert state(leader, request) is JobState.STOPPING, "a request for its pod may be on its way"
        await until_state(leader, request, JobState.ENDED)
        assert office.clock.moved.total_seconds() == 0


async def test_interrupted_start_of_another_server_or_an_earlier_job_cancels_nothing(office: Office) -> None:
    first, second = wants(), wants()
    async with office.manager() as leader:
        await hold_all_gpus(leader)
        await ask(leader, first)
        earlier = record(leader, first)
        await interrupt(leader, "bob", first.job)
        assert state(leader, first) is JobState.QUEUED
        await ask(leader, second)
        assert state(leader, first) is JobState.ENDED
        await interrupt(leader, job=first.job)
        assert not await JobEnder(service(leader).store, leader.hub).end(earlier, "vera")
        assert state(leader, second) is JobState.QUEUED


@pytest.mark.parametrize("cancelled", [False, True])
async def test_preempted_job_is_queued_again_unless_it_is_cancelled(office: Office, cancelled: bool) -> None:
    request = wants(preemptible=True, requeue=True)
    async with office.manager() as leader:
        await run_job(office, leader, request)
        await stop(leader, request.job, EventReason.PREEMPTED)
        await interrupt(leader, job=request.job)
        if cancelled:
            assert await cancel(leader)
            assert not await cancel(leader), "there is none any more"
        (pod,) = (await office.pods()).values()
        await office.delete(pod, grace=0)
        if cancelled:
            await until_state(leader, request, JobState.ENDED)
            assert (await reasons(leader, request))[-3:] == ["preempted", "cancelled", "gone"]
        else:
            await until_reason(leader, request, "requeued")


async def test_job_that_runs_by_the_time_its_end_is_decided_is_stopped(office: Office) -> None:
    request = wants()
    async with office.manager() as leader:
        await ask(leader, request)
        starting = record(leader, request)
        await office.bind(await office.make_pod(request))
        await until_state(leader, request, JobState.RUNNING)
        assert await JobEnder(service(leader).store, leader.hub).end(starting, "alice")
        assert set(office.hub.stopped) == {("alice", "")}
