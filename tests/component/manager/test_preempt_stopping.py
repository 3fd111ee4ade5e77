"""A stop with a reason: written down before it is acted on, carried out until the pod is gone, whoever acts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dlspawner.clients.hub import HubRejected, HubUnavailable
from dlspawner.clients.kubernetes import PODS, KubernetesClient
from dlspawner.core.job import Job, JobState
from dlspawner.devcluster.api import start
from dlspawner.manager.cluster import termination
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.records import JobRecord, as_queued
from dlspawner.manager.state import lifecycle
from tests.component.manager.leaving import StoppingHub, end
from tests.component.manager.manager_harness import (
    NAMESPACE,
    Office,
    ask,
    make_namespace,
    pod_of,
    prepare,
    until,
    wants,
)

SENTENCE = "The job was stopped because it is Tuesday: start it again tomorrow."


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "_AGAIN_SECONDS", 0.1)


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    api = await start(tmp_path / "cluster", 0)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    prepare(tmp_path)
    async with await KubernetesClient.connect(api.kubeconfig) as cluster:
        await make_namespace(cluster)
        made = Office(tmp_path, f"sqlite:///{tmp_path / 'manager.sqlite'}", cluster, hub=StoppingHub(cluster=cluster))
        await made.make_node()
        yield made
    await api.stop()


def hub_of(office: Office) -> StoppingHub:
    assert isinstance(office.hub, StoppingHub)
    return office.hub


def record(acting: LeaderElector, job: str) -> JobRecord | None:
    return acting.admission.store.records.get(job) if acting.admission else None


async def reasons(acting: LeaderElector, job: str) -> list[str]:
    assert acting.admission is not None
    await acting.admission.store.transact(lambda _: None)  # what is known by now is written down before it
    return [reason for _, _, reason in await acting.ledger.events(job)]


@pytest.mark.parametrize(("asked", "yields"), [(True, None), (False, datetime.now(UTC))], ids=["asked", "turned"])
def test_what_waits_again_is_what_its_person_has_asked_for(asked: bool, yields: datetime | None) -> None:
    job = Job("j", "alice", "a", datetime.now(UTC), preemptible=True, state=JobState.STARTING, nodes=("n1",))
    found = as_queued(JobRecord(job, demote_at=yields, start_attempts=1))

    assert (found.job.preemptible, found.demote_at, found.job.nodes) == (asked, None, ())


async def run(office: Office, acting: LeaderElector, user: str = "alice") -> str:
    """A job of this person's that runs."""
    question = wants(user)
    await ask(acting, question)
    await office.bind(await office.make_pod(question))
    job = question.job

    def runs() -> bool:
        found = record(acting, job)
        return found is not None and found.job.state is JobState.RUNNING

    await until(runs, "it runs")
    return job


async def decide(acting: LeaderElector, job: str, reason: EventReason = EventReason.IDLE) -> bool:
    assert acting.admission is not None
    return await acting.admission.store.transact(lambda turn: lifecycle.stop(turn, job, reason, SENTENCE))


async def test_a_stop_is_an_event_with_its_reason_and_its_sentence_stays(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting)
        assert await decide(acting, job)
        await until(lambda: record(acting, job) is None, "it has ended")
        assert (await reasons(acting, job))[-2:] == ["idle", "gone"]
        found = await acting.ledger.find(job)
    assert found is not None
    assert found.stop is not None
    assert (found.stop.code, found.stop.message) == ("idle", SENTENCE)
    assert hub_of(office).asked == [("alice", "")]


async def test_a_second_reason_does_not_change_the_first(office: Office) -> None:
    hub_of(office).deaf = True
    async with office.manager() as acting:
        job = await run(office, acting)
        assert await decide(acting, job, EventReason.IDLE)
        assert not await decide(acting, job, EventReason.LIFETIME)
        assert (await reasons(acting, job)).count("lifetime") == 0


async def test_a_reservation_without_a_pod_is_not_stopped(office: Office) -> None:
    async with office.manager() as acting:
        question = wants()
        await ask(acting, question)
        assert not await decide(acting, question.job)


@pytest.mark.parametrize("trouble", [HubUnavailable("It is away."), HubRejected(400, "alice is pending spawn")])
async def test_a_hub_that_cannot_now_is_asked_until_it_does(office: Office, trouble: Exception) -> None:
    hub_of(office).troubles = [trouble] * 3  # type: ignore[list-item]  # both are HubErrors
    async with office.manager() as acting:
        job = await run(office, acting)
        await decide(acting, job)
        await until(lambda: record(acting, job) is None, "it has ended")
    assert len(hub_of(office).asked) == 4


