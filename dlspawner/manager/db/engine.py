"""Opening the Manager's database: the engine for SQLite or PostgreSQL, and its schema brought up to date.

Rules: every write transaction on SQLite takes the write lock at its start (BEGIN IMMEDIATE), so none fails half-way
because another process wrote; commits are durable (`synchronous=FULL`); migrations run at start inside one transaction
and under a lock, so that two Managers starting at once do not collide; a database newer than the code is refused.
Nothing waits for PostgreSQL for ever: a statement, and a connection to a silent server, end after a while. Nor
does PostgreSQL wait for a Manager that has vanished in a transaction, and keep what it has locked from the next one:
the server ends such a session in time for a stand-by to take over within 15 seconds.

Refused: the asynchronous engines. aiosqlite is a thread per connection, and asyncpg would be a second dialect to test;
`store.Database` keeps transactions off the event loop with a few threads, and the same code serves both databases.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

MIGRATIONS = Path(__file__).with_name("migrations")
LOCK = 0x646C7370  # "dlsp": the advisory lock of our migrations on PostgreSQL
WAIT_SECONDS = 30  # for another process's transaction
STATEMENT_SECONDS = 20  # on PostgreSQL, migrations excepted
# Between two statements of a transaction, migrations excepted: longer than the lease lasts, shorter than a take-over.
IDLE_SECONDS = 10
# Of the server, where the session's own: a peer that is gone without a word is noticed about 15 seconds later.
_SESSION = {
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
}
# Of libpq: a server that is gone without a word is noticed about 15 seconds after it was last heard of.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,  # milliseconds
}


class DatabaseUnusable(Exception):
    """The database cannot be used; the message is for the administrator."""


def open_engine(url: str, threads: int) -> Engine:
    """An engine for `url`, with a connection per thread; nothing is opened yet."""
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed, threads)
        return _postgresql(parsed, threads)
    except (ArgumentError, NoSuchModuleError) as error:
        raise DatabaseUnusable(f"Manager.db_url is not a database URL that SQLAlchemy knows: {error}") from error
    except ModuleNotFoundError as error:
        raise DatabaseUnusable(f"Manager.db_url needs the Python package {error.name!r}; install it.") from error


def open_to_read(url: str) -> Engine:
    """An engine that can change nothing, for a look from beside the Manager: no schema is made, no file created."""
    engine = open_engine(url, 1)
    if engine.dialect.name != "sqlite":
        return engine.execution_options(postgresql_readonly=True)
    file = f"file:{quote(str(engine.url.database))}?mode=ro"
    return create_engine("sqlite://", creator=lambda: sqlite3.connect(file, uri=True))


def upgrade(engine: Engine) -> None:
    """Brings the schema up to date; waits for another process that does the same."""
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            _lock(connection)
            _refuse_newer(connection)
            command.upgrade(_config(connection), "head")
    except DBAPIError as error:
        shown = engine.url.render_as_string(hide_password=True)
        raise DatabaseUnusable(f"The database {shown} (Manager.db_url) cannot be used: {error.orig}") from error


def _sqlite(url: URL, threads: int) -> Engine:
    if url.database in {None, "", ":memory:"}:
        raise DatabaseUnusable("Manager.db_url needs a file, such as sqlite:////var/lib/dlspawner/manager.sqlite.")
    directory = Path(str(url.database)).absolute().parent
    if not directory.is_dir():
        raise DatabaseUnusable(f"Manager.db_url names a file in {directory}, which is not there. Make it first.")
    engine = create_engine(url, pool_size=threads, max_overflow=0, connect_args={"timeout": WAIT_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql(url: URL, threads: int) -> Engine:
    patience = {name: value for name, value in _PATIENCE.items() if name not in url.query}
    engine = create_engine(url, pool_size=threads, max_overflow=0, pool_pre_ping=True, connect_args=patience)
    if url.get_backend_name() == "postgresql":
        event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_postgresql(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # Not as libpq's `options`, which administrators use, and poolers refuse.
    cursor = connection.cursor()
    for name, value in _SESSION.items():
        cursor.execute(f"SET {name} = '{value}'")
    cursor.close()
    connection.commit()


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)  # noqa: S101 — the sqlite dialect has no other driver here
    connection.isolation_level = None  # we say BEGIN ourselves, below
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _lock(connection: Connection) -> None:
    """One process at a time, until the transaction ends; on SQLite BEGIN IMMEDIATE was that already."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})


def _refuse_newer(connection: Connection) -> None:
    script = ScriptDirectory.from_config(_config(connection))
    known = {revision.revision for revision in script.walk_revisions()}
    unknown = set(MigrationContext.configure(connection).get_current_heads()) - known
    if unknown:
        raise DatabaseUnusable(
            f"The database was made by a newer version of dlspawner (its schema is {', '.join(sorted(unknown))}, this "
            f"version knows {', '.join(script.get_heads())}). Install that version again, or restore a backup."
        )


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
