"""The lease, the leader's term and the last ends of servers in the database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import Database
from tests.component.manager.history import NOON, Past, write_past


@pytest.fixture
def repository(store: Database) -> JobRepository:
    return JobRepository(store)


async def test_lease_is_released_by_its_holder_only(repository: JobRepository) -> None:
    assert await repository.acquire("first", 60) == 1
    await repository.release("second")
    assert await repository.acquire("second", 60) is None
    await repository.release("first")
    assert await repository.acquire("second", 60) == 2


async def test_lease_that_its_holder_acquires_again_begins_a_new_term(repository: JobRepository) -> None:
    assert [await repository.acquire("first", 30), await repository.acquire("first", 30)] == [1, 2]
    assert not await repository.renew(1, 30)
    with pytest.raises(NotLeader):
        await repository.write(1, [])


@pytest.mark.parametrize("seconds", [0, 86_400], ids=["has expired", "by a wrong clock"])
async def test_lease_that_is_over_is_taken(repository: JobRepository, seconds: int) -> None:
    assert await repository.acquire("dead", seconds) == 1
    assert await repository.acquire("second", 30) == 2
    assert await repository.acquire("dead", 30) is None


async def test_changes_of_an_earlier_term_are_refused(repository: JobRepository) -> None:
    earlier = await repository.acquire("first", 60)
    await repository.release("first")
    assert await repository.acquire("second", 60) is not None
    with pytest.raises(NotLeader):
        await repository.write_as_leader(earlier or 0, lambda connection: None)


async def test_last_end_of_a_server_is_that_of_its_newest_ended_job(store: Database, repository: JobRepository) -> None:
    def ended(job: str, server: str, hours: int = 0, user: str = "alice") -> Past:
        return Past("T0 R0 E1", user, job=job, server=server, noon=NOON + timedelta(hours=hours))

    default = (ended("j-1", ""), ended("j-2", "", 3), ended("j-3", "", 1), Past("T0 R0", job="j-4", server=""))
    others = (ended("j-5", "a"), Past("T0 R0", job="j-6", server="b"), ended("j-8", "d", user="bob"))
    await write_past(store, *default, *others, Past("T0 E1", job="j-7", server="c"))
    found = {user: await repository.last_ends(user) for user in ("alice", "bob", "carol")}
    assert {server: one.job for server, one in found["alice"].items()} == {"": "j-2", "a": "j-5", "c": "j-7"}
    assert {server: one.job for server, one in found["bob"].items()} == {"d": "j-8"}
    assert found["carol"] == {}