async def test_a_cancelled_job_that_seems_to_be_stopped_by_somebody_is_stopped_when_it_is_not(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting)
        office.hub.servers = {("alice", "")}  # ready, as after a start that was ended and before its stop
        await decide(acting, job, EventReason.CANCELLED)
        await until(lambda: record(acting, job) is None, "it has ended")
    assert hub_of(office).asked == [("alice", "")]


async def test_a_job_that_the_hub_does_not_know_loses_its_pod(office: Office) -> None:
    hub_of(office).troubles = [HubRejected(404, "No such user")]
    async with office.manager() as acting:
        job = await run(office, acting)
        await decide(acting, job)

        async def leaves() -> bool:
            (pod,) = (await office.pods()).values()
            return bool(pod["metadata"].get("deletionTimestamp"))

        await until(leaves, "its pod is asked to end")
        (pod,) = (await office.pods()).values()
        assert pod["metadata"]["deletionGracePeriodSeconds"] == 30, "with its own grace period"
        await end(office.cluster, pod)
        await until(lambda: record(acting, job) is None, "it has ended")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_hub_that_never_allows_it_is_asked_once_and_the_pod_ends_and_administrators_are_told(
    office: Office, status: int
) -> None:
    hub_of(office).troubles = [HubRejected(status, "Action is not authorized with current scopes")] * 100  # type: ignore[assignment]
    async with office.manager() as acting:
        job = await run(office, acting)
        await decide(acting, job)

        async def leaves() -> bool:
            (pod,) = (await office.pods()).values()
            return bool(pod["metadata"].get("deletionTimestamp"))

        await until(leaves, "its pod is asked to end")
        assert acting.admission is not None
        notice = acting.admission.store.notices.pending(("", NoticeKind.HUB_FORBIDS))
        assert notice is not None
        assert "It says: Action is not authorized with current scopes" in notice.text
        assert hub_of(office).asked == [("alice", "")]


async def test_the_next_manager_carries_out_what_one_that_died_had_decided(office: Office) -> None:
    hub_of(office).deaf = True
    async with office.manager() as acting:
        job = await run(office, acting)
        await decide(acting, job)
    hub_of(office).deaf = False
    hub_of(office).asked.clear()
    async with office.manager() as other:
        await until(lambda: record(other, job) is None, "it has ended")
        assert (await reasons(other, job)).count("idle") == 1
    assert hub_of(office).asked == [("alice", "")]


async def test_one_who_was_stopped_for_others_waits_again_if_that_was_asked_for(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting)
        before = record(acting, job)
        assert before is not None
        wish = replace(before, job=replace(before.job, requeue=True))
        assert acting.admission is not None
        await acting.admission.store.transact(lambda turn: turn.write(wish, EventReason.QUEUED))
        await decide(acting, job, EventReason.PREEMPTED)

        async def requeued() -> bool:
            return "requeued" in await reasons(acting, job)

        await until(requeued, "it waits again")
        after = record(acting, job)
        assert after is not None
        assert after.job.submitted == before.job.submitted
        assert (after.job.started, after.pod_uid, after.stop) == (None, None, None)
        told = await reasons(acting, job)  # its turn may have come already
        assert told[told.index("requeued") - 1] == "preempted"


async def test_who_held_more_than_was_asked_for_has_its_place_again_for_what_is_asked(office: Office) -> None:
    """What the cluster added to its pod (here an overhead) is not in the pod that the Hub would make next."""
    async with office.manager() as acting:
        question = wants(requeue=True)
        await ask(acting, question)
        before = record(acting, question.job)
        assert before is not None
        asked = before.job.request.pods[0].cpu_milli
        pod = pod_of(question)
        pod["spec"]["overhead"] = {"cpu": "250m"}
        await office.bind(await office.cluster.create(PODS, pod, NAMESPACE))

        def held() -> int:
            found = record(acting, question.job)
            return found.job.request.pods[0].cpu_milli if found and found.job.state is JobState.RUNNING else 0

        await until(lambda: held() == asked + 250, "it runs, and is charged for the overhead")
        await decide(acting, question.job, EventReason.PREEMPTED)

        async def requeued() -> bool:
            return "requeued" in await reasons(acting, question.job)

        await until(requeued, "it waits again")
        assert (await ask(acting, question)).decision == "admit"
        after = record(acting, question.job)
        assert after is not None
        assert (after.job.submitted, after.job.request) == (before.job.submitted, before.job.request)


async def test_an_idle_job_never_waits_again(office: Office) -> None:
    async with office.manager() as acting:
        job = await run(office, acting)
        before = record(acting, job)
        assert before is not None
        assert acting.admission is not None
        wish = replace(before, job=replace(before.job, requeue=True))
        await acting.admission.store.transact(lambda turn: turn.write(wish, EventReason.QUEUED))
        await decide(acting, job, EventReason.IDLE)
        await until(lambda: record(acting, job) is None, "it has ended")
