"""What becomes of a notice: turns, transactions, restarts, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from dlspawner.core.job import Job, JobState
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import Notice, NoticeChange, NoticeKind, Recipient, version
from dlspawner.manager.model.records import JobRecord, PodRef, as_ended
from dlspawner.manager.state.job_store import JobStore, NoticeStore, NoticeStoreClosed, Transaction, withdraw
from dlspawner.manager.state.notify import mark_read, post, post_to_admins
from tests.component.manager.manager_harness import Office, until
from tests.component.manager.noticing import NOW, book_of, job_of, offices

LATER = NOW + timedelta(minutes=5)
ALICE = Recipient("alice")


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLite, and for tests that ask for `db_url` PostgreSQL as well."""
    both = "db_url" in request.fixturenames
    return str(request.getfixturevalue("db_url")) if both else f"sqlite:///{tmp_path / 'manager.sqlite'}"


@pytest.fixture
async def office(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with offices(tmp_path, database) as made:
        yield made


def begin(turn: Transaction, job: Job) -> None:
    turn.write(JobRecord(job, pods=(PodRef(f"uid-{job.id}", "pod"),)), EventReason.ADOPTED)


def shown(book: JobStore, audience: Recipient = ALICE) -> list[tuple[NoticeKind, str]]:
    return [(notice.kind, notice.cause) for notice in book.notices.read(audience, NOW)]


async def test_what_is_posted_with_a_decision_is_there_after_a_restart(office: Office, db_url: str) -> None:
    job = replace(job_of(), state=JobState.LOGIN_REQUIRED)

    def decide(turn: Transaction) -> Notice:
        turn.write(JobRecord(job), EventReason.LOGIN_REQUIRED)
        return post(turn, job, NoticeKind.LOGIN_REQUIRED, "Log in again.", cause="refused", until=LATER, keep=True)

    async with office.manager() as acting:
        posted = await book_of(acting).transact(decide)
        assert (posted.user, posted.server, posted.until, posted.keep) == ("alice", "train", LATER, True)
    async with office.manager() as other:
        assert book_of(other).notices.read(ALICE, NOW) == (posted,)


async def test_what_administrators_are_told_is_written_down_whole(office: Office, db_url: str) -> None:
    async with office.manager() as acting:
        posted = await book_of(acting).transact(
            lambda turn: post_to_admins(turn, NoticeKind.CONFIG_INVALID, "Broken.", cause="1")
        )
        await book_of(acting).transact(lambda turn: mark_read(turn, posted))
        (found,) = await acting.ledger.notices()
        assert found == replace(posted, seen=found.seen)
        assert found.seen is not None
        assert shown(book_of(acting)) == []


async def test_the_same_cause_is_told_once_and_another_one_takes_its_place(office: Office) -> None:
    job = job_of()
    async with office.manager() as acting:
        book = book_of(acting)

        async def told(cause: str, at: datetime) -> Notice:
            return await book.transact(
                lambda turn: post(turn, job, NoticeKind.IDLE, "Not used.", cause=cause, until=at)
            )

        first, again = await told("50", LATER), await told("50", LATER + timedelta(minutes=1))
        assert again.id == first.id
        assert [one.until for one in book.notices.read(ALICE, NOW)] == [LATER + timedelta(minutes=1)]
        second = await told("90", LATER)
        assert second.id != first.id
        assert shown(book) == [(NoticeKind.IDLE, "90")]


async def test_kinds_stand_beside_each_other_and_are_withdrawn_one_by_one(office: Office) -> None:
    job = job_of()
    async with office.manager() as acting:
        book = book_of(acting)
        await book.transact(lambda turn: post(turn, job, NoticeKind.IDLE, "Not used."))
        await book.transact(lambda turn: post(turn, job, NoticeKind.LIFETIME, "Old."))
        await book.transact(lambda turn: withdraw(turn, job.id, NoticeKind.IDLE))
        assert shown(book) == [(NoticeKind.LIFETIME, "")]


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
async def test_no_two_notices_of_a_job_contradict_each_other(
    office: Office, told: list[NoticeKind], left: list[NoticeKind]
) -> None:
    async with office.manager() as acting:
        job = job_of()
        await book_of(acting).transact(lambda turn: begin(turn, job))
        for kind in told:
            await book_of(acting).transact(lambda turn, kind=kind: post(turn, job, kind, "Said."))
        assert {kind for kind, _ in shown(book_of(acting))} == set(left)


async def test_good_news_are_told_again_after_the_first_are_over(office: Office) -> None:
    async with office.manager() as acting:
        job = job_of()
        await book_of(acting).transact(lambda turn: begin(turn, job))
        first = await book_of(acting).transact(
            lambda turn: post(turn, job, NoticeKind.PREEMPTION_CANCELLED, "It goes on.")
        )
        office.clock.moved += timedelta(minutes=11)
        again = await book_of(acting).transact(
            lambda turn: post(turn, job, NoticeKind.PREEMPTION_CANCELLED, "It goes on.")
        )
        assert (again.id == first.id, again.posted > first.posted) == (False, True)
        assert book_of(acting).notices.read(ALICE, office.clock()) == (again,)


async def test_a_job_that_ends_takes_its_notices_along(office: Office) -> None:
    job = job_of()
    async with office.manager() as acting:
        book = book_of(acting)
        await book.transact(lambda turn: begin(turn, job))
        await book.transact(lambda turn: post(turn, job, NoticeKind.IDLE, "Not used."))
        await book.transact(
            lambda turn: turn.write(as_ended(JobRecord(job, pods=(PodRef(f"uid-{job.id}", "pod"),))), EventReason.GONE)
        )
        assert shown(book) == []


async def test_a_notice_that_could_not_be_written_was_never_told(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of()
    async with office.manager() as acting:
        book = book_of(acting)

        async def fails(*_: object) -> None:
            assert shown(book) == [], "told before it was written"
            raise DatabaseUnavailable("the database is away")

        with monkeypatch.context() as patched:
            patched.setattr(acting.ledger, "write", fails)
            with pytest.raises(DatabaseUnavailable):
                await book.transact(lambda turn: post(turn, job, NoticeKind.IDLE, "Not used."))
        assert shown(book) == []
        await book.transact(lambda turn: post(turn, job, NoticeKind.IDLE, "Not used."))
        assert shown(book) == [(NoticeKind.IDLE, "")]


async def test_a_turn_that_fails_half_way_has_told_nothing(office: Office) -> None:
    job = job_of()

    def breaks(turn: Transaction) -> None:
        post(turn, job, NoticeKind.IDLE, "Not used.")
        raise ValueError("a fault")

    async with office.manager() as acting:
        book = book_of(acting)
        with pytest.raises(ValueError, match="a fault"):
            await book.transact(breaks)
        await book.transact(lambda turn: None)
        assert shown(book) == []
        await book.transact(lambda turn: post(turn, job, NoticeKind.IDLE, "Not used."))
        assert shown(book) == [(NoticeKind.IDLE, "")]


async def test_a_text_is_one_printable_line_of_bounded_length(office: Office) -> None:
    job = job_of()
    async with office.manager() as acting:
        posted = await book_of(acting).transact(
            lambda turn: post(turn, job, NoticeKind.IDLE, "one\r\n\x1b[31mtwo\u202e" + "x" * 1000, cause="c\n" * 500)
        )
        assert posted.text.startswith("one [31mtwo x")
        assert (len(posted.text), len(posted.cause), posted.text[-1]) == (500, 200, "…")


# The board alone


def notice(number: int, user: str = "alice", **more: object) -> Notice:
    values = {"id": str(number), "kind": NoticeKind.IDLE, "cause": "", "text": "x", "posted": NOW, "job": f"j{number}"}
    return Notice(**{**values, "user": user, "server": "train", **more})  # type: ignore[arg-type]


def test_who_reads_what() -> None:
    board = NoticeStore()
    board.load(
        [
            notice(1),
            notice(2, server=""),
            notice(3, "bob"),
            notice(4, "", server="", job="", kind=NoticeKind.CONFIG_INVALID),
        ]
    )

    def ids(audience: Recipient) -> str:
        return "".join(one.id for one in board.read(audience, NOW))

    assert ids(Recipient("alice")) == "12"
    assert ids(Recipient("alice", "train")) == "1"
    assert ids(Recipient("alice", "")) == "2"
    assert ids(Recipient("bob", admin=True)) == "34"
    assert ids(Recipient("eve")) == ids(Recipient("")) == ""
    assert ids(Recipient(everything=True)) == "1234"


def test_good_news_are_over_after_a_while() -> None:
    board = NoticeStore()
    board.load([notice(1, kind=NoticeKind.PREEMPTION_CANCELLED)])
    assert len(board.read(ALICE, NOW + timedelta(minutes=9))) == 1
    assert board.read(ALICE, NOW + timedelta(minutes=10)) == ()


def test_the_version_of_a_list_is_the_same_in_another_process_and_changes_with_what_is_shown() -> None:
    one = notice(1)
    assert version([one]) == version([replace(one)])
    assert len({version(found) for found in ([], [one], [replace(one, seen=NOW)], [one, notice(2)])}) == 4


async def test_of_a_thousand_readers_only_those_who_are_concerned_wake_up() -> None:
    board = NoticeStore()
    audiences = [Recipient(f"user-{number}", "train") for number in range(1000)]
    gateway = asyncio.create_task(board.changed(Recipient(everything=True), 60))
    readers = [asyncio.create_task(board.changed(audience, 60)) for audience in audiences]
    await asyncio.sleep(0)
    board.publish([NoticeChange(notice(1, "user-7"))])
    await asyncio.wait({gateway, readers[7]})
    assert [number for number, reader in enumerate(readers) if reader.done()] == [7]
    board.close()
    ended = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(one) for one in ended].count(NoticeStoreClosed) == 999


async def test_a_reader_waits_no_longer_than_it_wants_and_leaves_nothing_behind() -> None:
    board = NoticeStore()
    await board.changed(ALICE, 0.001)
    assert board._readers == {}


async def test_readers_learn_that_their_manager_stopped_acting(office: Office) -> None:
    async with office.manager() as acting:
        board = book_of(acting).notices
        reader = asyncio.create_task(board.changed(ALICE, 60))
        await until(lambda: bool(board._readers), "it waits")
    with pytest.raises(NoticeStoreClosed):
        await reader
