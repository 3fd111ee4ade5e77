"""The store on SQLite and on PostgreSQL: the same promises on both."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncssh
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text

from dlspawner.manager.db import engine as db_engine
from dlspawner.manager.db.engine import DatabaseUnusable
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import AddedKeys, Database, DatabaseUnavailable, FoundKey, TooManyKeys
from dlspawner.manager.db.tables import metadata
from dlspawner.manager.model.ssh_keys import PublicKey, parse_keys
from tests.component.manager import databases

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def make_key(name: str = "laptop") -> PublicKey:
    parsed = parse_keys(asyncssh.generate_private_key("ssh-ed25519", comment=name).export_public_key().decode())
    assert isinstance(parsed, tuple)
    return parsed[0]


@pytest.fixture
async def store(db_url: str) -> AsyncIterator[Database]:
    store = await asyncio.to_thread(Database.open, db_url)
    yield store
    await store.close()


async def test_a_key_is_kept_as_it_was_added(store: Database) -> None:
    key = make_key("laptop")
    await store.add_keys("alice", [key], NOW, limit=50)
    (kept,) = await store.keys("alice")
    assert (kept.key, kept.name, kept.fingerprint, kept.added, kept.last_used) == (
        key.key,
        "laptop",
        key.fingerprint,
        NOW,
        None,
    )


async def test_more_keys_than_allowed_are_refused_together(store: Database) -> None:
    await store.add_keys("alice", [make_key()], NOW, limit=2)
    assert await store.add_keys("alice", [make_key(), make_key()], NOW, limit=2) == TooManyKeys(limit=2, present=1)
    assert len(await store.keys("alice")) == 1


async def test_one_key_added_by_racing_requests_is_kept_once(store: Database) -> None:
    key = make_key()
    results = await asyncio.gather(*(store.add_keys("alice", [key], NOW, limit=50) for _ in range(8)))
    assert sum(len(result.new) for result in results if isinstance(result, AddedKeys)) == 1


async def test_only_the_owner_removes_a_key(store: Database) -> None:
    await store.add_keys("alice", [make_key()], NOW, limit=50)
    (key,) = await store.keys("alice")
    assert await store.remove_key("bob", key.id) is None
    assert await store.remove_key("alice", key.id) == key
    assert await store.keys("alice") == []


async def test_use_is_noted_at_most_once_a_minute(store: Database) -> None:
    await store.add_keys("alice", [make_key()], NOW, limit=50)
    (key,) = await store.keys("alice")
    seen = []
    for seconds in (0, 59, 60):
        assert await store.key_used("alice", key.id, NOW + timedelta(seconds=seconds))
        seen.append((await store.keys("alice"))[0].last_used)
    assert seen == [NOW, NOW, NOW + timedelta(seconds=60)]


async def test_suggestions_replace_each_other_and_leave_out_what_was_added(store: Database) -> None:
    old, new, added = make_key("old"), make_key("new"), make_key("added")
    await store.suggest("alice", "train", [FoundKey(old, "~/.ssh/old.pub")], NOW)
    await store.suggest("alice", "", [FoundKey(new, "~/.ssh/new.pub"), FoundKey(added, "~/.ssh/added.pub")], NOW)
    await store.add_keys("alice", [added], NOW, limit=50)
    assert [(one.name, one.source) for one in await store.suggestions("alice")] == [("new", "~/.ssh/new.pub")]
    assert await store.suggestions("bob") == []


async def test_a_failing_database_is_one_exception_of_our_own(store: Database, db_url: str) -> None:
    engine = create_engine(db_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE ssh_keys"))
    engine.dispose()
    with pytest.raises(DatabaseUnavailable):
        await store.keys("alice")


@pytest.mark.slow
async def test_a_manager_that_vanishes_in_a_transaction_keeps_the_lease_from_nobody(postgres: str) -> None:
    """Its connection is open, and says nothing more: a machine without power, or a process that is stopped."""
    url = databases.create(postgres)
    stand_by, vanished = await asyncio.to_thread(Database.open, url), db_engine.open_engine(url, 1)
    assert await JobRepository(stand_by).acquire("vanished", 0) == 1
    with vanished.connect() as connection:
        connection.execute(text("SELECT * FROM leases FOR UPDATE"))
        assert await JobRepository(stand_by).acquire("stand-by", 8) == 2
        connection.invalidate()
    vanished.dispose()
    await stand_by.close()


def test_migrations_from_empty_make_exactly_the_tables_the_code_uses(db_url: str) -> None:
    asyncio.run(Database.open(db_url).close())
    engine = create_engine(db_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_a_database_of_a_newer_version_is_refused_with_a_sentence(db_url: str) -> None:
    asyncio.run(Database.open(db_url).close())
    engine = create_engine(db_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(DatabaseUnusable, match=r"newer version of dlspawner.*9999"):
        Database.open(db_url)


def test_many_managers_may_start_at_once_on_an_empty_database(db_url: str) -> None:
    script = (
        "import asyncio, sys; from dlspawner.manager.db.store import Database; "
        "asyncio.run(Database.open(sys.argv[1]).close())"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, db_url], stderr=subprocess.PIPE) for _ in range(5)]
    errors = [child.communicate(timeout=60)[1].decode() for child in children]
    assert [child.returncode for child in children] == [0] * 5, errors


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "not a database URL"),
        ("oracledb9://x/y", "not a database URL"),
        ("sqlite://", "needs a file"),
        ("sqlite:////no/such/directory/m.sqlite", "/no/such/directory, which is not there"),
        ("postgresql+psycopg://postgres:secret@/x?host=/no/such/socket", "cannot be used|needs the Python package"),
    ],
)
def test_a_wrong_url_is_a_sentence_without_the_password(url: str, sentence: str) -> None:
    with pytest.raises(DatabaseUnusable, match=sentence) as caught:
        Database.open(url)
    assert "secret" not in str(caught.value)
