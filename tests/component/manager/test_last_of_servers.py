"""How the last job of each of a person's servers ended, of a history that is long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from dlspawner.manager.db import jobs
from dlspawner.manager.db.store import Database
from tests.component.manager.history import NOON, Past, write_past

PAST = 300
HOUR = timedelta(hours=1)


@pytest.fixture
async def store(db_url: str) -> AsyncIterator[Database]:
    made = await asyncio.to_thread(Database.open, db_url)
    yield made
    await made.close()


async def test_each_server_s_newest_job_that_ended_counts(store: Database) -> None:
    past = [
        *(Past("T0 R0 E1", job="j-1", noon=NOON), Past("T0 R0 E1", job="j-2", noon=NOON + 3 * HOUR)),
        *(Past("T0 R0 E1", job="j-3", noon=NOON + HOUR), Past("T0 R0", job="j-4", noon=NOON + 5 * HOUR)),
        *(Past("T0 R0 E1", job="j-5", server="a"), Past("T0 R0", job="j-6", server="b")),
        *(Past("T0 E1", job="j-7", server="c"), Past("T0 E1", "bob", job="j-8", server="d", noon=NOON + HOUR)),
    ]
    await write_past(store, *past)

    async def read(user: str) -> dict[str, str]:
        found = await store.read(lambda connection: jobs.read_last_ends(connection, user))
        return {server: one.job for server, one in found.items()}

    assert await read("alice") == {"": "j-2", "a": "j-5", "c": "j-7"}
    assert await read("bob") == {"d": "j-8"}
    assert await read("carol") == {}


async def test_a_long_history_is_not_read_for_it(tmp_path: Any) -> None:
    """Counted in steps of SQLite's machine, which are the same on every computer."""
    store = await asyncio.to_thread(Database.open, f"sqlite:///{tmp_path / 'manager.sqlite'}")
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    try:
        few = [Past("T0 R0 E1", server=f"s{number % 3}", noon=NOON + number * HOUR) for number in range(PAST)]
        await write_past(store, *few)
        event.listen(
            store._engine, "before_cursor_execute", lambda *told: told[1].connection.set_progress_handler(count, 100)
        )

        async def cost() -> int:
            nonlocal steps
            steps = 0
            assert len(await store.read(lambda connection: jobs.read_last_ends(connection, "alice"))) == 3
            return steps

        short = await cost()
        more = [Past("T0 R0 E1", server=f"s{number % 3}", noon=NOON - number * HOUR) for number in range(1, 10 * PAST)]
        await write_past(store, *more)
        assert await cost() <= 2 * short
    finally:
        await store.close()
