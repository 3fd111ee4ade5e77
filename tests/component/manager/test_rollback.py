"""Upgrade and rollback on PostgreSQL as hub_config/OPERATIONS.md says, with Hub and Manager of an older commit.

All GPUs are held at each step, so that one given twice is seen. The older Hub is JupyterHub 5.5, and its database is
not put back. tests/e2e/test_upgrade.py has SQLite, wheels, and the way back to 5.5.
The older commit restarts the pod of a job that was queued in the backup; that the present one keeps it is in
test_reconciler.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url

from dlspawner import cli
from tests.component.manager import databases
from tests.component.manager.quota import GPUS, QuotaHub, Sampler, running
from tests.e2e.people import wait_for
from tests.e2e.test_upgrade import MIGRATION, before
from tests.harness.spawner_hub import JUPYTERHUB_5_5, ROOT

pytestmark = pytest.mark.slow
ACCOUNTS = "SELECT user_name, uid FROM accounts ORDER BY id"
# As the page has them.
TABLES = ("accounts", "renamed", "ssh_keys", "uid_high_water")
PEOPLE = ("pg_dump", "--data-only", "--column-inserts", *(f"--table={name}" for name in TABLES))
LOAD = ("psql", "--single-transaction", "--set=ON_ERROR_STOP=1", f"--command=TRUNCATE {', '.join(TABLES)}")
RESTORE = ("pg_restore", "--no-owner", "--no-privileges", "--single-transaction")


@dataclass
class ChangingHub(QuotaHub):
    """Its Hub and Manager are those of these sources, and upon this JupyterHub, if not upon the installed one."""

    sources: Path = ROOT
    jupyterhub: Path | None = JUPYTERHUB_5_5

    def env(self) -> dict[str, str]:
        first = ":".join(map(str, filter(None, (self.sources, self.jupyterhub))))
        return {**super().env(), "PYTHONPATH": first, "PYTHONSAFEPATH": "1"}

    def start_manager(self, name: str = "manager", port: int = 0) -> None:
        for link, there in (
            (self.templates / "hub", "templates/hub"),
            (self.config / "jupyterhub_config.py", "hub_config/jupyterhub_config.py"),
        ):
            link.unlink()
            link.symlink_to(self.sources / there)
        super().start_manager(name, port)

    def stop_both(self) -> None:
        for name in ("hub", "manager"):
            self.stop(name)

    def start_both(self, sources: Path) -> None:
        self.sources, self.jupyterhub = sources, None
        self.start_manager()
        self.start_hub()

    @property
    def schema(self) -> str:
        return self.rows("SELECT version_num FROM alembic_version")[0][0]

    def jobs_of_all(self) -> list[tuple[str, ...]]:
        return self.rows("SELECT user_name, job, state, submitted FROM jobs ORDER BY submitted")

    def pod_uids(self) -> dict[str, str]:
        return {pod["metadata"]["name"].removeprefix("jupyter-"): pod["metadata"]["uid"] for pod in self.pods()}


@pytest.fixture
def server() -> Iterator[str]:
    if not databases.INSTALLED:
        pytest.skip("PostgreSQL 15 is not installed here")
    with databases.postgresql() as directory:
        yield directory


@pytest.fixture
def hub(server: str, tmp_path: Path) -> Iterator[ChangingHub]:
    urls, old = [databases.create(server) for _ in ("Manager", "Hub")], before(MIGRATION, tmp_path / "before")
    own = f"c.JupyterHub.db_url = {urls[1]!r}\n"
    (tmp_path / "state").mkdir()
    with running(ChangingHub(tmp_path / "state", db_url=urls[0], extra=own, sources=old)) as made:
        yield made


def test_jobs_run_on_and_no_gpu_is_given_twice_by_an_upgrade_and_the_way_back(
    hub: ChangingHub, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(databases.PROGRAMS), prepend=":")
    old = hub.sources
    hub.add_users(["runs", "ends", "waits", "late"])
    with Sampler(hub) as sampler:
        for user, gpus in (("runs", 5), ("ends", 3)):
            hub.start_server(user, gpus=gpus)
        wait_for(lambda: len(hub.ready()) == 2, "both run", 120)
        assert "Running JupyterHub version 5.5.0" in hub.log
        hub.start_server("waits", gpus=2)
        wait_for(lambda: hub.jobs() == {"runs": "running", "ends": "running", "waits": "queued"}, "one waits")
        jobs, pods, older = hub.jobs_of_all(), hub.pod_uids(), hub.schema
        saved = tmp_path / "saved"
        hub_db = hub.extra.split("'")[1]
        assert cli.main(["backup", str(saved), f"--manager-db={hub.db_url}", f"--hub-db={hub_db}"]) == 0

        hub.stop_both()
        hub.start_both(ROOT)
        assert hub.schema > older
        wait_for(lambda: len(hub.ready()) == 2, "the new Hub has found both", 120)
        assert (hub.jobs_of_all(), hub.pod_uids()) == (jobs, pods), "ids, states, places in the queue, pods"
        hub.api("DELETE", "/users/ends/server")
        wait_for(lambda: "waits/" in hub.ready(), "what waited has started", 120)
        hub.start_server("late", gpus=1)
        wait_for(lambda: "late/" in hub.ready(), "one that the backup does not know", 120)
        pods, accounts = hub.pod_uids(), hub.rows(ACCOUNTS)

        hub.stop_both()
        url = make_url(hub.db_url)
        databases.execute(server, f'ALTER DATABASE "{url.database}" RENAME TO newer')
        databases.execute(server, f'CREATE DATABASE "{url.database}"')
        where = url.set(drivername="postgresql").render_as_string()
        subprocess.run([*RESTORE, f"--dbname={where}", saved / "manager"], check=True)
        newer = url.set(drivername="postgresql", database="newer").render_as_string()
        people = tmp_path / "people.sql"
        subprocess.run([*PEOPLE, f"--file={people}", f"--dbname={newer}"], check=True)
        subprocess.run([*LOAD, f"--file={people}", f"--dbname={where}"], check=True)
        hub.start_both(old)
        assert (hub.schema, hub.rows(ACCOUNTS)) == (older, accounts)
        expected = dict.fromkeys(("runs", "waits", "late"), "running")
        wait_for(lambda: hub.jobs() == expected, "what has ended and begun since is seen", 120)
        wait_for(lambda: len(hub.ready()) == 3, "the Hub, whose database was not touched, knows them", 120)
        kept = hub.pod_uids()
        assert {user: kept[user] for user in ("runs", "late")} == {user: pods[user] for user in ("runs", "late")}
        now = {(job, submitted) for _, job, _, submitted in hub.jobs_of_all()}
        assert {(job, submitted) for _, job, _, submitted in jobs} <= now, "ids and times of submission"
        hub.start_server("ends", gpus=1)
        wait_for(lambda: hub.jobs() == {**expected, "ends": "queued"}, "all GPUs are counted")
        hub.api("DELETE", "/users/late/server")
        wait_for(lambda: "ends/" in hub.ready(), "it has its turn", 120)
    assert sampler.most == GPUS == hub.held()
    hub.check_logs()
