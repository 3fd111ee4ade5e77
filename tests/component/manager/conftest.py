"""One Hub with one Manager for all tests of the Manager; each test uses people of its own names.

And a harness: the deciding part of a Manager with a real API server and database, and a Hub that a test plays.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from dlspawner.clients.prometheus import PrometheusClient
from dlspawner.manager.db.store import Database
from tests.component.manager import databases
from tests.component.manager.manager_harness import Leader, ManagerHarness
from tests.component.manager.noticing import harnesses
from tests.component.manager.portals import portal, served, teams_yaml
from tests.component.manager.printing import PrintingHarness, printing
from tests.component.manager.quota import QuotaHub
from tests.component.manager.real_hub import RealHub, running
from tests.kubernetes import planes

__all__ = ["portal", "served", "teams_yaml"]  # fixtures
# No engine without a real control plane.
collect_ignore = [] if planes.WANTED else ["test_gang_hub.py", "test_kueue_hub.py", "test_engine_uninstalled.py"]
SLOW_COMMITS = "DLSPAWNER_TESTS_SLOW_COMMITS"  # seconds that each commit takes longer; `make flakes` sets it


@pytest.fixture(autouse=True)
def slow_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays commits where asked for: tests that read the database before the commit fail then."""
    seconds, write = float(os.environ.get(SLOW_COMMITS, "0")), Database.write
    if not seconds:
        return

    async def slow(self: Database, change: Callable[[Connection], Any]) -> Any:
        def late(connection: Connection) -> Any:
            found = change(connection)
            time.sleep(seconds)
            return found

        return await write(self, late)

    monkeypatch.setattr(Database, "write", slow)


@pytest.fixture(scope="session")
def real_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHub]:
    with running(tmp_path_factory.mktemp("real_hub")) as real_hub:
        yield real_hub


@pytest.fixture
def person() -> str:
    """A user nobody else in the tests is."""
    return f"user-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The socket directory of a PostgreSQL of our own."""
    if not databases.INSTALLED:
        pytest.skip("PostgreSQL 15 is not installed here")
    pytest.importorskip("psycopg")
    with databases.postgresql() as directory:
        yield directory


KINDS = [*([] if planes.WANTED else ["sqlite"]), pytest.param("postgresql", marks=pytest.mark.slow)]


@pytest.fixture(params=KINDS)
def db_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind that the Manager must work with; on a real control plane what is usual there."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'manager.sqlite'}"
    directory = request.getfixturevalue("postgres")
    return databases.create(directory)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLite, and for tests that ask for `db_url` PostgreSQL as well."""
    both = "db_url" in request.fixturenames
    return str(request.getfixturevalue("db_url")) if both else f"sqlite:///{tmp_path / 'manager.sqlite'}"


@pytest.fixture
async def store(db_url: str) -> AsyncIterator[Database]:
    made = await asyncio.to_thread(Database.open, db_url)
    yield made
    await made.close()


@pytest.fixture
async def prometheus(prometheus_url: str) -> AsyncIterator[PrometheusClient]:
    """The client of the Prometheus of a module."""
    made = PrometheusClient(prometheus_url)
    yield made
    await made.close()


@pytest.fixture
async def printing_harness(db_url: str, tmp_path: Path) -> AsyncIterator[PrintingHarness]:
    async with printing(tmp_path, db_url) as harness:
        yield harness


@pytest.fixture
def nothing_left(hub: QuotaHub) -> Iterator[None]:
    """A test with the Hub of its module leaves cluster and queue empty, and no traceback."""
    yield
    hub.clear()
    hub.check_logs()


@pytest.fixture
async def harness(database: str, tmp_path: Path) -> AsyncIterator[ManagerHarness]:
    async with harnesses(tmp_path, database) as made:
        await made.make_node()
        yield made


@pytest.fixture
async def leader(harness: ManagerHarness) -> AsyncIterator[Leader]:
    """The Manager of a harness, for tests without another one."""
    async with harness.manager() as made:
        yield made
