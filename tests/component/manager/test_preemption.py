"""Preemption: notice and reservation together, then the stop or its cancellation, each once across Managers."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dlspawner.clients.hub import HubRejected
from dlspawner.core.decisions import Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission
from dlspawner.manager.admission import preemption
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.cluster import termination
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import Notice, NoticeKind
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import Office, ask, settled, until, wants
from tests.component.manager.queue_helpers import (
    notices,
    reasons,
    record,
    run_job,
    service,
    state,
    until_state,
)
from tests.component.manager.stopping_hub import StoppingHub

TEAMS = "teams: {owners: {title: Owners, quota: {gpu: %d}}, others: {title: Others, quota: {gpu: %d}}}\n"
NOTICE = timedelta(seconds=61)
DEMOTED, WARNED, SPARED = NoticeKind.QUOTA_LOWERED, NoticeKind.PREEMPTED, NoticeKind.PREEMPTION_CANCELLED


@pytest.fixture
def hub(office: Office, monkeypatch: pytest.MonkeyPatch) -> StoppingHub:
    """The Hub of an office where all GPUs belong to the team *owners*."""
    monkeypatch.setattr(termination, "_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(preemption, "_EVERY_SECONDS", 0.02)
    configure(office.folder)
    set_quotas(office, owners=8, others=0)
    office.hub = made = StoppingHub(cluster=office.cluster)
    return made


def configure(folder: Path, min_run: int = 0) -> None:
    cluster = (folder / "cluster.yaml").read_text().partition("scheduling:")[0]
    scheduling = f"scheduling: {{notice_seconds: 60, min_run_seconds: {min_run}}}\n"
    (folder / "cluster.yaml").write_text(cluster + scheduling)


def set_quotas(office: Office, owners: int, others: int) -> None:
    (office.folder / "teams.yaml").write_text(TEAMS % (owners, others))


def borrows(user: str = "bob", gpus: int = 8, **more: object) -> AdmissionRequest:
    return wants(user, gpus=gpus, **{"team": "others", "preemptible": True, **more})


async def run_borrower(office: Office, leader: LeaderElector, **more: object) -> AdmissionRequest:
    await run_job(office, leader, request := borrows(**more))  # type: ignore[arg-type]
    return request


async def queue_owner(leader: LeaderElector) -> AdmissionRequest:
    """A guaranteed job of the owners in the queue, after one scheduling cycle."""
    store = service(leader).store
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


async def end_job(leader: LeaderElector, request: AdmissionRequest) -> None:
    def end(transaction: Transaction) -> None:
        found = record(leader, request)
        transaction.write(replace(found, job=replace(found.job, state=JobState.ENDED)), EventReason.CANCELLED)

    await service(leader).store.transact(end)


def kinds(leader: LeaderElector) -> list[NoticeKind]:
    """The kinds of bob's notices."""
    return [notice.kind for notice in notices(leader, "bob")]


def pending(leader: LeaderElector, request: AdmissionRequest, kind: NoticeKind) -> Notice:
    notice = service(leader).store.notices.pending((request.job, kind))
    assert notice is not None
    return notice


async def demote(office: Office, leader: LeaderElector, request: AdmissionRequest) -> None:
    """Until the notice about the lowered quota is over, and the job is preemptible."""
    await until(lambda: kinds(leader) == [DEMOTED], "bob is told")
    office.clock.moved += NOTICE
    await until(lambda: record(leader, request).job.preemptible, "it is preemptible")


async def stop_sentence(leader: LeaderElector, request: AdmissionRequest) -> str:
    ended = await leader.ledger.find(request.job)
    assert ended is not None
    assert ended.stop is not None
    return ended.stop.message


async def test_notice_and_reservation_come_together_and_no_stop_before_the_time(
    office: Office, hub: StoppingHub
) -> None:
    async with office.manager() as leader:
        victim = await run_borrower(office, leader)
        owner = await queue_owner(leader)
        until_when, waits = record(leader, victim).job.notice, record(leader, owner)
        assert until_when is not None
        assert until_when - office.clock() <= timedelta(seconds=60)
        assert (waits.job.state, waits.job.nodes) == (JobState.QUEUED, ("gpu-1",))
        sentence = service(leader).explainer.explain(waits).sentence
        assert re.search(r"told to leave (at \d\d:\d\d UTC, in 1|in less than a) minute\.$", sentence)
        assert kinds(leader) == [WARNED]
        text = pending(leader, victim, WARNED).text
        assert text.endswith("has to leave {when}. It does not start again by itself; files stay.")
        assert (await reasons(leader, victim))[-1] == "preemption-notice"
        assert hub.asked == []


async def test_after_the_notice_the_victim_is_stopped_and_the_owner_starts(office: Office, hub: StoppingHub) -> None:
    async with office.manager() as leader:
        victim, owner = await run_borrower(office, leader), await queue_owner(leader)
        office.clock.moved += NOTICE
        await until_state(leader, victim, JobState.ENDED)
        await until_state(leader, owner, JobState.STARTING)
        assert (await reasons(leader, victim))[-3:] == ["preemption-notice", "preempted", "gone"]
        assert hub.asked == [("bob", "")]
        assert "a team needed its GPUs back: start it again" in await stop_sentence(leader, victim)


