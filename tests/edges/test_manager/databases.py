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
from typing import Any

import sqlalchemy

_PROGRAMS = Path("/usr/lib/postgresql/15/bin")
INSTALLED = (_PROGRAMS / "initdb").exists()


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """The directory of its socket."""
    directory = Path(tempfile.mkdtemp(prefix="dlspawner-pg-"))
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if as_nobody:
        os.chown(directory, 65534, 65534)  # PostgreSQL refuses to run as root
    data = directory / "data"
    quiet: dict[str, Any] = {"cwd": directory, "stdout": subprocess.DEVNULL, "timeout": 60}
    subprocess.run(
        [*as_nobody, _PROGRAMS / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N"], check=True, **quiet
    )
    control = [*as_nobody, _PROGRAMS / "pg_ctl", "-D", data, "-w", "-l", directory / "log"]
    options = f"-c listen_addresses='' -c unix_socket_directories={directory} -c shared_buffers=16MB"
    subprocess.run([*control, "-o", options, "start"], check=True, **quiet)
    try:
        yield str(directory)
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, **quiet)
        shutil.rmtree(directory)


def create(directory: str) -> str:
    """The URL of a new, empty database."""
    name = f"db_{uuid.uuid4().hex[:12]}"
    server = sqlalchemy.create_engine(
        f"postgresql+psycopg://postgres@/postgres?host={directory}", poolclass=sqlalchemy.NullPool
    )
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://postgres@/{name}?host={directory}"
