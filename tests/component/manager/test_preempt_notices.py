"""Who has to leave: notice and promise together, then the stop or the all-clear, each once, whoever acts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dlspawner.clients.hub import HubRejected
from dlspawner.clients.kubernetes import NODES, KubernetesClient
from dlspawner.core.decisions import Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission
from dlspawner.devcluster.api import start
from dlspawner.manager.admission import preemption, scheduler
from dlspawner.manager.cluster import termination
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import NoticeKind, Recipient
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.leaving import StoppingHub
from tests.component.manager.manager_harness import Office, ask, make_namespace, prepare, until, wants

TEAMS = """teams:
  owners: {title: Owners, quota: {gpu: %d}, preempt_within_team: %s}
  others: {title: Others, quota: {gpu: 0}}
"""
SCHEDULING = "scheduling: {notice_seconds: 60, min_run_seconds: %d}\n"
NOTICE = timedelta(seconds=61)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(preemption, "_EVERY_SECONDS", 0.02)


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    api = await start(tmp_path / "cluster", 0)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    prepare(tmp_path)
    configure(tmp_path)
    async with await KubernetesClient.connect(api.kubeconfig) as cluster:
        await make_namespace(cluster)
        made = Office(tmp_path, f"sqlite:///{tmp_path / 'manager.sqlite'}", cluster, hub=StoppingHub(cluster=cluster))
        await made.make_node()
        yield made
    await api.stop()


def configure(folder: Path, owned: int = 8, min_run: int = 0, preempt_within_team: bool = False) -> None:
    cluster = (folder / "cluster.yaml").read_text().partition("scheduling:")[0]
    (folder / "cluster.yaml").write_text(cluster + SCHEDULING % min_run)
    (folder / "teams.yaml").write_text(TEAMS % (owned, str(preempt_within_team).lower()))


def hub_of(office: Office) -> StoppingHub:
    assert isinstance(office.hub, StoppingHub)
    return office.hub


def job_of(acting: LeaderElector, job: str) -> Job | None:
    found = acting.admission.store.records.get(job) if acting.admission else None
    return found.job if found else None


def state(acting: LeaderElector, job: str) -> JobState | None:
    found = job_of(acting, job)
    return found.state if found else None


async def settle(acting: LeaderElector) -> None:
    """What is known by now is written down before this returns."""
    assert acting.admission is not None
    await acting.admission.store.transact(lambda _: None)


async def reasons(acting: LeaderElector, job: str) -> list[str]:
    await settle(acting)
    return [reason for _, _, reason in await acting.ledger.events(job)]


async def lend(office: Office, acting: LeaderElector, user: str = "bob", gpus: int = 8, **more: object) -> str:
    """A job that runs: preemptible and of another team unless something else is said."""
    asked = {"team": "others", "preemptible": True, **more}
    question = wants(user, gpus=gpus, **asked)
    assert (await ask(acting, question)).decision == "admit"
    await office.bind(await office.make_pod(question))
    await until(lambda: state(acting, question.job) is JobState.RUNNING, "it runs")
    return question.job


async def wait_for_owner(acting: LeaderElector, priority: int = 10) -> str:
    """An owner's job in the queue, after one pass."""
    assert acting.admission is not None
    book = acting.admission.store
    question = wants("alice", gpus=8, team="owners")
    like = next(iter(book.records.values())).job

    def queue(turn: Transaction) -> None:
        job = replace(
            like,
            **{"id": question.job, "user": "alice", "server": "", "team": "owners", "submitted": turn.now},
            **{"state": JobState.QUEUED, "started": None, "nodes": (), "preemptible": False, "priority": priority},
            **{"requeue": False, "notice": None},
        )
        turn.write(JobRecord(job), EventReason.QUEUED)
        one_pass(turn)

    await book.transact(queue)
    return question.job


def one_pass(turn: Transaction) -> list[str]:
    """What the queue does in its turn."""
    given = []
    for job, found in admission.schedule(turn.cluster_state, turn.now):
        record = turn.store.records[job.id]
        if isinstance(found, Preempt):
            preemption.issue_preemption(turn, record, found)
        else:
            starting = replace(job, state=JobState.STARTING, nodes=tuple(found.nodes))
            turn.write(replace(record, job=starting, deadline=turn.now + timedelta(minutes=1)), EventReason.SCHEDULED)
            given.append(job.id)
    return given


