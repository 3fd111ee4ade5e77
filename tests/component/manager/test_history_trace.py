"""The Manager's history as a trace."""

from __future__ import annotations

from dlspawner.manager.db.store import Database
from dlspawner.manager.history.trace import read
from tests.component.manager.history import NOON, Past, write_past


async def test_history_is_read_as_a_trace(store: Database, db_url: str) -> None:
    past = [
        Past("Q0 T1 R1 E4", gpus=2),
        Past("Q2 E3"),
        Past("T1 R1 E2", gpus=0),
        Past("Q0.5 R1 E1.5", user="bob", team="nlp"),
    ]
    await write_past(store, *past)
    trace = read(db_url)
    assert trace.begin == NOON
    assert [(one.submit, one.seconds, one.gpus, one.team, one.user) for one in trace.jobs] == [
        (0, 3 * 3600, 2, "vision", "alice"),
        (1800, 1800, 1, "nlp", "bob"),
    ]