async def test_notice_stop_and_requeue_happen_once_though_every_step_has_another_manager(
    office: Office, hub: StoppingHub
) -> None:
    async with office.manager() as leader:
        victim = await run_borrower(office, leader, requeue=True)
        submitted = record(leader, victim).job.submitted
        owner = await queue_owner(leader)
    async with office.manager() as leader:
        assert kinds(leader) == [WARNED]
        hub.ignores_stops = True
        office.clock.moved += NOTICE
        await until_state(leader, victim, JobState.STOPPING)
        await settled(leader)
    hub.ignores_stops = False
    async with office.manager() as leader:
        await until_state(leader, victim, JobState.QUEUED)
        after = record(leader, victim).job
        assert (after.submitted, after.preemptible, after.nodes) == (submitted, True, ())
        await until(lambda: not kinds(leader), "the notice is over")
        await settled(leader)
    async with office.manager() as leader:
        await until_state(leader, owner, JobState.STARTING)
        assert (await reasons(leader, victim))[-3:] == ["preemption-notice", "preempted", "requeued"]
        assert (await reasons(leader, owner)) == ["queued", "nodes-reserved", "scheduled"]


async def test_victim_that_takes_long_to_start_runs_for_the_minimum_time(office: Office, hub: StoppingHub) -> None:
    configure(office.folder, min_run=600)
    async with office.manager() as leader:
        victim = borrows()
        assert (await ask(leader, victim)).decision == "admit"
        pod = await office.make_pod(victim)
        await until(lambda: not record(leader, victim).reserved, "the pod is seen")
        owner = await queue_owner(leader)
        assert kinds(leader) == [WARNED]
        office.clock.moved += timedelta(seconds=650)
        await office.bind(pod)
        await until_state(leader, victim, JobState.RUNNING)
        office.clock.moved += timedelta(seconds=30)

        def has_minimum_time() -> bool:
            job = record(leader, victim).job
            return job.started is not None and job.notice == job.started + timedelta(seconds=600)

        await until(has_minimum_time, "it has its minimum time")
        assert pending(leader, victim, WARNED).until == record(leader, victim).job.notice
        assert record(leader, owner).job.reserved


async def test_victim_that_is_not_needed_any_more_goes_on_and_is_told(office: Office, hub: StoppingHub) -> None:
    async with office.manager() as leader:
        victim, owner = await run_borrower(office, leader), await queue_owner(leader)
        await end_job(leader, owner)
        await until(lambda: kinds(leader) == [SPARED], "it is told")
        office.clock.moved += NOTICE
        assert (await reasons(leader, victim))[-2:] == ["preemption-notice", "preemption-cancelled"]
        assert state(leader, victim) is JobState.RUNNING
    assert hub.asked == []


async def test_job_that_the_hub_has_refused_gets_no_other_victims(office: Office, hub: StoppingHub) -> None:
    async with office.manager() as leader:
        victim, owner = await run_borrower(office, leader), await queue_owner(leader)

        async def refuses(_user: str, _server: str) -> None:
            raise HubRejected(400, "The image is not allowed.")

        hub.servers, hub.starts = {("alice", ""), ("bob", ""), ("carol", "")}, refuses
        office.clock.moved += NOTICE
        await until_state(leader, victim, JobState.ENDED)
        office.clock.moved += timedelta(seconds=10)
        await until(lambda: len(hub.started) >= 2, "the Hub has refused the start twice")
        await until_state(leader, owner, JobState.QUEUED)
        second = await run_borrower(office, leader, user="carol")
        for _ in range(3):
            office.clock.moved += timedelta(minutes=2)
            await asyncio.sleep(0.3)
        assert "preemption-notice" not in await reasons(leader, second)
        assert state(leader, owner) is JobState.QUEUED


# Quota that is lowered and raised


async def test_lowered_quota_demotes_the_newest_job_after_notice_and_it_goes_on(
    office: Office, hub: StoppingHub
) -> None:
    async with office.manager() as leader:
        old, new = (
            borrows("ann", 4, team="owners", preemptible=False),
            borrows(gpus=4, team="owners", preemptible=False),
        )
        for request in (old, new):
            await run_job(office, leader, request)
        set_quotas(office, owners=4, others=0)
        await until(lambda: kinds(leader) == [DEMOTED], "bob is told")
        assert not record(leader, new).job.preemptible
        await demote(office, leader, new)
        assert not record(leader, old).job.preemptible
        assert (state(leader, new), hub.asked) == (JobState.RUNNING, [])
        assert (await reasons(leader, new))[-2:] == ["quota-lowered", "turned-preemptible"]


