"""A PostgreSQL of our own, with its defaults for what is durable."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy

PROGRAMS = Path("/usr/lib/postgresql/15/bin")
INSTALLED = (PROGRAMS / "initdb").exists()


def _nobody() -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []


def control(directory: str, *what: str) -> None:
    """What pg_ctl does with the server of this directory: start, stop."""
    data, log = f"{directory}/data", f"{directory}/log"
    options = f"-c listen_addresses='' -c unix_socket_directories={directory} -c shared_buffers=16MB"
    command = [*_nobody(), PROGRAMS / "pg_ctl", "-D", data, "-w", "-l", log, "-o", options, "-m", "immediate", *what]
    subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL, timeout=60)


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """The directory of its socket."""
    with _served([PROGRAMS / "initdb", "-U", "postgres", "-A", "trust", "-N"]) as directory:
        yield directory


@contextlib.contextmanager
def stand_by(primary: str) -> Iterator[str]:
    """One that streams from this server, which from now on commits nothing that the stand-by has not written."""
    copy = [PROGRAMS / "pg_basebackup", "-h", primary, "-U", "postgres", "-R", "-c", "fast", "-C", "-S", "stand_by"]
    with _served(copy) as directory:
        for change in ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"):
            execute(primary, change)
        yield directory


@contextlib.contextmanager
def _served(make: list[str | Path]) -> Iterator[str]:
    """Makes the files of a server, and starts it."""
    directory = Path(tempfile.mkdtemp(prefix="dlspawner-pg-"))
    if os.geteuid() == 0:
        os.chown(directory, 65534, 65534)
    command = [*_nobody(), *make, "-D", directory / "data"]
    subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL, timeout=60)
    # Who is killed stops nothing any more: what waits for the end of its input does it then.
    last = 'read _; kill -QUIT "$(head -n 1 "$0/data/postmaster.pid")" && rm -rf "$0"'
    watching = ["sh", "-c", last, directory]
    with subprocess.Popen(watching, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
        control(str(directory), "start")
        try:
            yield str(directory)
        finally:
            if (directory / "data" / "postmaster.pid").exists():
                control(str(directory), "stop")
            shutil.rmtree(directory)


def execute(directory: str, statement: str) -> None:
    """As its administrator."""
    server = sqlalchemy.create_engine(
        f"postgresql+psycopg://postgres@/postgres?host={directory}", poolclass=sqlalchemy.NullPool
    )
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement)


def create(directory: str) -> str:
    """The URL of a new, empty database."""
    name = f"db_{uuid.uuid4().hex[:12]}"
    execute(directory, f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://postgres@/{name}?host={directory}"
