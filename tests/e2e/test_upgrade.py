"""Upgrade of an older, installed release beneath a running job, and the way back, as hub_config/OPERATIONS.md says.

The older release is the commit before a migration: the history of the repository has to be there. Both releases are
wheels; all that they need is the tests' own, but for the older one's JupyterHub, 5.5, whose database is migrated too.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

from dlspawner import cli
from tests.e2e.people import Person, wait_for
from tests.e2e.stack import ROOT, failing
from tests.e2e.test_installed import Installed, built, copied, run
from tests.harness.spawner_hub import JUPYTERHUB_5_5

pytestmark = [pytest.mark.launcher, pytest.mark.slow]
MIGRATION = "dlspawner/manager/db/migrations/versions/0006_idle_periods.py"
PROCESSES = ("dlspawner.manager", "jupyterhub", "ssh_gateway")


def before(migration: str, folder: Path) -> Path:
    """The sources of the commit before the one that has brought this file."""
    brought = run("git", "log", "--diff-filter=A", "--format=%H", "--", migration, cwd=ROOT).split()[-1]
    folder.mkdir()
    run("git", "archive", "--output", folder / "sources.tar", f"{brought}^", cwd=ROOT)
    run("tar", "-xf", "sources.tar", cwd=folder)
    return folder


class Upgraded(Installed):
    """An environment whose release changes while the product runs."""

    @property
    def packages(self) -> Path:
        (found,) = (self.folder / "venv" / "lib").glob("python*/site-packages")
        return found

    def install(self, wheel: Path, *before: Path) -> None:
        """Install it; `before`: where packages are that come before the tests'."""
        pip = (sys.executable, "-m", "pip", "--python", self.folder / "venv", "install", "--quiet", "--no-deps")
        run(*pip, "--force-reinstall", wheel, cwd=self.folder)
        theirs = Path(sys.prefix, self.packages.relative_to(self.folder / "venv"))
        lines = "".join(f"{path}\n" for path in (*before, theirs))
        (self.packages / "tests.pth").write_text(lines)  # its own .pth files, those of the checkout, are not read

    @property
    def schema(self) -> str:
        with closing(sqlite3.connect(self.state / "manager.sqlite")) as database:
            return str(database.execute("SELECT version_num FROM alembic_version").fetchone()[0])


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Upgraded]:
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    for name, module in {"alembic": "alembic.config", "jupyterhub-singleuser": "jupyterhub.singleuser"}.items():
        program = tmp_path / "venv" / "bin" / name
        program.write_text(f"#!{program.parent}/python\nfrom {module} import main; main()\n")
        program.chmod(0o755)
    made = Upgraded(tmp_path / "state")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.stop()


def states(person: Person) -> dict[str, str]:
    """Of all jobs by server; of none while the Manager does not answer yet."""
    jobs, token = f"{person.stack.url}/services/jobs/api/jobs", f"token {person.token}"
    answer = requests.get(jobs, {"user": person.name}, headers={"Authorization": token}, timeout=60)
    return {job["server"]: job["state"] for job in answer.json()["items"]} if answer.ok else {}


def test_a_job_outlives_the_upgrade_of_an_installed_release_and_the_way_back(stack: Upgraded, tmp_path: Path) -> None:
    old = built("wheel", before(MIGRATION, tmp_path / "before"), tmp_path / "old")
    new = built("wheel", copied(tmp_path / "now"), tmp_path / "new")
    stack.install(old, JUPYTERHUB_5_5)
    stack.start()
    alice = stack.person("alice")
    assert alice.api("GET", "/").json() == {"version": "5.5.0"}
    alice.launch("done", template="ssh")
    alice.stop("done")
    alice.launch("book", template="ipython", gpus=0)
    alice.get("/user/alice/book/")
    alice.launch("train", template="ssh", gpus=8)
    assert alice.start("waits", template="ssh", gpus=1).status_code in {201, 202, 429}
    expected = {"done": "ended", "book": "running", "train": "running", "waits": "queued"}
    wait_for(lambda: states(alice) == expected, "one of each")
    ssh = alice.ssh(tmp_path / "ssh")
    started = ssh.run("train", "echo kept >~/file; cat /proc/1/stat").stdout.split()
    older = stack.schema
    assert cli.main(["backup", str(tmp_path / "saved"), f"--state={stack.state}"]) == 0

    # The upgrade: each process of the product is another one, as with new image tags. Pods are not touched.
    stack.install(new)
    for module in PROCESSES:
        victim = stack.kill(module)
        wait_for(lambda module=module, old=victim: stack.process_of(module) not in {0, old}, f"{module} is back")
    wait_for(lambda: stack.schema > older, "the database is migrated")
    wait_for(lambda: alice.api("GET", "/user").ok and alice.ready("book") and alice.ready("train"), "both are found")
    assert alice.api("GET", "/").json() != {"version": "5.5.0"}
    again = stack.person("alice")
    for person in (alice, again):
        page = person.get("/user/alice/book/").text
        assert "Jupyter Server" in page, "the older JupyterHub's notebook knows who was logged in, and who logs in now"
    same = wait_for(lambda: ssh.run("train", "cat /proc/1/stat ~/file").stdout, "ssh to the job of before").split()
    assert (same[21], same[-1]) == (started[21], "kept"), "its first process is the one of before"
    wait_for(lambda: states(alice) == expected, "history and queue are as before")
    alice.stop("train")
    wait_for(lambda: states(alice).get("waits") == "running", "what waited has started, by the new release", 120)
    assert ssh.run("waits", "cat ~/file").stdout == "kept\n"

    # The way back: the older release refuses the newer databases, and runs on the back-up's.
    assert stack.stop() == 0, stack.said
    stack.install(old, JUPYTERHUB_5_5)
    assert "made by a newer version" in failing(stack)
    for name in ("manager", "hub"):
        for lost in stack.state.glob(f"{name}.sqlite*"):
            lost.unlink()
        shutil.copy(tmp_path / "saved" / name, stack.state / f"{name}.sqlite")
    stack.start()
    assert stack.schema == older
    now = {"done": "ended", "book": "running", "train": "ended", "waits": "running"}
    wait_for(lambda: states(alice) == now, "what has ended and begun since is seen", 120)
    wait_for(lambda: alice.ready("book") and alice.ready("waits"), "the older Hub has found both")
    wait_for(lambda: "Jupyter Server" in alice.get("/user/alice/book/").text, "its page, which a browser loads again")
    wait_for(lambda: ssh.run("waits", "cat ~/file").stdout == "kept\n", "ssh with the key of before")
    alice.close()
    again.close()
