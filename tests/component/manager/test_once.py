"""Requests that are carried out once: for a day, by the clock that they are given, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from dlspawner.clients.hub import HubUnavailable
from dlspawner.manager.db.store import Database, DatabaseUnavailable
from dlspawner.manager.http.api.submit import Answer, Once, OtherRequest
from dlspawner.manager.http.handlers import HttpProblem, NamedLocks

NOON = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
DAY, MOMENT = timedelta(hours=24), timedelta(seconds=1)


class Sender:
    """Somebody who sends requests with one key, at times of their own choice."""

    def __init__(self, store: Database, owner: str = "user alice") -> None:
        self.store, self.owner, self.done = store, owner, 0

    async def sends(self, at: datetime, request: str = "one") -> int:
        """Which time of carrying it out answers."""

        async def work() -> Answer:
            self.done += 1
            return Answer(201, {"number": self.done})

        async def found(since: datetime) -> Answer | None:
            return None

        once = Once(self.store, NamedLocks(), self.owner, lambda: at)
        answer = await once.carry_out("key", request, work, found)
        return int(str(answer.content["number"]))


@pytest.fixture
async def store(db_url: str) -> AsyncIterator[Database]:
    store = await asyncio.to_thread(Database.open, db_url)
    yield store
    await store.close()


async def test_a_key_stands_for_its_request_for_24_hours_and_is_free_again_after_that(store: Database) -> None:
    alice = Sender(store)
    assert await alice.sends(NOON) == 1
    assert await alice.sends(NOON + DAY - MOMENT) == 1
    assert await alice.sends(NOON + DAY + MOMENT) == 2
    assert await alice.sends(NOON + 2 * DAY) == 2, "its day began anew"


async def test_a_day_later_the_key_may_stand_for_another_request(store: Database) -> None:
    alice = Sender(store)
    await alice.sends(NOON)
    with pytest.raises(OtherRequest):
        await alice.sends(NOON + DAY - MOMENT, "another")
    assert await alice.sends(NOON + DAY + MOMENT, "another") == 2


async def test_asking_again_does_not_lengthen_the_day_and_others_keys_have_days_of_their_own(store: Database) -> None:
    alice, bob = Sender(store), Sender(store, "user bob")
    await alice.sends(NOON)
    await bob.sends(NOON + DAY / 2)
    assert await alice.sends(NOON + DAY - MOMENT) == 1
    assert await alice.sends(NOON + DAY + MOMENT) == 2
    assert await bob.sends(NOON + DAY + MOMENT) == 1


@pytest.mark.parametrize(
    ("failure", "times"),
    [
        (HubUnavailable("The Hub does not answer."), 1),
        (DatabaseUnavailable("The database is away."), 1),
        (HttpProblem(503, "Another Manager decides."), 1),
        (HttpProblem(422, "At most 8 GPUs."), 2),
    ],
    ids=["the Hub was away", "the database was away", "another Manager decided", "it was refused"],
)
async def test_what_may_have_been_done_is_looked_for_and_not_done_again(
    store: Database, failure: Exception, times: int
) -> None:
    done = 0

    async def work() -> Answer:
        nonlocal done
        done += 1
        if done == 1:
            raise failure
        return Answer(201, {"number": done})

    async def found(since: datetime) -> Answer | None:
        return Answer(202, {"number": 1})

    once = Once(store, NamedLocks(), "user alice", lambda: NOON)
    with pytest.raises(type(failure)):
        await once.carry_out("key", "one", work, found)
    assert (await once.carry_out("key", "one", work, found)).content == {"number": times}
    assert done == times
