"""Uids of users: chosen once, never reused, requested by the Hub alone."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest
from sqlalchemy import delete

from dlspawner.core.unix_account import UidRange
from dlspawner.manager.db.outbox import note_email, read_settings
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import AllocatedUid, Database
from dlspawner.manager.db.tables import accounts
from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.manager_link import BROKEN, FULL, ManagerLink
from tests.component.manager.history import Past, write_past
from tests.component.manager.real_hub import RealHub
from tests.component.manager.test_database import make_key

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
UIDS = UidRange(20_000, 20_999)


async def uid(store: Database, user: str, uids: UidRange = UIDS) -> int | None:
    found = await store.uid(user, uids, NOW)
    return found.uid if found else None


async def test_simultaneous_requests_get_one_uid_for_each_user(store: Database) -> None:
    found = await asyncio.gather(*(uid(store, f"user-{number % 25}") for number in range(50)))

    assert found[:25] == found[25:]
    assert sorted(one for one in found[:25] if one) == list(range(20_000, 20_025))
    assert await store.uid("alice", UIDS, NOW) == AllocatedUid(20_025, new=True)
    assert await store.uid("alice", UIDS, NOW) == AllocatedUid(20_025, new=False)


async def test_two_managers_give_different_uids(store: Database, db_url: str) -> None:
    other = await asyncio.to_thread(Database.open, db_url)
    found = await asyncio.gather(*(uid(one, f"{n}-{id(one)}") for n in range(10) for one in (store, other)))
    await other.close()

    assert len(set(found)) == 20


async def test_full_range_gives_none_and_keeps_the_others(store: Database) -> None:
    small = UidRange(20_000, 20_001)

    assert [await uid(store, name, small) for name in ("a", "b", "c", "a")] == [20_000, 20_001, None, 20_000]


@pytest.mark.parametrize("after", [UidRange(30_000, 30_999), UidRange(10_000, 10_999)])
async def test_changed_range_is_for_new_users(after: UidRange, store: Database) -> None:
    await uid(store, "alice")

    assert [await uid(store, name, after) for name in ("bob", "alice", "carol")] == [
        after.first,
        20_000,
        after.first + 1,
    ]


@pytest.mark.parametrize("name", ["bob", "alice"])
async def test_uid_of_a_removed_row_is_not_reused(name: str, store: Database) -> None:
    await uid(store, "alice")
    await uid(store, "bob")
    remove(store, "bob")
    remove(store, "alice")

    assert await uid(store, "dave", UidRange(20_000, 20_001)) is None
    assert await uid(store, name) == 20_002


async def test_a_renamed_persons_account_is_never_another_persons(store: Database) -> None:
    await uid(store, "eva")
    await store.add_keys("eva", [make_key()], NOW, limit=9)
    assert await store.rename("eva", "evy") is None
    assert [await store.account(name) for name in ("evy", "eva")] == ["eva", None]
    assert [len(await store.keys(name)) for name in ("evy", "eva")] == [1, 0]
    await store.write(lambda connection: note_email(connection, "evy", "evy@lan"))
    await store.forget_keys("evy")  # the person is removed
    assert (await store.read(lambda connection: read_settings(connection, {"evy"})))["evy"].email_told == ""
    assert await store.account("eva") is None
    assert await store.keys("evy") == []

    assert [await store.rename(*names) for names in (("eva", "eva-2"), ("eva-2", "eva"))] == [None, None]
    assert [await store.account(name) for name in ("evy", "eva")] == ["eva", "eva-2"]
    assert "Choose another name" in str(await store.rename("eva", "evy"))
    assert [await store.rename(*names) for names in (("eva", "zoe"), ("evy", "eva"))] == [None, None]
    assert [await store.account(name) for name in ("zoe", "eva", "evy")] == ["eva-2", "eva", "evy"]


async def test_a_new_person_gets_no_account_by_a_name_that_was_one(store: Database) -> None:
    """The second name of a person without an account is checked against accounts too."""
    await uid(store, "eva")
    await store.rename("eva", "evy")
    await uid(store, "bob")
    assert "Choose another name" in str(await store.rename("eva", "bob"))
    assert await store.account("bob") == "bob"


async def test_the_history_goes_along_and_a_job_that_goes_on_forbids_it(store: Database) -> None:
    await write_past(store, Past("T0 R0 E1", "eva"), Past("Q0", "tim"), Past("T0 R0 E1", "old"))
    assert await store.rename("eva", "evy") is None
    assert "jobs that wait" in str(await store.rename("tim", "tom"))
    assert "Choose another name" in str(await store.rename("evy", "old"))
    ends = JobRepository(store).last_ends
    assert [len(await ends(name)) for name in ("eva", "evy", "old")] == [0, 1, 1]


def remove(store: Database, user: str) -> None:
    with store._engine.begin() as connection:
        assert connection.execute(delete(accounts).where(accounts.c.user_name == user)).rowcount == 1


def hub(real_hub: RealHub, token: str | None = None) -> ManagerLink:
    return ManagerLink(real_hub.jobs, token or real_hub.tokens["manager"], logging.getLogger("test"), seconds=30)


async def test_the_hub_requests_uids(real_hub: RealHub, person: str) -> None:
    account, first = await hub(real_hub).unix_account(person, UIDS)
    _, strange = await hub(real_hub).unix_account(f"{person} Ünal+/x", UIDS)

    assert (person, first) == (account, first) == await hub(real_hub).unix_account(person, UidRange(40_000, 40_001))
    assert first.uid == first.gid in UIDS
    assert strange.uid not in (first.uid, None)


async def test_wrong_token_and_full_range_are_sentences(real_hub: RealHub, person: str) -> None:
    with pytest.raises(StartRefused) as wrong:
        await hub(real_hub, "wrong").unix_account(person, UIDS)
    await hub(real_hub).unix_account(person, UidRange(50_000, 50_000))
    with pytest.raises(StartRefused) as full:
        await hub(real_hub).unix_account(f"{person}-2", UidRange(50_000, 50_000))

    assert (wrong.value.sentences, full.value.sentences) == ((BROKEN,), (FULL,))
