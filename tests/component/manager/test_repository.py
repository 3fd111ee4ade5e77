"""The lease and the leader's term in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import Database
from dlspawner.manager.model.activity import ActivityRecord


@pytest.fixture
async def repository(db_url: str) -> AsyncIterator[JobRepository]:
    store = Database.open(db_url)
    yield JobRepository(store)
    await store.close()


async def test_lease_is_released_by_its_holder_only(repository: JobRepository) -> None:
    assert await repository.acquire("first", 60) == 1
    await repository.release("second")
    assert await repository.acquire("second", 60) is None
    await repository.release("first")
    assert await repository.acquire("second", 60) == 2


async def test_activities_of_an_earlier_term_are_refused(repository: JobRepository) -> None:
    earlier = await repository.acquire("first", 60)
    await repository.release("first")
    assert await repository.acquire("second", 60) is not None
    with pytest.raises(NotLeader):
        await repository.write_activities(earlier or 0, {"j-1": ActivityRecord()})
