"""The database of SSH keys on SQLite and PostgreSQL, and its schema."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, create_engine, event, insert, inspect, select, text

from dlspawner.core.job import JobState
from dlspawner.manager.db import engine as db_engine
from dlspawner.manager.db.engine import DatabaseUnusable
from dlspawner.manager.db.notices import read_notices
from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import AddedKeys, Database, DatabaseUnavailable, FoundKey, TooManyKeys
from dlspawner.manager.db.tables import metadata, notices
from dlspawner.manager.model.notice import NoticeKind
from dlspawner.manager.model.ssh_keys import PublicKey, parse_keys
from tests.component.manager import databases
from tests.component.manager.databases import create
from tests.component.manager.manager_harness import ManagerHarness, until, wants

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def make_key(name: str = "laptop") -> PublicKey:
    parsed = parse_keys(asyncssh.generate_private_key("ssh-ed25519", comment=name).export_public_key().decode())
    assert isinstance(parsed, tuple)
    return parsed[0]


async def test_key_is_stored_as_added(store: Database) -> None:
    key = make_key("laptop")
    await store.add_keys("alice", [key], NOW, limit=50)
    again = await store.add_keys("alice", [key], NOW, limit=50)
    assert isinstance(again, AddedKeys)
    assert (len(again.new), len(again.known)) == (0, 1)
    (kept,) = await store.keys("alice")
    assert await store.keys("bob") == []
    assert (kept.key, kept.name, kept.fingerprint, kept.added, kept.last_used) == (
        key.key,
        "laptop",
        key.fingerprint,
        NOW,
        None,
    )


async def test_limit_of_keys_holds_for_one_request_and_for_many_at_once(store: Database) -> None:
    await store.add_keys("alice", [make_key()], NOW, limit=2)
    assert await store.add_keys("alice", [make_key(), make_key()], NOW, limit=2) == TooManyKeys(limit=2, present=1)
    await asyncio.gather(*(store.add_keys("alice", [make_key()], NOW, limit=3) for _ in range(12)))
    assert len(await store.keys("alice")) == 3


async def test_same_key_added_many_times_at_once_is_stored_once(store: Database) -> None:
    key = make_key()
    results = await asyncio.gather(*(store.add_keys("alice", [key], NOW, limit=50) for _ in range(8)))
    assert sum(len(result.new) for result in results if isinstance(result, AddedKeys)) == 1


async def test_only_the_owner_removes_a_key_and_its_id_is_not_reused(store: Database) -> None:
    await store.add_keys("alice", [make_key()], NOW, limit=50)
    (key,) = await store.keys("alice")
    assert await store.remove_key("bob", key.id) is None
    assert await store.remove_key("alice", key.id) == key
    await store.add_keys("alice", [make_key()], NOW, limit=50)
    (second,) = await store.keys("alice")
    assert second.id > key.id


async def test_use_is_stored_at_most_once_a_minute(store: Database) -> None:
    await store.add_keys("alice", [make_key()], NOW, limit=50)
    (key,) = await store.keys("alice")
    assert not await store.key_used("bob", key.id, NOW)
    seen = []
    for seconds in (0, 59, 60):
        assert await store.key_used("alice", key.id, NOW + timedelta(seconds=seconds))
        seen.append((await store.keys("alice"))[0].last_used)
    assert seen == [NOW, NOW, NOW + timedelta(seconds=60)]


async def test_suggestions_replace_each_other_without_added_keys(store: Database) -> None:
    old, new, added = make_key("old"), make_key("new"), make_key("added")
    await store.suggest("alice", "train", [FoundKey(old, "~/.ssh/old.pub")], NOW)
    await store.suggest("alice", "", [FoundKey(new, "~/.ssh/new.pub"), FoundKey(added, "~/.ssh/added.pub")], NOW)
    await store.add_keys("alice", [added], NOW, limit=50)
    assert [(one.name, one.source) for one in await store.suggestions("alice")] == [("new", "~/.ssh/new.pub")]
    assert await store.suggestions("bob") == []


@pytest.mark.slow
async def test_open_transaction_of_a_dead_manager_does_not_hold_the_lease(postgres: str) -> None:
    url = databases.create(postgres)
    stand_by, vanished = await asyncio.to_thread(Database.open, url), db_engine.open_engine(url, 1)
    assert await JobRepository(stand_by).acquire("vanished", 0) == 1
    with vanished.connect() as connection:
        connection.execute(text("SELECT * FROM leases FOR UPDATE"))
        assert await JobRepository(stand_by).acquire("stand-by", 8) == 2
        connection.invalidate()
    vanished.dispose()
    await stand_by.close()


def test_migrations_make_the_tables_of_the_code(db_url: str) -> None:
    asyncio.run(Database.open(db_url).close())
    engine = create_engine(db_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


@pytest.mark.parametrize("revision", ["0001", "0004"])
async def test_jobs_run_on_after_an_upgrade_from_an_older_schema(harness: ManagerHarness, revision: str) -> None:
    request = wants(gpus=3)
    async with harness.manager() as before:
        await before.run_job(request)
    new, old = create_engine(harness.db_url), create_engine(f"sqlite:///{harness.folder / 'old.sqlite'}")
    with new.connect() as source, old.begin() as target:
        command.upgrade(db_engine._config(target), revision)
        known = inspect(target)
        for table in metadata.sorted_tables:
            columns = [one["name"] for one in known.get_columns(table.name)] if known.has_table(table.name) else []
            if rows := source.execute(select(*(table.c[name] for name in columns))).mappings().all() if columns else []:
                target.execute(insert(table), [dict(row) for row in rows])
    for engine in (new, old):
        engine.dispose()
    harness.db_url = str(old.url)
    async with harness.manager() as after:
        assert after.state(request) is JobState.RUNNING
        held = {"team": "default", "gpu_type": "gpu"}
        assert after.metrics.registry.get_sample_value("dlspawner_gpus_held", held) == 3


def test_notices_of_an_older_schema_are_read(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'old.sqlite'}")
    values = {"job": "j", "user_name": "alice", "server_name": "", "cause": "", "text": "It goes on.", "keep": False}
    with engine.begin() as connection:
        command.upgrade(db_engine._config(connection), "0007")
        connection.execute(insert(notices).values(id="n", kind="goes-on", posted=NOW, **values))
        command.upgrade(db_engine._config(connection), "head")
        assert [one.kind for one in read_notices(connection)] == [NoticeKind.PREEMPTION_CANCELLED]
    engine.dispose()


def test_database_of_a_newer_version_is_refused(db_url: str) -> None:
    asyncio.run(Database.open(db_url).close())
    engine = create_engine(db_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(DatabaseUnusable, match=r"newer version of dlspawner.*9999"):
        Database.open(db_url)


def test_many_managers_migrate_at_once(db_url: str) -> None:
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
def test_wrong_url_is_a_sentence_without_the_password(url: str, sentence: str) -> None:
    with pytest.raises(DatabaseUnusable, match=sentence) as caught:
        Database.open(url)
    assert "secret" not in str(caught.value)


# A database that accepts connections and answers no query


def stuck(url: str) -> Engine:
    """Returns an engine whose open transaction keeps every other Manager from renewing its lease."""
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def by_hand(connection: Any, _: Any) -> None:
        if engine.dialect.name == "sqlite":
            connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def lock(connection: Any) -> None:
        sqlite = engine.dialect.name == "sqlite"
        connection.exec_driver_sql("BEGIN EXCLUSIVE" if sqlite else "LOCK TABLE leases IN ACCESS EXCLUSIVE MODE")

    return engine


async def test_a_manager_whose_database_hangs_stops_acting_when_its_lease_is_over(
    harness: ManagerHarness, db_url: str
) -> None:
    harness.lease_seconds = 5
    engine = stuck(harness.db_url)
    async with harness.manager() as leader:
        with engine.begin():
            with pytest.raises(NotLeader):
                await asyncio.wait_for(leader.ask(wants()), 25)
            await until(lambda: leader.admission is None, "it does not lead")
        await until(lambda: leader.admission is not None, "it leads again")
        assert (await leader.ask(wants("bob"))).decision == "admit"
    engine.dispose()


async def test_statement_that_postgresql_does_not_finish_fails(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(db_engine._SESSION, "statement_timeout", "1s")
    store = await asyncio.to_thread(Database.open, create(postgres))
    with pytest.raises(DatabaseUnavailable):
        await store.read(lambda connection: connection.execute(text("SELECT pg_sleep(30)")))
    assert await store.keys("alice") == []
    await store.close()


async def test_libpq_is_told_to_give_up_on_a_silent_postgresql_after_15_seconds(postgres: str) -> None:
    store = await asyncio.to_thread(Database.open, create(postgres))
    known = await store.read(lambda connection: connection.connection.driver_connection.info.get_parameters())  # type: ignore[union-attr]
    assert (known["keepalives_idle"], known["tcp_user_timeout"]) == ("5", "15000")
    await store.close()


def test_what_the_address_says_of_patience_counts(postgres: str) -> None:
    engine = db_engine.open_engine(f"{create(postgres)}&tcp_user_timeout=60000", 1)
    with engine.connect() as connection:
        found = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    assert found["tcp_user_timeout"] == "60000"
    engine.dispose()
