"""The Manager's history as a trace."""

from __future__ import annotations

from datetime import timedelta

from dlspawner.manager.db.activity import write_idle_periods
from dlspawner.manager.db.store import Database
from dlspawner.manager.history.trace import read
from tests.component.manager.history import NOON, Past, write_past

HOUR = timedelta(hours=1)


async def test_history_is_read_as_a_trace(store: Database, db_url: str) -> None:
    past = [
        Past("Q0 T1 R1 E4", gpus=2),
        Past("Q2 E3"),
        Past("T1 R1 E2", gpus=0),
        Past("Q0.5 R1 E1.5", user="bob", team="nlp"),
    ]
    first, *_ = await write_past(store, *past)
    for ended, begun in (
        ({}, {first: NOON + HOUR / 2}),  # of an earlier run
        ({}, {first: NOON + 1.5 * HOUR}),
        ({first: (NOON + 1.5 * HOUR, NOON + 2 * HOUR)}, {first: NOON + 3 * HOUR}),
    ):
        await store.write(lambda connection, one=ended, other=begun: write_idle_periods(connection, one, other))
    trace = read(db_url)
    assert trace.begin == NOON
    assert [(one.submit, one.seconds, one.gpus, one.team, one.user, one.activity) for one in trace.jobs] == [
        (0, 3 * 3600, 2, "vision", "alice", ((0, 1800, 2), (3600, 7200, 2))),
        (1800, 1800, 1, "nlp", "bob", None),
    ]
    assert [one.user for one in read(db_url, most=1).jobs] == ["bob"]
