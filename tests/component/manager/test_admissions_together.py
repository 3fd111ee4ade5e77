"""Admissions that wait at once are one transaction: what that means for each of those who ask."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import create_engine, text

from dlspawner.core.job import JobState
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import as_ended
from tests.component.manager.manager_harness import Office, ask, wants


async def test_a_job_that_ended_under_an_earlier_manager_stays_ended_and_who_asks_with_it_is_answered(
    office: Office, db_url: str
) -> None:
    old = wants("old", gpus=8)
    async with office.manager() as acting:
        await ask(acting, old)
        assert acting.admission is not None
        book = acting.admission.store
        await book.transact(lambda turn: turn.write(as_ended(book.records[old.job]), EventReason.NOT_CREATED))
    async with office.manager() as acting:
        answers = await asyncio.gather(*(ask(acting, one) for one in (wants("a"), old, wants("b"), old)))
        assert [(one.decision, one.reason) for one in answers] == [
            ("admit", "fits"),
            ("refuse", "over"),
            ("admit", "fits"),
            ("refuse", "over"),
        ]
        assert [reason for _, _, reason in await acting.ledger.events(old.job)] == ["admitted", "not-created"]


async def test_the_id_of_a_job_that_ended_under_an_earlier_manager_takes_nobody_s_place_in_the_queue(
    office: Office,
) -> None:
    old, waits = wants("alice"), wants("alice", gpus=8)
    async with office.manager() as acting:
        await ask(acting, old)
        assert acting.admission is not None
        book = acting.admission.store
        await book.transact(lambda turn: turn.write(as_ended(book.records[old.job]), EventReason.NOT_CREATED))
    async with office.manager() as acting:
        assert acting.admission is not None
        await ask(acting, wants("bob"))
        assert (await ask(acting, waits)).decision == "wait"
        assert (await ask(acting, old)).reason == "over"
        assert acting.admission.store.records[waits.job].job.state is JobState.QUEUED


async def test_when_their_write_fails_none_of_those_who_waited_at_once_holds_anything(
    office: Office, db_url: str
) -> None:
    engine = create_engine(office.db_url)
    async with office.manager() as acting:
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE job_events RENAME TO away"))
        asked = [wants(f"u{number}") for number in range(8)]
        answers = await asyncio.gather(*(ask(acting, one) for one in asked), return_exceptions=True)
        assert {type(answer) for answer in answers} == {DatabaseUnavailable}
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE away RENAME TO job_events"))
        assert (await ask(acting, wants("after", gpus=8))).decision == "admit"
        assert await acting.ledger.find(asked[0].job) is None
    engine.dispose()


@pytest.mark.parametrize("gpus", [1, 9])
async def test_a_question_that_is_asked_again_at_once_is_one_question(office: Office, gpus: int) -> None:
    question = wants(gpus=gpus)
    async with office.manager() as acting:
        answers = await asyncio.gather(*(ask(acting, question) for _ in range(3)))
        assert {answer.decision for answer in answers} == {"admit" if gpus == 1 else "refuse"}
