"""Idempotency keys as rows: which request each one stands for, and how that was answered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from dlspawner.manager.db.tables import claims

KEPT_FOR = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that has a key; without an answer until one is known."""

    request: str  # a fingerprint of it
    made: datetime
    status: int | None = None
    answer: str = ""


def claim(connection: Connection, owner: str, key: str, request: str, now: datetime) -> Claim | None:
    """Take a key; ``None`` when it was free, else what it stands for already."""
    connection.execute(delete(claims).where(claims.c.made < now - KEPT_FOR))
    row = connection.execute(select(claims).where(_mine(owner, key))).first()
    if row is not None:
        return Claim(row.request, row.made, row.status, row.answer)
    connection.execute(insert(claims).values(owner=owner, key=key, request=request, made=now, answer=""))
    return None


def settle(connection: Connection, owner: str, key: str, status: int, answer: str) -> None:
    """From now on this is the answer."""
    connection.execute(update(claims).where(_mine(owner, key)).values(status=status, answer=answer))


def release(connection: Connection, owner: str, key: str) -> None:
    """Nothing was done: the key may be used again."""
    connection.execute(delete(claims).where(_mine(owner, key)))


def _mine(owner: str, key: str) -> ColumnElement[bool]:
    return (claims.c.owner == owner) & (claims.c.key == key)
