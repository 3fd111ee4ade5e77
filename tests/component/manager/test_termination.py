"""Stops: written before they are carried out, and carried out until the pod is gone, whichever Manager leads."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine, text

from dlspawner.clients.hub import HubError, HubRejected, HubUnavailable
from dlspawner.clients.kubernetes import PODS
from dlspawner.core.job import Job, JobState
from dlspawner.manager.cluster import termination
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import JobRecord, as_queued
from tests.component.manager.manager_harness import NAMESPACE, Leader, ManagerHarness, StoppingHub, pod_of, until, wants


@pytest.fixture
def hub(harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch) -> StoppingHub:
    monkeypatch.setattr(termination, "_AGAIN_SECONDS", 0.1)
    harness.hub = made = StoppingHub(cluster=harness.cluster)
    return made


async def until_pod_is_deleted(harness: ManagerHarness) -> None:
    """Until the deletion of the only pod was requested, with its own grace period."""

    async def is_deleted() -> bool:
        (pod,) = (await harness.pods()).values()
        return bool(pod["metadata"].get("deletionGracePeriodSeconds") == 30)

    await until(is_deleted, "the deletion is requested")


async def test_second_reason_does_not_change_the_first(hub: StoppingHub, leader: Leader) -> None:
    hub.ignores_stops = True
    await leader.run_job(request := wants())
    assert await leader.stop(request.job, EventReason.IDLE)
    assert not await leader.stop(request.job, EventReason.LIFETIME)
    assert "lifetime" not in await leader.reasons(request)


async def test_reservation_without_a_pod_is_not_stopped(hub: StoppingHub, leader: Leader) -> None:
    await leader.ask(request := wants())
    assert not await leader.stop(request.job, EventReason.IDLE)


@pytest.mark.parametrize("error", [HubUnavailable("It is away."), HubRejected(400, "alice is pending spawn")])
async def test_hub_that_cannot_stop_now_is_asked_again(hub: StoppingHub, error: HubError, leader: Leader) -> None:
    hub.errors = [error] * 3
    await leader.run_job(request := wants())
    await leader.stop(request.job, EventReason.IDLE)
    await leader.until_state(request, JobState.ENDED)
    assert len(hub.asked) == 4


async def test_cancelled_job_whose_server_is_ready_after_all_is_stopped(hub: StoppingHub, leader: Leader) -> None:
    await leader.run_job(request := wants())
    hub.servers = {("alice", "")}
    await leader.stop(request.job, EventReason.CANCELLED)
    await leader.until_state(request, JobState.ENDED)
    assert hub.asked == [("alice", "")]


async def test_pod_of_a_server_that_the_hub_does_not_know_is_deleted(
    harness: ManagerHarness, hub: StoppingHub, leader: Leader
) -> None:
    hub.errors = [HubRejected(404, "No such user")]
    await leader.run_job(request := wants())
    await leader.stop(request.job, EventReason.IDLE)
    await until_pod_is_deleted(harness)
    await harness.cluster.delete(PODS, "jupyter-alice", NAMESPACE, grace=0)
    await leader.until_state(request, JobState.ENDED)


@pytest.mark.parametrize("status", [401, 403])
async def test_hub_that_forbids_stops_is_asked_once(
    harness: ManagerHarness, hub: StoppingHub, status: int, leader: Leader
) -> None:
    hub.errors = [HubRejected(status, "Action is not authorized with current scopes")] * 100
    await leader.run_job(request := wants())
    await leader.stop(request.job, EventReason.IDLE)
    await until_pod_is_deleted(harness)
    notice = leader.service.store.notices.pending(("", NoticeKind.HUB_FORBIDS))
    assert notice is not None
    assert "It says: Action is not authorized with current scopes" in notice.text
    assert hub.asked == [("alice", "")]


@pytest.mark.parametrize(("asked", "demote_at"), [(True, None), (False, datetime.now(UTC))], ids=["asked", "demoted"])
def test_requeued_job_is_preemptible_if_its_user_asked_for_it(asked: bool, demote_at: datetime | None) -> None:
    job = Job("j", "alice", "a", datetime.now(UTC), preemptible=True, state=JobState.STARTING, nodes=("n1",))
    found = as_queued(JobRecord(job, demote_at=demote_at, start_attempts=1))
    assert (found.job.preemptible, found.demote_at, found.job.nodes) == (asked, None, ())


async def test_preempted_job_is_requeued_at_its_place_for_what_was_asked(
    harness: ManagerHarness, hub: StoppingHub, leader: Leader
) -> None:
    """What the cluster added to its pod (here an overhead) is not in the pod that the Hub would make next."""
    await leader.ask(request := wants(requeue=True))
    before = leader.record(request).job
    asked = before.request.pods[0].cpu_milli
    pod = pod_of(request)
    pod["spec"]["overhead"] = {"cpu": "250m"}
    await harness.bind(await harness.cluster.create(PODS, pod, NAMESPACE))
    await leader.until_state(request, JobState.RUNNING)
    await until(lambda: leader.record(request).job.request.pods[0].cpu_milli == asked + 250, "it is charged")
    await leader.stop(request.job, EventReason.PREEMPTED)
    await leader.until_reason(request, "requeued")
    told = await leader.reasons(request)  # it may be scheduled again already
    assert told[told.index("requeued") - 1] == "preempted"
    assert (await leader.ask(request)).decision == "admit"
    after = leader.record(request)
    assert (after.job.submitted, after.job.request, after.stop) == (before.submitted, before.request, None)


async def test_idle_job_is_not_requeued(hub: StoppingHub, leader: Leader) -> None:
    await leader.run_job(request := wants(requeue=True))
    await leader.stop(request.job, EventReason.IDLE)
    await leader.until_state(request, JobState.ENDED)


# A former leader, which has not noticed yet that another Manager leads


def take_over(harness: ManagerHarness) -> None:
    engine = create_engine(harness.db_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE leases SET identity = 'another', term = term + 1"))
    engine.dispose()


async def test_former_leader_does_not_repeat_stops(
    harness: ManagerHarness, hub: StoppingHub, db_url: str, leader: Leader
) -> None:
    hub.errors = [HubUnavailable("It is away.")] * 10_000
    await leader.run_job(request := wants())
    await leader.stop(request.job, EventReason.IDLE)
    await until(lambda: hub.asked, "the Hub is asked")
    take_over(harness)
    asked = len(hub.asked)
    await until(lambda: leader.admission is None, "it notices")
    assert len(hub.asked) <= asked + 1, "but for the request that was on its way"


async def test_stop_that_could_not_be_written_is_not_requested(
    hub: StoppingHub, monkeypatch: pytest.MonkeyPatch, leader: Leader
) -> None:
    reached, fails, answers, ask_hub = asyncio.Event(), asyncio.Event(), [], termination.Terminator._ask_hub

    async def observed(terminator: termination.Terminator, wanted: JobRecord) -> bool:
        reached.set()
        answers.append(await ask_hub(terminator, wanted))
        return answers[-1]

    async def fail(*_: object) -> None:
        await fails.wait()
        monkeypatch.undo()
        raise DatabaseUnavailable("It is away.")

    await leader.run_job(request := wants())
    await leader.settled()
    monkeypatch.setattr(termination.Terminator, "_ask_hub", observed)
    monkeypatch.setattr(leader.repository, "write", fail)
    stopping = asyncio.create_task(leader.stop(request.job, EventReason.IDLE))
    await asyncio.wait_for(reached.wait(), 60)
    fails.set()
    with pytest.raises(DatabaseUnavailable):
        await stopping
    await until(lambda: answers, "it was decided whether to ask")
    assert (answers, hub.asked) == ([False], [])
    assert leader.record(request).stop is None
