"""The database's transactions, run in a small pool of threads, and the tables of users: SSH keys, accounts, settings.

Every method is one transaction.

Times come from the caller. A user is a name: asking for one without rows does the same work as for one that has some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Row, delete, exists, func, insert, select, text, update
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dlspawner.core.job import JobState
from dlspawner.core.unix_account import UidRange
from dlspawner.manager.db.engine import open_engine, upgrade
from dlspawner.manager.db.tables import (
    accounts,
    jobs,
    key_suggestions,
    metadata,
    notification_settings,
    outbox,
    renamed,
    ssh_keys,
    ssh_settings,
    uid_high_water,
)
from dlspawner.manager.model.ssh_keys import PublicKey

T = TypeVar("T")

THREADS = 4
ACCOUNTS_LOCK = 0x75696473  # "uids": the advisory lock on PostgreSQL under which a new uid is chosen
_OF_A_NAME = [table for table in metadata.sorted_tables if "user_name" in table.c and table is not accounts]
USED_EVERY = timedelta(minutes=1)  # a script that logs in each second writes once a minute


class DatabaseUnavailable(Exception):
    """The database failed; nothing was changed. The message may be shown to users."""


class DatabaseRejected(DatabaseUnavailable):
    """The database answers, and will never take this; nothing was changed."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    id: int
    key: str
    fingerprint: str
    name: str
    added: datetime
    last_used: datetime | None


@dataclass(frozen=True, slots=True)
class KeySuggestion:
    """A key that one of the user's jobs found in the home directory."""

    id: int
    key: str
    fingerprint: str
    name: str
    source: str
    server_name: str
    found: datetime


@dataclass(frozen=True, slots=True)
class FoundKey:
    """An SSH key that a job reports, and the file it was in."""

    key: PublicKey
    source: str


@dataclass(frozen=True, slots=True)
class AddedKeys:
    """The result of adding keys; `known` ones were there before."""

    new: tuple[StoredKey, ...]
    known: tuple[StoredKey, ...]


@dataclass(frozen=True, slots=True)
class TooManyKeys:
    """Nothing was added: the user would have more keys than allowed."""

    limit: int
    present: int

    @property
    def sentence(self) -> str:
        return f"You have {self.present} of at most {self.limit} keys. Remove one first."


@dataclass(frozen=True, slots=True)
class AllocatedUid:
    """A person's uid; `new` when this request made it."""

    uid: int
    new: bool


