"""A clock that is set, while a Manager acts or while none does: jobs are as old and as used as they were."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.culling.culler import Culler
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.state.job_store import Transaction
from tests.edges.test_manager.office import Office, ask, until, wants
from tests.edges.test_manager.queued import desk, record, state

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
TEAMS = "teams:\n  owners: {quota: {gpu: 8}}\n  default: {title: Everybody, quota: {gpu: 0}}\n"


async def runs(office: Office, acting: LeaderElector, question: AdmissionRequest) -> AdmissionRequest:
    assert (await ask(acting, question)).decision == "admit"
    await office.bind(await office.make_pod(question))
    await until(lambda: state(acting, question) is JobState.RUNNING, "it runs")
    return question


async def set_clock(office: Office, acting: LeaderElector, by: timedelta) -> None:
    """Until the Manager has noticed, and acts again."""
    before = acting.admission
    office.clock.jumped += by
    await until(lambda: acting.admission not in {None, before}, "another epoch")


def culler(acting: LeaderElector) -> Culler:
    assert acting.culler is not None
    return acting.culler


def told(acting: LeaderElector, question: AdmissionRequest) -> str | None:
    """What its owner reads about a job that is not used, or too old."""
    board = desk(acting).store.notices
    found = [board.pending((question.job, kind)) for kind in (NoticeKind.IDLE, NoticeKind.LIFETIME)]
    return next((notice.text for notice in found if notice is not None), None)


@pytest.mark.parametrize("limit", ["window_seconds: 14400", "lifetime_seconds: 86400"])
@pytest.mark.parametrize("by", [DAY, -DAY], ids=["forward", "back"])
async def test_who_has_used_a_young_job_lately_is_neither_warned_nor_stopped(
    office: Office, limit: str, by: timedelta
) -> None:
    with (office.folder / "cluster.yaml").open("a") as file:
        file.write(f"idle: {{{limit}, dry_run: false}}\n")
    async with office.manager() as acting:
        job = await runs(office, acting, wants(gpus=0))
        office.clock.moved += HOUR
        office.hub.servers, office.hub.used = {("alice", "")}, {("alice", ""): office.clock() - 10 * MINUTE}
        await set_clock(office, acting, by)
        for _ in range(3):
            await culler(acting).evaluate_all()
            assert told(acting, job) is None
            office.clock.moved += 31 * MINUTE
        assert state(acting, job) is JobState.RUNNING


async def test_who_was_warned_before_the_clock_was_set_is_warned_anew_when_it_is_time(office: Office) -> None:
    with (office.folder / "cluster.yaml").open("a") as file:
        file.write("idle: {window_seconds: 14400, dry_run: false}\n")
    async with office.manager() as acting:
        job = await runs(office, acting, wants(gpus=0))
        office.hub.servers, office.hub.used = {("alice", "")}, {("alice", ""): office.clock()}
        office.clock.moved += 3 * HOUR
        await culler(acting).evaluate_all()
        assert told(acting, job)
        await set_clock(office, acting, DAY)
        assert told(acting, job) is None
        office.clock.moved += 3 * HOUR
        await culler(acting).evaluate_all()
        assert told(acting, job)


@pytest.mark.parametrize("seen", [True, False], ids=["while one acts", "while none acts"])
async def test_an_owner_does_not_wait_for_a_borrower_that_has_run_for_long(office: Office, seen: bool) -> None:
    (office.folder / "teams.yaml").write_text(TEAMS)
    borrower, owner = replace(wants("bob", gpus=8), preemptible=True), replace(wants(gpus=8), team="owners")
    async with office.manager() as acting:
        await runs(office, acting, borrower)
        office.clock.moved += HOUR
        if seen:
            await set_clock(office, acting, -DAY)
            await told_to_leave(acting, borrower, owner)
        await desk(acting).store.transact(Transaction.persist_usage)  # as once a minute
    if not seen:
        office.clock.jumped -= DAY
        async with office.manager() as acting:
            await told_to_leave(acting, borrower, owner)


async def told_to_leave(acting: LeaderElector, borrower: AdmissionRequest, owner: AdmissionRequest) -> None:
    assert (await ask(acting, owner)).decision == "wait"
    await until(lambda: (found := record(acting, borrower)) and found.job.notice, "it has to leave")


@pytest.mark.parametrize("seen", [True, False], ids=["while one acts", "while none acts"])
async def test_who_has_waited_for_too_long_is_not_passed(office: Office, seen: bool) -> None:
    big, small = wants("bob", gpus=8), [wants(f"u{number}") for number in range(2)]
    async with office.manager() as acting:
        await runs(office, acting, wants(gpus=4))
        assert (await ask(acting, big)).decision == "wait"
        office.clock.moved += HOUR
        assert (await ask(acting, small[0])).decision == "wait"
        if seen:
            await set_clock(office, acting, -DAY)
            assert (await ask(acting, small[1])).decision == "wait"
    if not seen:
        office.clock.jumped -= DAY
        async with office.manager() as acting:
            assert (await ask(acting, small[1])).decision == "wait"
            assert state(acting, small[0]) is JobState.QUEUED


async def test_managers_that_die_one_after_the_other_do_not_keep_a_reservation_for_ever(office: Office) -> None:
    lost, others = wants(gpus=8), wants("bob", gpus=8)
    async with office.manager() as acting:
        assert (await ask(acting, lost)).decision == "admit"
    for _ in range(10):
        office.clock.moved += timedelta(seconds=40)
        async with office.manager() as acting:  # 20 seconds before the deadline that it gives
            held = state(acting, lost) is JobState.STARTING
            office.clock.moved += timedelta(seconds=10)
            if not held:
                break
    async with office.manager() as acting:
        assert office.clock.moved > timedelta(minutes=5), "it had time"
        office.clock.moved += timedelta(seconds=20)
        await until(lambda: state(acting, lost) is JobState.ENDED, "nobody keeps it", 30)
        assert (await ask(acting, others)).decision == "admit"


async def test_a_manager_that_was_away_for_long_still_lets_the_hub_make_what_it_has_admitted(office: Office) -> None:
    question = wants()
    async with office.manager() as acting:
        assert (await ask(acting, question)).decision == "admit"
    office.clock.moved += timedelta(hours=1)
    begun = office.clock()
    async with office.manager() as acting:
        found = record(acting, question)
        assert found is not None
        assert found.deadline is not None
        assert begun < found.deadline - timedelta(seconds=10) <= office.clock()
