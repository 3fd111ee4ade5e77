"""Preemption: notice and reservation together, then the stop or its cancellation, each once across Managers."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dlspawner.clients.hub import HubRejected
from dlspawner.clients.kubernetes import NODES
from dlspawner.core.decisions import Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission
from dlspawner.manager.admission import preemption
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.cluster import termination
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import Notice, NoticeKind
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import Leader, ManagerHarness, StoppingHub, until, wants

TEAMS = "teams: {owners: {title: Owners, quota: {gpu: %d}}, others: {title: Others, quota: {gpu: %d}}}\n"
NOTICE = timedelta(seconds=61)
DEMOTED, WARNED, SPARED = NoticeKind.QUOTA_LOWERED, NoticeKind.PREEMPTED, NoticeKind.PREEMPTION_CANCELLED


@pytest.fixture(autouse=True)
def hub(harness: ManagerHarness, monkeypatch: pytest.MonkeyPatch) -> StoppingHub:
    """The Hub of a cluster where all GPUs belong to the team *owners*."""
    monkeypatch.setattr(termination, "_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(preemption, "_EVERY_SECONDS", 0.02)
    configure(harness.folder)
    set_quotas(harness, owners=8, others=0)
    harness.hub = made = StoppingHub(cluster=harness.cluster)
    return made


def configure(folder: Path, min_run: int = 0) -> None:
    cluster = (folder / "cluster.yaml").read_text().partition("scheduling:")[0]
    scheduling = f"scheduling: {{notice_seconds: 60, min_run_seconds: {min_run}}}\n"
    (folder / "cluster.yaml").write_text(cluster + scheduling)


def set_quotas(harness: ManagerHarness, owners: int, others: int) -> None:
    (harness.folder / "teams.yaml").write_text(TEAMS % (owners, others))


def borrows(user: str = "bob", gpus: int = 8, **more: object) -> AdmissionRequest:
    return wants(user, gpus=gpus, **{"team": "others", "preemptible": True, **more})


async def run_borrower(leader: Leader, **more: object) -> AdmissionRequest:
    await leader.run_job(request := borrows(**more))  # type: ignore[arg-type]
    return request


async def queue_owner(leader: Leader) -> AdmissionRequest:
    """A guaranteed job of the owners in the queue, after one scheduling cycle."""
    store = leader.service.store
    request = wants("alice", gpus=8, team="owners")
    like = next(iter(store.records.values())).job

    def queue(transaction: Transaction) -> None:
        job = Job(request.job, "alice", "owners", transaction.now, request=like.request, template=like.template)
        job = replace(job, priority=10, state=JobState.QUEUED)
        transaction.write(JobRecord(job), EventReason.QUEUED)
        schedule_once(transaction)

    await store.transact(queue)
    return request


def schedule_once(transaction: Transaction) -> None:
    for job, found in admission.schedule(transaction.cluster_state, transaction.now):
        if isinstance(found, Preempt):
            preemption.issue_preemption(transaction, transaction.store.records[job.id], found)


def kinds(leader: Leader) -> list[NoticeKind]:
    """The kinds of bob's notices."""
    return [notice.kind for notice in leader.notices("bob")]


def pending(leader: Leader, request: AdmissionRequest, kind: NoticeKind) -> Notice:
    notice = leader.service.store.notices.pending((request.job, kind))
    assert notice is not None
    return notice


async def demote(harness: ManagerHarness, leader: Leader, request: AdmissionRequest) -> None:
    """Until the notice about the lowered quota is over, and the job is preemptible."""
    await until(lambda: kinds(leader) == [DEMOTED], "bob is told")
    harness.clock.moved += NOTICE
    await until(lambda: leader.record(request).job.preemptible, "it is preemptible")


async def test_notice_and_reservation_come_together_before_any_stop(
    harness: ManagerHarness, hub: StoppingHub, leader: Leader
) -> None:
    victim = await run_borrower(leader)
    owner = await queue_owner(leader)
    until_when, waits = leader.record(victim).job.notice, leader.record(owner)
    assert until_when is not None
    assert until_when - harness.clock() <= timedelta(seconds=60)
    assert (waits.job.state, waits.job.nodes) == (JobState.QUEUED, ("gpu-1",))
    sentence = leader.service.explainer.explain(waits).sentence
    assert re.search(r"told to leave (at \d\d:\d\d UTC, in 1|in less than a) minute\.$", sentence)
    assert kinds(leader) == [WARNED]
    text = pending(leader, victim, WARNED).text
    assert text.endswith("will be stopped {when}. It does not restart automatically; files are kept.")
    assert (await leader.reasons(victim))[-1] == "preemption-notice"
    assert hub.asked == []


