"""The store of jobs: notices with transactions, restarts and waiting readers, and the index of jobs by server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from dlspawner.core.job import Job, JobState
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import Notice, NoticeChange, NoticeKind, Recipient, version
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX, JobRecord, PodRef, as_ended
from dlspawner.manager.state.job_store import JobStore, NoticeStore, NoticeStoreClosed, ServerIndex, Transaction
from dlspawner.manager.state.notify import post
from tests.component.manager.manager_harness import Leader, ManagerHarness
from tests.component.manager.noticing import NOW, job_of

LATER = NOW + timedelta(minutes=5)
ALICE = Recipient("alice")


def begin(transaction: Transaction, job: Job) -> None:
    transaction.write(JobRecord(job, pods=(PodRef(f"uid-{job.id}", "pod"),)), EventReason.ADOPTED)


def shown(store: JobStore, audience: Recipient = ALICE) -> list[tuple[NoticeKind, str]]:
    return [(notice.kind, notice.cause) for notice in store.notices.read(audience, NOW)]


async def test_notice_of_a_decision_is_there_after_a_restart(harness: ManagerHarness, db_url: str) -> None:
    job = replace(job_of(), state=JobState.LOGIN_REQUIRED)

    def decide(transaction: Transaction) -> Notice:
        transaction.write(JobRecord(job), EventReason.LOGIN_REQUIRED)
        return post(
            transaction, job, NoticeKind.LOGIN_REQUIRED, "Log in again.", cause="refused", until=LATER, keep=True
        )

    async with harness.manager() as leader:
        posted = await leader.transact(decide)
        assert (posted.user, posted.server, posted.until, posted.keep) == ("alice", "train", LATER, True)
    async with harness.manager() as other:
        assert other.service.store.notices.read(ALICE, NOW) == (posted,)
        ended = as_ended(JobRecord(job, pods=(PodRef("uid", "pod"),)))
        await other.transact(Transaction.write, ended, EventReason.GONE)
        assert shown(other.service.store) == [], "the end of the job withdraws it"


async def test_notice_of_the_same_cause_is_updated_and_of_another_replaced(leader: Leader) -> None:
    job = job_of()
    store = leader.service.store

    async def posted(cause: str, at: datetime) -> Notice:
        return await leader.transact(post, job, NoticeKind.IDLE, "Not used.", cause=cause, until=at)

    first, again = await posted("50", LATER), await posted("50", LATER + timedelta(minutes=1))
    assert again.id == first.id
    assert [one.until for one in store.notices.read(ALICE, NOW)] == [LATER + timedelta(minutes=1)]
    second = await posted("90", LATER)
    assert second.id != first.id
    assert shown(store) == [(NoticeKind.IDLE, "90")]


STOPS = (NoticeKind.PREEMPTED, NoticeKind.IDLE, NoticeKind.LIFETIME)


@pytest.mark.parametrize(
    ("told", "left"),
    [
        *[([NoticeKind.PREEMPTION_CANCELLED, kind], [kind]) for kind in (*STOPS, NoticeKind.QUOTA_LOWERED)],
        *[([kind, NoticeKind.PREEMPTION_CANCELLED], [kind]) for kind in STOPS],
        (
            [NoticeKind.QUOTA_LOWERED, NoticeKind.PREEMPTION_CANCELLED],
            [NoticeKind.QUOTA_LOWERED, NoticeKind.PREEMPTION_CANCELLED],
        ),
        ([NoticeKind.PREEMPTED, NoticeKind.LIFETIME], [NoticeKind.PREEMPTED, NoticeKind.LIFETIME]),
        ([NoticeKind.LOGIN_REQUIRED, NoticeKind.CANNOT_START], [NoticeKind.CANNOT_START]),
        ([NoticeKind.CANNOT_START, NoticeKind.LOGIN_REQUIRED], [NoticeKind.LOGIN_REQUIRED]),
    ],
    ids=lambda kinds: " then ".join(kind.value for kind in kinds),
)
async def test_contradicting_notices_are_replaced(
    leader: Leader, told: list[NoticeKind], left: list[NoticeKind]
) -> None:
    job = job_of()
    await leader.transact(begin, job)
    for kind in told:
        await leader.transact(post, job, kind, "Said.")
    assert {kind for kind, _ in shown(leader.service.store)} == set(left)


async def test_expired_notice_is_posted_again(harness: ManagerHarness, leader: Leader) -> None:
    job = job_of()
    await leader.transact(begin, job)
    first = await leader.transact(post, job, NoticeKind.PREEMPTION_CANCELLED, "It goes on.")
    harness.clock.moved += timedelta(minutes=11)
    again = await leader.transact(post, job, NoticeKind.PREEMPTION_CANCELLED, "It goes on.")
    assert (again.id == first.id, again.posted > first.posted) == (False, True)
    assert leader.service.store.notices.read(ALICE, harness.clock()) == (again,)


async def test_unwritten_notice_is_not_shown(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of()
    store = leader.service.store

    async def fails(*_: object) -> None:
        assert shown(store) == [], "told before it was written"
        raise DatabaseUnavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(leader.repository, "write", fails)
        with pytest.raises(DatabaseUnavailable):
            await leader.transact(post, job, NoticeKind.IDLE, "Not used.")
    assert shown(store) == []
    await leader.transact(post, job, NoticeKind.IDLE, "Not used.")
    assert shown(store) == [(NoticeKind.IDLE, "")]


def notice(number: int, user: str = "alice", **more: object) -> Notice:
    values = {"id": str(number), "kind": NoticeKind.IDLE, "cause": "", "text": "x", "posted": NOW, "job": f"j{number}"}
    return Notice(**{**values, "user": user, "server": "train", **more})  # type: ignore[arg-type]


def test_version_changes_with_the_shown_notices() -> None:
    one = notice(1)
    assert version([one]) == version([replace(one)])
    assert len({version(found) for found in ([], [one], [replace(one, seen=NOW)], [one, notice(2)])}) == 4


async def test_only_concerned_readers_wake_up() -> None:
    notices = NoticeStore()
    audiences = [Recipient(f"user-{number}", "train") for number in range(1000)]
    gateway = asyncio.create_task(notices.changed(Recipient(everything=True), 60))
    readers = [asyncio.create_task(notices.changed(audience, 60)) for audience in audiences]
    await asyncio.sleep(0)
    notices.publish([NoticeChange(notice(1, "user-7"))])
    await asyncio.wait({gateway, readers[7]})
    assert [number for number, reader in enumerate(readers) if reader.done()] == [7]
    notices.close()
    ended = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(one) for one in ended].count(NoticeStoreClosed) == 999


# The index of jobs by server


OLD, NEW = job_of(number=2), replace(job_of(number=3), submitted=NOW + timedelta(minutes=1))


def test_newest_job_of_a_server_is_the_first() -> None:
    for jobs in ([OLD, NEW], [NEW, OLD]):
        assert ServerIndex(jobs).of("alice", "train") == [NEW, OLD]
    assert ServerIndex([OLD]).of("alice", "other") == ServerIndex([OLD]).of("bob", "train") == []


def test_job_is_there_once_in_its_latest_state_until_it_has_ended() -> None:
    found = ServerIndex([OLD, NEW])
    stopping = replace(OLD, state=JobState.STOPPING)
    found.put(stopping)
    assert found.of("alice", "train") == [NEW, stopping]
    for job in (OLD, NEW, NEW):
        found.put(replace(job, state=JobState.ENDED))
    assert found.of("alice", "train") == []


def test_foreign_pod_has_no_server() -> None:
    assert ServerIndex([replace(OLD, id=f"{EXTERNAL_POD_PREFIX}1")]).of("alice", "train") == []