async def cancel(acting: LeaderElector, job: str) -> None:
    assert acting.admission is not None

    def end(turn: Transaction) -> None:
        record = turn.store.records[job]
        turn.write(replace(record, job=replace(record.job, state=JobState.ENDED)), EventReason.CANCELLED)

    await acting.admission.store.transact(end)


def told(office: Office, acting: LeaderElector, user: str = "bob") -> list[NoticeKind]:
    assert acting.admission is not None
    return [notice.kind for notice in acting.admission.store.notices.read(Recipient(user=user), office.clock())]


async def test_notice_and_promise_come_together_and_nobody_is_stopped_before_the_time(office: Office) -> None:
    async with office.manager() as acting:
        victim = await lend(office, acting)
        owner = await wait_for_owner(acting)
        leaves, waits = job_of(acting, victim), job_of(acting, owner)
        assert leaves is not None
        assert waits is not None
        assert leaves.notice is not None
        assert leaves.notice - office.clock() <= timedelta(seconds=60)
        assert (waits.state, waits.nodes) == (JobState.QUEUED, ("gpu-1",))
        assert acting.admission is not None
        said = acting.admission.explainer.explain(acting.admission.store.records[owner]).sentence
        assert re.search(r"told to leave (at \d\d:\d\d UTC, in 1|in less than a) minute\.$", said)
        notice = acting.admission.store.notices.pending((victim, NoticeKind.PREEMPTED))
        assert notice is not None
        assert notice.text.endswith("has to leave {when}. It does not start again by itself; files stay.")
        assert told(office, acting) == [NoticeKind.PREEMPTED]
        assert (await reasons(acting, victim))[-1] == "preemption-notice"
        assert hub_of(office).asked == []