class Database:
    """The database behind asynchronous methods; made by `open`, ended by `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader = engine.execution_options(reading=True)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")

    @classmethod
    def open(cls, url: str) -> Self:
        """Opens and migrates; raises DatabaseUnusable. Blocks: it is called before the server listens."""
        engine = open_engine(url, THREADS)
        try:
            upgrade(engine)
        except BaseException:  # cancelled as well: the connections are not to stay open
            engine.dispose()
            raise
        return cls(engine)

    @property
    def url(self) -> str:
        """The database's URL with its password: for processes of ours, never for a log or a command line."""
        return self._engine.url.render_as_string(hide_password=False)

    async def close(self) -> None:
        """Finish running transactions, then close the connections."""
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()

    async def keys(self, user: str) -> list[StoredKey]:
        """The user's keys, oldest first."""
        return await self.read(lambda connection: _keys(connection, user))

    async def registered(self, keys: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Returns the registered ones of these pairs of user name and fingerprint."""
        columns = select(ssh_keys.c.user_name, ssh_keys.c.fingerprint)
        query = columns.where(ssh_keys.c.fingerprint.in_(sorted({fingerprint for _, fingerprint in keys})))
        rows = await self.read(lambda connection: connection.execute(query).all())
        return {(row.user_name, row.fingerprint) for row in rows} & set(keys)

    async def add_keys(
        self, user: str, keys: Sequence[PublicKey], now: datetime, limit: int
    ) -> AddedKeys | TooManyKeys:
        """Add all that are not there yet, or none when there would be more than `limit`."""
        return await self.write(lambda connection: _add_keys(connection, user, keys, now, limit))

    async def remove_key(self, user: str, id_: int) -> StoredKey | None:
        """Remove one of the user's keys and return it; None when they have no such key."""

        def remove(connection: Connection) -> StoredKey | None:
            mine = (ssh_keys.c.user_name == user) & (ssh_keys.c.id == id_)
            row = connection.execute(select(ssh_keys).where(mine)).first()
            connection.execute(delete(ssh_keys).where(mine))
            return None if row is None else _stored(row)

        return await self.write(remove)

    async def key_used(self, user: str, id_: int, now: datetime) -> bool:
        """Note that a key logged in, at most once a minute; False when the user has no such key."""
        mine = (ssh_keys.c.user_name == user) & (ssh_keys.c.id == id_)

        def last_used(connection: Connection) -> Row[Any] | None:
            return connection.execute(select(ssh_keys.c.last_used).where(mine)).first()

        row = await self.read(last_used)
        if row is None:
            return False
        if row.last_used is None or row.last_used <= now - USED_EVERY:
            await self.write(lambda connection: connection.execute(update(ssh_keys).where(mine).values(last_used=now)))
        return True

    async def suggestions(self, user: str) -> list[KeySuggestion]:
        """Keys found in the user's home that they have not added."""
        added = select(ssh_keys.c.fingerprint).where(ssh_keys.c.user_name == user)
        query = (
            select(key_suggestions)
            .where(key_suggestions.c.user_name == user, key_suggestions.c.fingerprint.not_in(added))
            .order_by(key_suggestions.c.source, key_suggestions.c.id)
        )
        return await self.read(lambda connection: [_suggestion(row) for row in connection.execute(query)])

    async def suggest(self, user: str, server: str, found: Sequence[FoundKey], now: datetime) -> None:
        """Replace what is suggested to the user: all their jobs see the same home directory."""
        rows = {
            one.key.fingerprint: {
                "user_name": user,
                "key": one.key.key,
                "fingerprint": one.key.fingerprint,
                "name": one.key.name,
                "source": one.source,
                "server_name": server,
                "found": now,
            }
            for one in found
        }

        def replace(connection: Connection) -> None:
            _only_one_writer(connection, user)
            connection.execute(delete(key_suggestions).where(key_suggestions.c.user_name == user))
            if rows:
                connection.execute(insert(key_suggestions), list(rows.values()))

        await self.write(replace)

    async def starts_by_login(self, user: str) -> bool:
        """True if the user wants a login to start the job that it is for; False by default."""
        query = select(ssh_settings.c.start_on_connect).where(ssh_settings.c.user_name == user)
        return bool(await self.read(lambda connection: connection.scalar(query)))

    async def start_by_login(self, user: str, wanted: bool) -> None:
        """Remember whether the user wants that."""

        def remember(connection: Connection) -> None:
            _only_one_writer(connection, user)
            connection.execute(delete(ssh_settings).where(ssh_settings.c.user_name == user))
            connection.execute(insert(ssh_settings).values(user_name=user, start_on_connect=wanted))

        await self.write(remember)

    async def account(self, user: str) -> str | None:
        """The name whose uid and home directory the user has: the first one; None if it is another person's account."""
        return await self.read(lambda connection: _account(connection, user))

    async def uid(self, account: str, uids: UidRange, now: datetime) -> AllocatedUid | None:
        """The account's uid for ever, chosen now if there is none; None when every uid of the range is taken."""
        known = await self.read(lambda connection: _uid(connection, account))
        if known is not None:
            return AllocatedUid(known, new=False)
        return await self.write(lambda connection: _allocate(connection, account, uids, now))

    async def rename(self, user: str, new: str) -> str | None:
        """Gives the account, the keys and the history of a user to the ``new`` name; returns why it cannot."""
        return await self.write(lambda connection: _rename(connection, user, new))

    async def forget_keys(self, user: str) -> None:
        """The user is removed: another person of that name is not reached with the keys, and tells nothing there."""

        def forget(connection: Connection) -> None:
            for table in (ssh_keys, key_suggestions, ssh_settings, notification_settings, outbox):
                connection.execute(delete(table).where(table.c.user_name == user))

        await self.write(forget)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """One transaction that changes nothing."""
        return await self._transaction(self._reader, query)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """One transaction; when this returns it is on the disk."""
        return await self._transaction(self._engine, change)

    async def _transaction(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        def transaction() -> T:
            try:
                with engine.begin() as connection:
                    return work(connection)
            except (IntegrityError, DataError, UnicodeError, OverflowError) as error:
                raise DatabaseRejected("The Manager's database does not take this.") from error
            except (DBAPIError, PoolTimeout) as error:
                raise DatabaseUnavailable("The Manager's database does not answer. Try again soon.") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, transaction)


def _only_one_writer(connection: Connection, user: str) -> None:
    """Let requests about one user go one after the other; on SQLite all writers do already."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:user, 0))"), {"user": user})


def _account(connection: Connection, user: str) -> str | None:
    rows = connection.execute(select(renamed).where((renamed.c.user_name == user) | (renamed.c.account == user))).all()
    own = next((str(row.account) for row in rows if row.user_name == user), None)
    return own if own or rows else user


def _rename(connection: Connection, user: str, new: str) -> str | None:
    going = (jobs.c.user_name == user) & (jobs.c.state != JobState.ENDED.value)
    if connection.scalar(select(exists().where(going))):
        return f"{user} has jobs that wait, run or end: cancel or stop them, and rename when they have ended."
    account = _account(connection, user)
    # A user whose account belongs to another person gets the account of the new name, which must be free then.
    used = [*_OF_A_NAME, *([accounts] if account is None else [])]
    if any(connection.scalar(select(exists().where(table.c.user_name == new))) for table in used):
        return f"{new} was another person's name, who has files, keys or a history here. Choose another name."
    for table in _OF_A_NAME:
        connection.execute(update(table).where(table.c.user_name == user).values(user_name=new))
    connection.execute(delete(renamed).where(renamed.c.user_name == new))
    if account not in (None, new):
        connection.execute(insert(renamed).values(user_name=new, account=account))
    return None


def _uid(connection: Connection, user: str) -> int | None:
    found: int | None = connection.scalar(select(accounts.c.uid).where(accounts.c.user_name == user))
    return found


def _allocate(connection: Connection, user: str, uids: UidRange, now: datetime) -> AllocatedUid | None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ACCOUNTS_LOCK})
    known = _uid(connection, user)
    if known is not None:
        return AllocatedUid(known, new=False)
    uid = _next_uid(connection, uids)
    if uid not in uids:
        return None
    connection.execute(insert(accounts).values(user_name=user, uid=uid, made=now))
    mark = uid_high_water.c.first == uids.first
    if not connection.execute(update(uid_high_water).where(mark).values(highest=uid)).rowcount:
        connection.execute(insert(uid_high_water).values(first=uids.first, highest=uid))
    return AllocatedUid(uid, new=True)


def _next_uid(connection: Connection, uids: UidRange) -> int:
    """One more than every uid that the range, or one that overlaps with it, has ever given or has in a row."""
    overlaps = (uid_high_water.c.first <= uids.last) & (uid_high_water.c.highest >= uids.first)
    present = accounts.c.uid.between(uids.first, uids.last)
    largest: list[int | None] = [
        connection.scalar(select(func.max(uid_high_water.c.highest)).where(overlaps)),
        connection.scalar(select(func.max(accounts.c.uid)).where(present)),
    ]
    return max([uids.first, *(one + 1 for one in largest if one is not None)])


def _keys(connection: Connection, user: str) -> list[StoredKey]:
    query = select(ssh_keys).where(ssh_keys.c.user_name == user).order_by(ssh_keys.c.id)
    return [_stored(row) for row in connection.execute(query)]


def _add_keys(
    connection: Connection, user: str, keys: Sequence[PublicKey], now: datetime, limit: int
) -> AddedKeys | TooManyKeys:
    _only_one_writer(connection, user)
    present = {key.fingerprint: key for key in _keys(connection, user)}
    wanted = {key.fingerprint: key for key in keys}
    new = [key for fingerprint, key in wanted.items() if fingerprint not in present]
    if new and len(present) + len(new) > limit:
        return TooManyKeys(limit, len(present))
    for key in new:
        connection.execute(
            insert(ssh_keys).values(user_name=user, key=key.key, fingerprint=key.fingerprint, name=key.name, added=now)
        )
    after = {key.fingerprint: key for key in _keys(connection, user)}
    return AddedKeys(
        new=tuple(after[key.fingerprint] for key in new),
        known=tuple(present[fingerprint] for fingerprint in wanted if fingerprint in present),
    )


def _stored(row: Row[Any]) -> StoredKey:
    return StoredKey(row.id, row.key, row.fingerprint, row.name, row.added, row.last_used)


def _suggestion(row: Row[Any]) -> KeySuggestion:
    return KeySuggestion(row.id, row.key, row.fingerprint, row.name, row.source, row.server_name, row.found)
