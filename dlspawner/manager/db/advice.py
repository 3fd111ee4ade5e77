"""The row of `advice`: the latest simulation of other policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from dlspawner.manager.db.tables import advice

RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"


@dataclass(frozen=True, slots=True)
class AdviceRecord:
    """``result``: of the latest run that had one, ``made`` then; ``problem``: why the latest run has none."""

    state: str
    asked: datetime
    asked_by: str
    ended: datetime | None
    problem: str
    made: datetime | None
    result: Mapping[str, Any]


def read_advice(connection: Connection) -> AdviceRecord | None:
    row = connection.execute(select(advice)).first()
    if row is None:
        return None
    result = json.loads(row.result or "{}")
    return AdviceRecord(row.state, row.asked, row.asked_by, row.ended, row.problem, row.made, result)


def begin_advice(connection: Connection, at: datetime, by: str) -> None:
    """A run has begun; the result of an earlier one stays."""
    row = {"state": RUNNING, "asked": at, "asked_by": by, "ended": None, "problem": ""}
    if not connection.execute(update(advice).values(row)).rowcount:
        connection.execute(insert(advice), [{"id": 1, **row, "made": None, "result": ""}])


def end_advice(connection: Connection, at: datetime, state: str, *, problem: str = "", result: str = "") -> None:
    made = {"made": at, "result": result} if result else {}
    connection.execute(update(advice).values({"state": state, "ended": at, "problem": problem, **made}))