async def test_notice_stop_and_requeue_happen_once_across_managers(harness: ManagerHarness, hub: StoppingHub) -> None:
    async with harness.manager() as leader:
        victim = await run_borrower(leader, requeue=True)
        submitted = leader.record(victim).job.submitted
        owner = await queue_owner(leader)
    async with harness.manager() as leader:
        assert kinds(leader) == [WARNED]
        hub.ignores_stops = True
        harness.clock.moved += NOTICE
        await leader.until_state(victim, JobState.STOPPING)
        await leader.settled()
    hub.ignores_stops = False
    async with harness.manager() as leader:
        await leader.until_state(victim, JobState.QUEUED)
        after = leader.record(victim).job
        assert (after.submitted, after.preemptible, after.nodes) == (submitted, True, ())
        await until(lambda: not kinds(leader), "the notice is over")
        await leader.settled()
    async with harness.manager() as leader:
        await leader.until_state(owner, JobState.STARTING)
        assert (await leader.reasons(victim))[-3:] == ["preemption-notice", "preempted", "requeued"]
        assert (await leader.reasons(owner)) == ["queued", "nodes-reserved", "scheduled"]


async def test_victim_that_takes_long_to_start_runs_for_the_minimum_time(harness: ManagerHarness) -> None:
    configure(harness.folder, min_run=600)
    async with harness.manager() as leader:
        victim = borrows()
        assert (await leader.ask(victim)).decision == "admit"
        pod = await harness.make_pod(victim)
        await until(lambda: not leader.record(victim).reserved, "the pod is seen")
        owner = await queue_owner(leader)
        assert kinds(leader) == [WARNED]
        harness.clock.moved += timedelta(seconds=650)
        await harness.bind(pod)
        await leader.until_state(victim, JobState.RUNNING)
        harness.clock.moved += timedelta(seconds=30)

        def has_minimum_time() -> bool:
            job = leader.record(victim).job
            return job.started is not None and job.notice == job.started + timedelta(seconds=600)

        await until(has_minimum_time, "it has its minimum time")
        assert pending(leader, victim, WARNED).until == leader.record(victim).job.notice
        assert leader.record(owner).job.reserved


async def test_victim_goes_on_and_is_told_when_its_node_cannot_be_had_any_more(
    harness: ManagerHarness, hub: StoppingHub, leader: Leader
) -> None:
    victim, owner = await run_borrower(leader), await queue_owner(leader)
    await harness.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": True}})
    await until(lambda: kinds(leader) == [SPARED], "it is told")
    harness.clock.moved += NOTICE
    assert (await leader.reasons(victim))[-2:] == ["preemption-notice", "preemption-cancelled"]
    assert (await leader.reasons(owner))[-1] == "reservation-lost"
    assert leader.state(victim) is JobState.RUNNING
    assert hub.asked == []


async def test_job_that_the_hub_has_refused_gets_no_other_victims(
    harness: ManagerHarness, hub: StoppingHub, leader: Leader
) -> None:
    victim, owner = await run_borrower(leader), await queue_owner(leader)

    hub.servers = {("alice", ""), ("bob", ""), ("carol", "")}
    hub.refuses(HubRejected(400, "The image is not allowed."))
    harness.clock.moved += NOTICE
    await leader.until_state(victim, JobState.ENDED)
    harness.clock.moved += timedelta(seconds=10)
    await until(lambda: len(hub.started) >= 2, "the Hub has refused the start twice")
    await leader.until_state(owner, JobState.QUEUED)
    second = await run_borrower(leader, user="carol")
    for _ in range(3):
        harness.clock.moved += timedelta(minutes=2)
        await asyncio.sleep(0.3)
    assert "preemption-notice" not in await leader.reasons(second)
    assert leader.state(owner) is JobState.QUEUED


# Quota that is lowered and raised


async def test_lowered_quota_demotes_the_newest_job_which_goes_on(
    harness: ManagerHarness, hub: StoppingHub, leader: Leader
) -> None:
    old, new = (
        borrows("ann", 4, team="owners", preemptible=False),
        borrows(gpus=4, team="owners", preemptible=False),
    )
    for request in (old, new):
        await leader.run_job(request)
    set_quotas(harness, owners=4, others=0)
    await until(lambda: kinds(leader) == [DEMOTED], "bob is told")
    assert not leader.record(new).job.preemptible
    await demote(harness, leader, new)
    assert not leader.record(old).job.preemptible
    assert (leader.state(new), hub.asked) == (JobState.RUNNING, [])
    assert (await leader.reasons(new))[-2:] == ["quota-lowered", "turned-preemptible"]


