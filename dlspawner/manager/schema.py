"""The Manager's tables as the code uses them now; `migrations/` says how a database gets there.

A test upgrades an empty database and compares it with this file, so the two cannot drift apart. Users are the Hub's:
there is no table of them, only their names, so a name without rows looks like one that does not exist.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Column, DateTime, Dialect, Integer, MetaData, String, Table, Text, UniqueConstraint
from sqlalchemy.types import TypeDecorator

metadata = MetaData(
    # Names for everything, or SQLite could never alter a constraint again.
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(column_0_N_label)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """Aware datetimes in UTC, on SQLite too, which stores none."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


ssh_keys = Table(
    "ssh_keys",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user_name", String(255), nullable=False),
    Column("key", Text, nullable=False),  # "type base64"
    Column("fingerprint", String(64), nullable=False),
    Column("name", String(100), nullable=False),
    Column("added", UtcDateTime, nullable=False),
    Column("last_used", UtcDateTime),
    # Once per user, not once for all: the login name says who logs in, so two accounts of one person may share a key,
    # nobody can lock a key of somebody else by adding it first, and no answer tells whether others have it.
    UniqueConstraint("user_name", "fingerprint"),
    sqlite_autoincrement=True,  # an id is never given again: a late "used" cannot hit another key
)

key_suggestions = Table(
    "key_suggestions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user_name", String(255), nullable=False),
    Column("key", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("name", String(100), nullable=False),
    Column("source", String(200), nullable=False),  # the file it was found in, as the job says
    Column("server_name", String(255), nullable=False),
    Column("found", UtcDateTime, nullable=False),
    UniqueConstraint("user_name", "fingerprint"),
    sqlite_autoincrement=True,
)

# The uid, and gid of the same number, of people whose authenticator tells none. Rows stay for ever: files may outlive
# their owner's name in the Hub, and must never become somebody else's.
accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user_name", String(255), nullable=False, unique=True),
    Column("uid", Integer, nullable=False, unique=True),
    Column("made", UtcDateTime, nullable=False),
)

# How far uids have been given out, for each beginning that the range had: the next one is larger, also when somebody
# removes rows of `accounts` by hand.
uid_marks = Table(
    "uid_marks",
    metadata,
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("highest", Integer, nullable=False),
)