@pytest.mark.parametrize("removed", [False, True], ids=["a lowered quota", "a removed team"])
async def test_demoted_job_that_is_preempted_has_the_reason_in_notice_and_sentence(
    office: Office, hub: StoppingHub, removed: bool
) -> None:
    set_quotas(office, owners=0, others=8)
    async with office.manager() as leader:
        request = await run_borrower(office, leader, preemptible=False, requeue=removed)
        why = "preemptible since your team's quota was lowered"
        if removed:
            (office.folder / "teams.yaml").write_text("teams: {owners: {quota: {gpu: 8}}}")
            why = "preemptible since your team “others” was removed"
        else:
            set_quotas(office, owners=8, others=0)
        await until(lambda: kinds(leader) == [DEMOTED], "bob is told")
        if removed:
            text = pending(leader, request, DEMOTED).text
            assert text.startswith("Your team “others” was removed: the job goes on")
        await demote(office, leader, request)
        await queue_owner(leader)
        assert why in pending(leader, request, WARNED).text
        office.clock.moved += NOTICE
        if removed:
            await until_state(leader, request, JobState.QUEUED)
            await until(lambda: kinds(leader) == [NoticeKind.CANNOT_START], "bob is told that it waits in vain")
        else:
            await until_state(leader, request, JobState.ENDED)
            assert why in await stop_sentence(leader, request)


async def test_quota_that_is_raised_again_in_time_changes_nothing(office: Office, hub: StoppingHub) -> None:
    async with office.manager() as leader:
        request = await run_borrower(office, leader, team="owners", preemptible=False)
        set_quotas(office, owners=4, others=0)
        await until(lambda: kinds(leader) == [DEMOTED], "bob is told")
        set_quotas(office, owners=8, others=0)
        await until(lambda: kinds(leader) == [SPARED], "it is withdrawn")
        office.clock.moved += NOTICE
        await settled(leader)
        assert not record(leader, request).job.preemptible


async def test_demoted_job_is_guaranteed_again_when_the_quota_is_raised(office: Office, hub: StoppingHub) -> None:
    async with office.manager() as leader:
        request = await run_borrower(office, leader, team="owners", preemptible=False)
        set_quotas(office, owners=4, others=0)
        await demote(office, leader, request)
        notice = pending(leader, request, DEMOTED)
        assert (notice.until, "is preemptible now" in notice.text) == (None, True)
    set_quotas(office, owners=8, others=0)
    async with office.manager() as leader:
        await until(lambda: kinds(leader) == [SPARED], "it is told")
        job = record(leader, request).job
        assert (job.preemptible, job.notice) == (False, None)
        assert (await reasons(leader, request))[-3:] == ["quota-lowered", "turned-preemptible", "guaranteed-again"]


async def test_first_quota_makes_no_running_job_preemptible(office: Office, hub: StoppingHub) -> None:
    """Neither one that the Hub made without asking, nor one that was admitted when there were only caps."""
    (office.folder / "teams.yaml").write_text("teams: {others: {user_caps: {hard: 8}}}")
    adopted = borrows("ann", 4, preemptible=False)
    await office.bind(await office.make_pod(adopted))
    async with office.manager() as leader:
        capped = await run_borrower(office, leader, gpus=4, preemptible=False)
        await until(lambda: state(leader, adopted) is JobState.RUNNING, "it is adopted")
        set_quotas(office, owners=8, others=0)
        await until(lambda: service(leader).store.cluster_state.teams.has_quota, "the files are read")
    async with office.manager() as leader:
        owner = await queue_owner(leader)
        for _ in range(3):
            await service(leader).store.transact(preemption.reconcile_preemptions)
            await service(leader).store.transact(schedule_once)
            for request in (adopted, capped):
                job = record(leader, request).job
                assert (job.preemptible, job.notice, job.state) == (False, None, JobState.RUNNING)
                assert record(leader, request).demote_at is None
            office.clock.moved += NOTICE
        assert notices(leader, "ann") == notices(leader, "bob") == []
        assert state(leader, owner) is JobState.QUEUED


# Reasons for a notice although GPUs are idle


async def test_victim_reads_that_idle_gpus_are_kept_for_other_teams(office: Office, hub: StoppingHub) -> None:
    await office.make_node("gpu-2")
    quotas = "teams: {owners: {quota: {gpu: 8}}, third: {quota: {gpu: 8}}, others: {quota: {gpu: 0}}}"
    (office.folder / "teams.yaml").write_text(quotas)
    async with office.manager() as leader:
        victim = await run_borrower(office, leader)
        assert record(leader, victim).job.nodes == ("gpu-1",), "the share of the owners"
        await queue_owner(leader)
        assert "Idle GPUs elsewhere are kept for other teams" in pending(leader, victim, WARNED).text


async def test_victim_reads_that_idle_gpus_of_the_team_stay_together(office: Office, hub: StoppingHub) -> None:
    await office.make_node("gpu-2")
    set_quotas(office, owners=16, others=0)
    async with office.manager() as leader:
        await run_borrower(office, leader, user="ann", gpus=4, team="owners", preemptible=False)
        elsewhere = await run_borrower(office, leader, user="dan", gpus=8)
        victim = await run_borrower(office, leader, gpus=4)
        await end_job(leader, elsewhere)
        await ask(leader, wants("eve", gpus=1, team="owners"))
        await service(leader).store.transact(schedule_once)
        assert "stay together, for larger jobs of it" in pending(leader, victim, WARNED).text
