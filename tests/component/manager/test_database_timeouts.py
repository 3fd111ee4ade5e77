"""A database that takes every question and answers none: nobody waits for it for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from dlspawner.manager.db import engine as db_engine
from dlspawner.manager.db.repository import NotLeader
from dlspawner.manager.db.store import Database, DatabaseUnavailable
from tests.component.manager.databases import create
from tests.component.manager.manager_harness import ManagerHarness, until, wants


def stuck(url: str) -> Engine:
    """Whoever begins a transaction with it keeps all others from writing that they act."""
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
