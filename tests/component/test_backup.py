"""`dlspawner backup` and `dlspawner restore`: a directory that holds all of it, and no live state that is replaced."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from dlspawner import cli
from dlspawner.clients.kubernetes import NAMESPACES, SECRETS, KubernetesClient
from dlspawner.devcluster import api
from dlspawner.local.state import lock
from dlspawner.manager.db.engine import open_engine, upgrade
from tests.component.manager import databases

HUB_SCHEMA = "ff1860e38070"  # one that JupyterHub 5 and 6 know


def managers(url: str) -> sqlalchemy.Engine:
    """A database of a Manager, in which one user has a uid."""
    engine = open_engine(url, 1)
    upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO uid_high_water VALUES (1, 4711)")
    return engine


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state of `dlspawner local` while a Manager runs: its last transaction is in SQLite's log."""
    state = tmp_path / "state"
    (state / "gateway").mkdir(parents=True)
    (state / "gateway" / "user_ca").write_text("the key of the CA")
    (state / "secrets.json").write_text("{}")
    with closing(sqlite3.connect(state / "hub.sqlite")) as hub:
        hub.execute("CREATE TABLE alembic_version (version_num TEXT)")
        hub.execute("INSERT INTO alembic_version VALUES (?)", (HUB_SCHEMA,))
        hub.commit()
    engine = managers(f"sqlite:///{state / 'manager.sqlite'}")
    yield state
    engine.dispose()


def test_what_is_restored_is_what_was_there_and_nobody_else_may_read_it(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, again = tmp_path / "saved", tmp_path / "again"
    assert cli.main(["backup", str(saved), f"--state={state}"]) == 0
    assert saved.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o077 for file in saved.rglob("*")} == {0}
    assert cli.main(["backup", str(saved), f"--state={state}"]) == 1
    assert "exists already: name a new directory" in capsys.readouterr().err
    assert cli.main(["restore", str(saved), f"--state={again}"]) == 0
    assert {file.stat().st_mode & 0o077 for file in again.rglob("*")} == {0}
    assert (again / "gateway" / "user_ca").read_text() == "the key of the CA"
    with closing(sqlite3.connect(again / "manager.sqlite")) as restored:
        assert restored.execute("SELECT highest FROM uid_high_water").fetchall() == [(4711,)]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("live", "Another launcher already runs"),
        ("stopped", "exists. A restore replaces nothing"),
        ("newer", "has the schema 9999, which is newer than this version: install dlspawner"),
        ("incomplete", "is no complete backup"),
        ("unnamed", "say where it goes: --manager-db, --state"),
    ],
)
def test_a_restore_that_is_refused_writes_nothing(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, said: str
) -> None:
    saved, target = tmp_path / "saved", tmp_path / "target"
    assert cli.main(["backup", str(saved), f"--state={state}"]) == 0
    where = [f"--state={target}"]
    if case == "live":
        target.mkdir()
        lock(target)
    elif case == "stopped":
        where = [f"--state={state}"]
    elif case == "incomplete":
        (saved / "backup.json").unlink()
    elif case == "unnamed":
        where = [f"--hub-db=sqlite:///{target}"]
    else:
        index = json.loads((saved / "backup.json").read_text())
        index["databases"]["manager"]["schema"] = ["9999"]
        (saved / "backup.json").write_text(json.dumps(index))
    assert cli.main(["restore", str(saved), *where]) == 1
    assert said in capsys.readouterr().err
    assert not target.exists() or not list(target.iterdir())


@pytest.mark.skipif(not databases.INSTALLED, reason="no PostgreSQL here")
def test_a_database_of_postgresql(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(databases.PROGRAMS), prepend=":")
    with databases.postgresql() as server:
        live, empty = (databases.create(server).replace("postgres@", "postgres:p%40ss@", 1) for _ in ("live", "empty"))
        databases.execute(server, "ALTER ROLE postgres PASSWORD 'p@ss'")
        Path(server, "data", "pg_hba.conf").write_text("local all all scram-sha-256\n")
        databases.execute(server, "SELECT pg_reload_conf()")
        managers(live).dispose()
        assert cli.main(["backup", str(tmp_path / "saved"), f"--manager-db={live}"]) == 0
        assert cli.main(["restore", str(tmp_path / "saved"), f"--manager-db={live}"]) == 1
        assert "has tables" in capsys.readouterr().err
        assert cli.main(["restore", str(tmp_path / "saved"), f"--manager-db={empty}"]) == 0
        engine = open_engine(empty, 1)
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT highest FROM uid_high_water").all() == [(4711,)]
        engine.dispose()


async def test_secrets_of_kubernetes_keep_what_helm_knows_them_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await api.start(tmp_path / "cluster")
    kubeconfig, saved = server.kubeconfig, str(tmp_path / "saved")

    async def run(command: str, namespace: str) -> int:
        options = [f"--secrets={namespace}", f"--kubeconfig={kubeconfig}"]
        return await asyncio.to_thread(cli.main, [command, saved, *options])

    async with await KubernetesClient.connect(kubeconfig) as client:
        for name in ("one", "two"):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
        annotations = {"meta.helm.sh/release-name": "dlspawner"}
        kept = {"metadata": {"name": "hub", "annotations": annotations}, "data": {"token": "c2VjcmV0"}}
        for secret in (kept, {"metadata": {"name": "of-another-product"}}):
            await client.create(SECRETS, secret, "one")
        assert await run("backup", "one") == 0
        assert await run("restore", "one") == 1
        assert "the Secrets hub exist in one" in capsys.readouterr().err
        assert await run("restore", "two") == 0
        (restored,) = await client.list(SECRETS, "two")
        assert restored["data"] == kept["data"]
        assert restored["metadata"]["annotations"] == annotations
    await server.stop()
