"""One Hub with one Manager for all tests of the Manager; each test uses people of its own names.

And an office: the deciding part of a Manager with a real API server and database, and a Hub that a test plays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from dlspawner.cluster import Cluster
from dlspawner.devcluster.api import start
from tests.edges.test_manager.office import Office, make_namespace, prepare
from tests.edges.test_manager.world import World, running

POSTGRES = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("world")) as world:
        yield world


@pytest.fixture
def person() -> str:
    """A user nobody else in the tests is."""
    return f"user-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The socket directory of a PostgreSQL of our own."""
    if not (POSTGRES / "initdb").exists():
        pytest.skip("PostgreSQL 15 is not installed here")
    pytest.importorskip("psycopg")
    directory = Path(tempfile.mkdtemp(prefix="dlspawner-pg-"))
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if as_nobody:
        os.chown(directory, 65534, 65534)  # PostgreSQL refuses to run as root
    data = directory / "data"
    quiet: dict[str, Any] = {"cwd": directory, "stdout": subprocess.DEVNULL, "timeout": 60}
    subprocess.run(
        [*as_nobody, POSTGRES / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N"], check=True, **quiet
    )
    control = [*as_nobody, POSTGRES / "pg_ctl", "-D", data, "-w", "-l", directory / "log"]
    options = f"-c listen_addresses='' -c unix_socket_directories={directory} -c shared_buffers=16MB"
    subprocess.run([*control, "-o", options, "start"], check=True, **quiet)
    yield str(directory)
    subprocess.run([*control, "-m", "immediate", "stop"], check=True, **quiet)
    shutil.rmtree(directory)


@pytest.fixture(params=["sqlite", "postgresql"])
def db_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind that the Manager must work with."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'manager.sqlite'}"
    directory = request.getfixturevalue("postgres")
    name = f"db_{uuid.uuid4().hex[:12]}"
    server = sqlalchemy.create_engine(
        f"postgresql+psycopg://postgres@/postgres?host={directory}", poolclass=sqlalchemy.NullPool
    )
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://postgres@/{name}?host={directory}"


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLite, and for tests that ask for `db_url` PostgreSQL as well."""
    both = "db_url" in request.fixturenames
    return str(request.getfixturevalue("db_url")) if both else f"sqlite:///{tmp_path / 'manager.sqlite'}"


@pytest.fixture
async def office(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    api = await start(tmp_path / "cluster", 0)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    prepare(tmp_path)
    async with await Cluster.connect(api.kubeconfig) as cluster:
        await make_namespace(cluster)
        made = Office(tmp_path, database, cluster)
        await made.make_node()
        yield made
    await api.stop()