async def test_a_pass_makes_only_so_many_promises_and_the_next_one_follows_at_once(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_PROMISES", 1)
    monkeypatch.setattr(scheduler, "_EVERY_SECONDS", 600)
    async with office.manager() as acting:
        for number in range(4):
            await lend(office, acting, f"b{number}", gpus=2)
        assert acting.admission is not None
        book, together = acting.admission.store, list[int]()
        book.subscribers.append(lambda entries: together.append(sum(one.reason == "nodes-reserved" for one in entries)))
        like = next(iter(book.records.values())).job

        def crowd(turn: Transaction) -> None:
            for number in range(4):
                job = replace(like, id=f"o{number}", user=f"o{number}", team="owners", preemptible=False)
                waits = replace(job, submitted=turn.now, state=JobState.QUEUED, started=None, nodes=())
                turn.write(JobRecord(waits), EventReason.QUEUED)
            book.capacity_changed.set()

        await book.transact(crowd)
        await until(lambda: sum(together) == 4, "all have their promises")
        assert max(together) == 1


async def test_when_the_notice_is_over_the_victim_is_stopped_and_the_owner_starts(office: Office) -> None:
    async with office.manager() as acting:
        victim, owner = await lend(office, acting), await wait_for_owner(acting)
        office.clock.moved += NOTICE
        await until(lambda: state(acting, victim) is None, "it has ended")
        assert acting.admission is not None
        await until(lambda: state(acting, owner) is JobState.STARTING, "its turn has come")
        assert (await reasons(acting, victim))[-3:] == ["preemption-notice", "preempted", "gone"]
        assert hub_of(office).asked == [("bob", "")]
        ended = await acting.ledger.find(victim)
        assert ended is not None
        assert ended.stop is not None
        assert "a team needed its GPUs back: start it again" in ended.stop.message


async def test_who_has_not_run_for_long_is_told_at_once_and_has_that_time_before_its_notice(office: Office) -> None:
    configure(office.folder, min_run=600)
    async with office.manager() as acting:
        victim, owner = await lend(office, acting), await wait_for_owner(acting)
        found, waits = job_of(acting, victim), job_of(acting, owner)
        assert found is not None
        assert waits is not None
        assert found.started is not None
        assert found.notice == found.started + timedelta(seconds=660)
        assert waits.nodes == ("gpu-1",)
        office.clock.moved += timedelta(seconds=630)
        await settle(acting)
        assert state(acting, victim) is JobState.RUNNING
        office.clock.moved += timedelta(seconds=31)
        await until(lambda: state(acting, victim) is None, "it has ended")


async def test_who_takes_long_to_start_runs_for_the_minimum_time_all_the_same(office: Office) -> None:
    configure(office.folder, min_run=600)
    async with office.manager() as acting:
        question = wants("bob", gpus=8, team="others", preemptible=True)
        assert (await ask(acting, question)).decision == "admit"
        pod = await office.make_pod(question)
        assert acting.admission is not None
        book = acting.admission.store
        await until(lambda: not book.records[question.job].reserved, "the pod is seen")
        owner = await wait_for_owner(acting)
        assert told(office, acting) == [NoticeKind.PREEMPTED]
        office.clock.moved += timedelta(seconds=650)
        await office.bind(pod)
        await until(lambda: state(acting, question.job) is JobState.RUNNING, "it runs")
        office.clock.moved += timedelta(seconds=30)

        def moved() -> bool:
            found = job_of(acting, question.job)
            return (
                found is not None
                and found.notice is not None
                and found.started is not None
                and (found.notice == found.started + timedelta(seconds=600))
            )

        await until(moved, "it has its minimum time")
        notice = book.notices.pending((question.job, NoticeKind.PREEMPTED))
        found = job_of(acting, question.job)
        assert notice is not None
        assert found is not None
        assert notice.until == found.notice
        assert (waits := job_of(acting, owner)) is not None
        assert waits.reserved


async def test_a_guaranteed_job_never_leaves_for_another_team(office: Office) -> None:
    (office.folder / "teams.yaml").write_text(
        "teams: {owners: {quota: {gpu: 8}, preempt_within_team: true}, others: {quota: {gpu: 8}}}"
    )
    async with office.manager() as acting:
        other = await lend(office, acting, preemptible=False)
        await wait_for_owner(acting, priority=1000)
        found = job_of(acting, other)
        assert found is not None
        assert found.notice is None


@pytest.mark.parametrize("opted_in", [True, False])
async def test_within_a_team_a_guaranteed_job_leaves_only_where_the_team_has_opted_in(
    office: Office, opted_in: bool
) -> None:
    configure(office.folder, preempt_within_team=opted_in)
    async with office.manager() as acting:
        mine = await lend(office, acting, team="owners", preemptible=False)
        await wait_for_owner(acting, priority=100)
        found = job_of(acting, mine)
        assert found is not None
        assert (found.notice is not None) == opted_in


async def test_who_is_not_needed_any_more_goes_on_and_is_told(office: Office) -> None:
    async with office.manager() as acting:
        victim, owner = await lend(office, acting), await wait_for_owner(acting)
        await cancel(acting, owner)
        await until(lambda: told(office, acting) == [NoticeKind.PREEMPTION_CANCELLED], "the all-clear")
        office.clock.moved += NOTICE
        await settle(acting)
        assert (await reasons(acting, victim))[-2:] == ["preemption-notice", "preemption-cancelled"]
        assert state(acting, victim) is JobState.RUNNING
    assert hub_of(office).asked == []


async def test_job_that_the_hub_has_refused_gets_no_other_victims(office: Office) -> None:
    async with office.manager() as acting:
        victim, owner = await lend(office, acting), await wait_for_owner(acting)

        async def refuses(_user: str, _server: str) -> None:
            raise HubRejected(400, "The image is not allowed.")

        office.hub.servers, office.hub.starts = {("alice", ""), ("bob", ""), ("carol", "")}, refuses
        office.clock.moved += NOTICE
        await until(lambda: state(acting, victim) is None, "it has ended")
        office.clock.moved += timedelta(seconds=10)
        await until(lambda: len(office.hub.started) >= 2, "the Hub has refused the start twice")
        await until(lambda: state(acting, owner) is JobState.QUEUED, "it keeps its place")
        second = await lend(office, acting, "carol")
        for _ in range(3):
            office.clock.moved += timedelta(minutes=2)
            await asyncio.sleep(0.3)
        assert "preemption-notice" not in await reasons(acting, second)
        assert state(acting, owner) is JobState.QUEUED


async def test_others_leave_for_a_job_whose_start_waits_for_nothing_else(office: Office) -> None:
    """The Hub would start it: it is its spawner that asks in vain as long as they are there."""
    async with office.manager() as acting:
        victim, owner = await lend(office, acting), await wait_for_owner(acting)

        async def waits(_user: str, _server: str) -> None:
            raise HubRejected(429, "It is number 1 in the queue and starts by itself.")

        office.hub.servers, office.hub.starts = {("alice", ""), ("bob", "")}, waits
        office.clock.moved += NOTICE
        await until(lambda: state(acting, victim) is None, "it has ended")
        await until(lambda: state(acting, owner) is JobState.STARTING, "its turn has come")


async def test_nobody_is_stopped_for_a_place_on_a_node_that_is_closed_by_then(office: Office) -> None:
    async with office.manager() as acting:
        victim, owner = await lend(office, acting), await wait_for_owner(acting)
        await office.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": True}})

        async def spared() -> bool:
            return (await reasons(acting, victim))[-1] == "preemption-cancelled"

        await until(spared, "it is spared")
        waits = job_of(acting, owner)
        assert waits is not None
        assert waits.nodes == ()


async def test_who_asked_for_it_waits_again_at_the_old_place(office: Office) -> None:
    async with office.manager() as acting:
        victim = await lend(office, acting, requeue=True)
        before = job_of(acting, victim)
        await wait_for_owner(acting)
        office.clock.moved += NOTICE
        await until(lambda: state(acting, victim) is JobState.QUEUED, "it waits again")
        after = job_of(acting, victim)
        assert before is not None
        assert after is not None
        assert (after.submitted, after.preemptible, after.nodes) == (before.submitted, True, ())
        await until(lambda: not told(office, acting), "what was said of the stop is over")


async def test_a_lowered_quota_lets_the_newest_turn_preemptible_after_notice_and_go_on(office: Office) -> None:
    async with office.manager() as acting:
        old = await lend(office, acting, "ann", gpus=4, team="owners", preemptible=False)
        new = await lend(office, acting, "bob", gpus=4, team="owners", preemptible=False)
        configure(office.folder, owned=4)
        await until(lambda: told(office, acting) == [NoticeKind.QUOTA_LOWERED], "bob is told")
        found = job_of(acting, new)
        assert found is not None
        assert not found.preemptible
        office.clock.moved += NOTICE

        def turned() -> bool:
            job = job_of(acting, new)
            return job is not None and job.preemptible

        await until(turned, "it turns preemptible")
        first = job_of(acting, old)
        assert first is not None
        assert not first.preemptible
        assert (state(acting, new), hub_of(office).asked) == (JobState.RUNNING, [])
        assert (await reasons(acting, new))[-2:] == ["quota-lowered", "turned-preemptible"]


async def test_who_had_to_leave_after_a_quota_was_lowered_reads_that(office: Office) -> None:
    (office.folder / "teams.yaml").write_text("teams: {owners: {quota: {gpu: 0}}, others: {quota: {gpu: 8}}}")
    async with office.manager() as acting:
        job = await lend(office, acting, preemptible=False)
        configure(office.folder, owned=8)

        def turned() -> bool:
            found = job_of(acting, job)
            return found is not None and found.preemptible

        await until(lambda: told(office, acting) == [NoticeKind.QUOTA_LOWERED], "bob is told")
        office.clock.moved += NOTICE
        await until(turned, "it turns preemptible")
        await wait_for_owner(acting)
        assert acting.admission is not None
        notice = acting.admission.store.notices.pending((job, NoticeKind.PREEMPTED))
        assert notice is not None
        assert "preemptible since your team's quota was lowered" in notice.text
        office.clock.moved += NOTICE
        await until(lambda: state(acting, job) is None, "it has ended")
        ended = await acting.ledger.find(job)
        assert ended is not None
        assert ended.stop is not None
        assert "preemptible since your team's quota was lowered" in ended.stop.message


async def test_who_is_of_a_team_that_was_removed_reads_that_and_is_told_that_the_place_in_the_queue_is_in_vain(
    office: Office,
) -> None:
    (office.folder / "teams.yaml").write_text("teams: {owners: {quota: {gpu: 0}}, others: {quota: {gpu: 8}}}")
    async with office.manager() as acting:
        job = await lend(office, acting, preemptible=False, requeue=True)
        (office.folder / "teams.yaml").write_text("teams: {owners: {quota: {gpu: 8}}}")
        await until(lambda: told(office, acting) == [NoticeKind.QUOTA_LOWERED], "bob is told")
        assert acting.admission is not None
        board = acting.admission.store.notices
        assert (notice := board.pending((job, NoticeKind.QUOTA_LOWERED))) is not None
        assert notice.text.startswith("Your team “others” was removed: the job goes on")
        office.clock.moved += NOTICE
        await until(lambda: (found := job_of(acting, job)) is not None and found.preemptible, "it turns preemptible")
        await wait_for_owner(acting)
        assert (notice := board.pending((job, NoticeKind.PREEMPTED))) is not None
        assert "preemptible since your team “others” was removed" in notice.text
        office.clock.moved += NOTICE
        await until(lambda: state(acting, job) is JobState.QUEUED, "it waits again")
        await until(lambda: told(office, acting) == [NoticeKind.CANNOT_START], "bob is told that it waits in vain")


async def test_switching_quota_on_makes_nobody_preemptible_who_runs(office: Office) -> None:
    """Neither a job that the Hub made without asking, nor one that was admitted when there were only caps."""
    (office.folder / "teams.yaml").write_text("teams: {others: {user_caps: {hard: 8}}}")
    before = wants("ann", gpus=4, team="others")
    await office.bind(await office.make_pod(before))
    async with office.manager() as acting:
        capped = await lend(office, acting, gpus=4, preemptible=False)
        await until(lambda: state(acting, before.job) is JobState.RUNNING, "it is adopted")
        configure(office.folder)
        assert acting.admission is not None
        book = acting.admission.store
        await until(lambda: book.cluster_state.teams.has_quota, "the files are read")
    async with office.manager() as acting:
        owner = await wait_for_owner(acting)
        for _ in range(3):
            assert acting.admission is not None
            await acting.admission.store.transact(preemption.reconcile_preemptions)
            await acting.admission.store.transact(one_pass)
            for job in (before.job, capped):
                found = job_of(acting, job)
                assert found is not None
                assert (found.preemptible, found.notice, found.state) == (False, None, JobState.RUNNING)
                assert acting.admission.store.records[job].demote_at is None
            office.clock.moved += NOTICE
        assert told(office, acting) == told(office, acting, "ann") == []
        assert state(acting, owner) is JobState.QUEUED


async def test_a_quota_that_is_raised_again_in_time_changes_nothing(office: Office) -> None:
    async with office.manager() as acting:
        job = await lend(office, acting, team="owners", preemptible=False)
        configure(office.folder, owned=4)
        await until(lambda: told(office, acting) == [NoticeKind.QUOTA_LOWERED], "bob is told")
        configure(office.folder, owned=8)
        await until(lambda: told(office, acting) == [NoticeKind.PREEMPTION_CANCELLED], "the all-clear")
        office.clock.moved += NOTICE
        await settle(acting)
        found = job_of(acting, job)
        assert found is not None
        assert not found.preemptible


async def test_who_turned_preemptible_is_guaranteed_again_when_the_quota_is_raised(office: Office) -> None:
    async with office.manager() as acting:
        job = await lend(office, acting, team="owners", preemptible=False)
        configure(office.folder, owned=4)
        await until(lambda: told(office, acting) == [NoticeKind.QUOTA_LOWERED], "bob is told")
        office.clock.moved += NOTICE
        await until(lambda: (found := job_of(acting, job)) is not None and found.preemptible, "it turns preemptible")
        assert acting.admission is not None
        notice = acting.admission.store.notices.pending((job, NoticeKind.QUOTA_LOWERED))
        assert notice is not None
        assert (notice.until, "is preemptible now" in notice.text) == (None, True)
    configure(office.folder, owned=8)
    async with office.manager() as acting:
        await until(lambda: told(office, acting) == [NoticeKind.PREEMPTION_CANCELLED], "the all-clear")
        found = job_of(acting, job)
        assert found is not None
        assert (found.preemptible, found.notice) == (False, None)
        assert (await reasons(acting, job))[-3:] == ["quota-lowered", "turned-preemptible", "guaranteed-again"]


async def test_who_has_notice_for_another_team_s_job_is_guaranteed_again_and_stays(office: Office) -> None:
    """Quota moves from one team to the other and back before anybody was stopped."""
    teams = "teams: {{owners: {{quota: {{gpu: {}}}}}, others: {{quota: {{gpu: {}}}}}}}"
    (office.folder / "teams.yaml").write_text(teams.format(0, 8))
    async with office.manager() as acting:
        job = await lend(office, acting, preemptible=False)
        (office.folder / "teams.yaml").write_text(teams.format(8, 0))
        await until(lambda: told(office, acting) == [NoticeKind.QUOTA_LOWERED], "bob is told")
        office.clock.moved += NOTICE
        await until(lambda: (found := job_of(acting, job)) is not None and found.preemptible, "it turns preemptible")
        owner = await wait_for_owner(acting)
        assert NoticeKind.PREEMPTED in told(office, acting)
        (office.folder / "teams.yaml").write_text(teams.format(0, 8))
        await until(lambda: told(office, acting) == [NoticeKind.PREEMPTION_CANCELLED], "the all-clear")
        office.clock.moved += NOTICE
        await settle(acting)
        found, waits = job_of(acting, job), job_of(acting, owner)
        assert found is not None
        assert waits is not None
        assert (found.preemptible, found.notice, found.state) == (False, None, JobState.RUNNING)
        assert (waits.state, waits.reserved) == (JobState.QUEUED, False)


async def test_notice_stop_and_requeue_happen_once_though_every_step_has_another_manager(office: Office) -> None:
    async with office.manager() as acting:
        victim = await lend(office, acting, requeue=True)
        owner = await wait_for_owner(acting)
    async with office.manager() as acting:
        assert told(office, acting) == [NoticeKind.PREEMPTED]
        hub_of(office).deaf = True
        office.clock.moved += NOTICE
        await until(lambda: state(acting, victim) is JobState.STOPPING, "its stop is decided")
        await settle(acting)
    hub_of(office).deaf = False
    async with office.manager() as acting:
        await until(lambda: state(acting, victim) is JobState.QUEUED, "it waits again")
        await settle(acting)
    async with office.manager() as acting:
        assert acting.admission is not None
        await until(lambda: state(acting, owner) is JobState.STARTING, "its turn has come")
        assert (await reasons(acting, victim))[-3:] == ["preemption-notice", "preempted", "requeued"]
        assert (await reasons(acting, owner)) == ["queued", "nodes-reserved", "scheduled"]


async def test_who_has_to_leave_although_others_are_idle_reads_why(office: Office) -> None:
    await office.make_node("gpu-2")
    both = "teams:\n  owners: {quota: {gpu: 8}}\n  third: {quota: {gpu: 8}}\n  others: {quota: {gpu: 0}}\n"
    (office.folder / "teams.yaml").write_text(both)
    async with office.manager() as acting:
        assert acting.admission is not None
        victim = await lend(office, acting)
        assert (found := job_of(acting, victim)) is not None
        assert found.nodes == ("gpu-1",), "the share of the owners"
        await wait_for_owner(acting)
        (notice,) = acting.admission.store.notices.read(Recipient(user="bob"), office.clock())
    assert notice.kind is NoticeKind.PREEMPTED
    assert "Idle GPUs elsewhere are kept for other teams" in notice.text


async def test_who_has_to_leave_although_more_of_that_team_is_idle_reads_why(office: Office) -> None:
    await office.make_node("gpu-2")
    (office.folder / "teams.yaml").write_text("teams:\n  owners: {quota: {gpu: 16}}\n  others: {quota: {gpu: 0}}\n")
    async with office.manager() as acting:
        assert acting.admission is not None
        await lend(office, acting, "ann", gpus=4, team="owners", preemptible=False)
        elsewhere = await lend(office, acting, "dan", gpus=8)
        victim = await lend(office, acting, gpus=4)
        await cancel(acting, elsewhere)
        wanted = wants("eve", gpus=1, team="owners")
        await ask(acting, wanted)
        await acting.admission.store.transact(one_pass)
        found = acting.admission.store.notices.read(Recipient(user="bob"), office.clock())
        assert [(one.kind, one.job) for one in found] == [(NoticeKind.PREEMPTED, victim)]
        assert "stay together, for larger jobs of it" in found[0].text