@pytest.mark.parametrize(
    ("teams", "why"),
    [
        (TEAMS % (8, 0), "team's quota was lowered"),
        ("teams: {owners: {quota: {gpu: 8}}}", "team “others” was removed"),
    ],
)
async def test_demoted_job_that_is_preempted_has_the_reason_in_notices_and_sentence(
    harness: ManagerHarness, teams: str, why: str
) -> None:
    set_quotas(harness, owners=0, others=8)
    async with harness.manager() as leader:
        request = await run_borrower(leader, preemptible=False)
        (harness.folder / "teams.yaml").write_text(teams)
        await until(lambda: kinds(leader) == [DEMOTED], "bob is told")
        text = pending(leader, request, DEMOTED).text
        assert text == f"Your {why}: the job keeps running and becomes preemptible {{when}}."
        await demote(harness, leader, request)
        await queue_owner(leader)
        assert f"preemptible since your {why}" in pending(leader, request, WARNED).text
        harness.clock.moved += NOTICE
        await leader.until_state(request, JobState.ENDED)
        assert f"preemptible since your {why}" in (await leader.stop_of(request)).message


async def test_quota_that_is_raised_again_in_time_changes_nothing(harness: ManagerHarness, leader: Leader) -> None:
    request = await run_borrower(leader, team="owners", preemptible=False)
    set_quotas(harness, owners=4, others=0)
    await until(lambda: kinds(leader) == [DEMOTED], "bob is told")
    set_quotas(harness, owners=8, others=0)
    await until(lambda: kinds(leader) == [SPARED], "it is withdrawn")
    harness.clock.moved += NOTICE
    await leader.settled()
    assert not leader.record(request).job.preemptible


async def test_demoted_job_is_guaranteed_again_when_the_quota_is_raised(harness: ManagerHarness) -> None:
    async with harness.manager() as leader:
        request = await run_borrower(leader, team="owners", preemptible=False)
        set_quotas(harness, owners=4, others=0)
        await demote(harness, leader, request)
        notice = pending(leader, request, DEMOTED)
        assert (notice.until, "is preemptible now" in notice.text) == (None, True)
    set_quotas(harness, owners=8, others=0)
    async with harness.manager() as leader:
        await until(lambda: kinds(leader) == [SPARED], "it is told")
        job = leader.record(request).job
        assert (job.preemptible, job.notice) == (False, None)
        assert (await leader.reasons(request))[-3:] == ["quota-lowered", "turned-preemptible", "guaranteed-again"]


async def test_first_quota_makes_no_running_job_preemptible(harness: ManagerHarness) -> None:
    """Neither one that the Hub made without asking, nor one that was admitted when there were only caps."""
    (harness.folder / "teams.yaml").write_text("teams: {others: {user_caps: {hard: 8}}}")
    adopted = borrows("ann", 4, preemptible=False)
    await harness.bind(await harness.make_pod(adopted))
    async with harness.manager() as leader:
        capped = await run_borrower(leader, gpus=4, preemptible=False)
        await until(lambda: leader.state(adopted) is JobState.RUNNING, "it is adopted")
        set_quotas(harness, owners=8, others=0)
        await until(lambda: leader.service.store.cluster_state.teams.has_quota, "the files are read")
    async with harness.manager() as leader:
        owner = await queue_owner(leader)
        for _ in range(3):
            await leader.transact(preemption.reconcile_preemptions)
            await leader.transact(schedule_once)
            for request in (adopted, capped):
                job = leader.record(request).job
                assert (job.preemptible, job.notice, job.state) == (False, None, JobState.RUNNING)
                assert leader.record(request).demote_at is None
            harness.clock.moved += NOTICE
        assert leader.notices("ann") == leader.notices("bob") == []
        assert leader.state(owner) is JobState.QUEUED


# Reasons for a notice although GPUs are idle


async def test_victim_reads_that_idle_gpus_are_kept_for_other_teams(harness: ManagerHarness) -> None:
    await harness.make_node("gpu-2")
    quotas = "teams: {owners: {quota: {gpu: 8}}, third: {quota: {gpu: 8}}, others: {quota: {gpu: 0}}}"
    (harness.folder / "teams.yaml").write_text(quotas)
    async with harness.manager() as leader:
        victim = await run_borrower(leader)
        assert leader.record(victim).job.nodes == ("gpu-1",), "the share of the owners"
        await queue_owner(leader)
        assert "Idle GPUs elsewhere are kept for other teams" in pending(leader, victim, WARNED).text
