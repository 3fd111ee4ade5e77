"""The images' recipes, read and not built: what every one promises, what is pinned, what PostgreSQL's start does.

That the images work is shown by the tests on the cluster that run them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.e2e.people import read_until
from tests.kubernetes import __main__ as command
from tests.kubernetes import machine, product
from tests.kubernetes.instance import CannotRun

POSTGRES = Path("/usr/lib/postgresql/15/bin")
IMAGES = product.names()


def recipe(name: str) -> str:
    """With every instruction on a line of its own."""
    return (product.RECIPES / name / "Dockerfile").read_text().replace("\\\n", " ")


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_does_not_run_as_root(name: str) -> None:
    text = recipe(name)
    last = text[text.rindex("\nFROM ") :]
    users = re.findall(r"^USER (.*)$", last, re.M)
    assert users[-1] == "1000:1000"  # numbers: runAsNonRoot cannot judge a name


def test_every_package_of_the_proxy_is_pinned_by_its_hash_and_from_no_certain_registry() -> None:
    lock = json.loads((product.RECIPES / "proxy" / "package-lock.json").read_text())
    wanted = json.loads((product.RECIPES / "proxy" / "package.json").read_text())["dependencies"]
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert lock["packages"][""]["dependencies"] == wanted
    assert not [name for name, one in packages.items() if not one.get("integrity", "").startswith("sha512-")]
    assert not [name for name, one in packages.items() if "resolved" in one]  # each machine has its own
    assert not [name for name in wanted if packages[f"node_modules/{name}"]["version"] != wanted[name]]
    assert "npm ci" in recipe("proxy")
    assert "&& npm install" not in recipe("proxy")


# PostgreSQL

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
ENDS = ("-C", "port")  # a server that prints a setting instead of serving


@pytest.fixture
def pod() -> Iterator[Path]:
    """The directories of its pod: a volume, and a password for the database `hub`."""
    if not (POSTGRES / "initdb").exists():
        pytest.skip("PostgreSQL 15 is not installed here")
    directory = Path(tempfile.mkdtemp(prefix="dlspawner-pg-"))  # short: there are sockets in it
    for name in ("passwords", "volume"):
        (directory / name).mkdir()
    (directory / "passwords" / "hub").write_text("first-secret")
    shutil.copy(product.RECIPES / "postgresql" / "start", directory)
    if AS_NOBODY:
        subprocess.run(["chown", "-R", "65534:65534", directory], check=True)
    yield directory
    shutil.rmtree(directory)


def start(pod: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {
        "PATH": f"{POSTGRES}:/usr/bin:/bin",
        "PGDATA": str(pod / "volume" / "15"),
        "POSTGRESQL_PASSWORDS": str(pod / "passwords"),
        "LANG": "C.UTF-8",
    }
    quiet = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={pod}", "-c", "shared_buffers=16MB"]
    return subprocess.Popen(
        [*AS_NOBODY, "sh", pod / "start", *quiet, *arguments],
        env=env,
        cwd=pod,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def sql(pod: Path, statement: str) -> None:
    command = [*AS_NOBODY, str(POSTGRES / "postgres"), "--single", "-D", str(pod / "volume" / "15"), "postgres"]
    subprocess.run(command, input=f"{statement}\n", cwd=pod, check=True, capture_output=True, text=True, timeout=60)


def test_a_password_that_cannot_be_set_is_in_no_log(pod: Path) -> None:
    code, said = finish(start(pod, *ENDS))
    assert code == 0, said
    sql(pod, "ALTER ROLE hub RENAME TO other")
    (pod / "passwords" / "hub").write_text("second-secret")
    code, said = finish(start(pod, *ENDS))
    assert code != 0
    assert 'role "hub" does not exist' in said
    assert "secret" not in said


def test_two_servers_never_share_a_volume(pod: Path) -> None:
    """Not even two that are process 1 of their containers: the second waits, and goes on when the first is gone."""
    first = start(pod)
    try:
        read_until(first.stdout, "ready to accept connections")
        second = start(pod, *ENDS)
        read_until(second.stdout, "waiting until it ends")
    finally:
        first.send_signal(signal.SIGINT)
        finish(first)
    code, said = finish(second)
    assert (code, said.splitlines()[-1]) == (0, "5432")


def test_lock_of_a_lost_server_is_ignored(pod: Path) -> None:
    """A node that went took its processes along, and left PostgreSQL's file with a process that we may be ourselves."""
    first = start(pod)
    read_until(first.stdout, "ready to accept connections")
    file = pod / "volume" / "15" / "postmaster.pid"
    left = file.read_text()
    first.send_signal(signal.SIGINT)
    finish(first)
    file.write_text(left.replace(left.splitlines()[0], str(os.getpid()), 1))
    code, said = finish(start(pod, *ENDS))
    assert (code, said.splitlines()[-1]) == (0, "5432")


# The build of the test cluster


@pytest.mark.parametrize(
    ("free", "sentence"), [(1e9, "needs 8 GB of disk at .*; 1.0 GB are free"), (99e9, "Go 1.25 or newer is needed")]
)
def test_a_build_without_disk_or_go_ends_before_anything_is_built(
    free: float, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(machine, "need_root", lambda: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(CannotRun, match=sentence):
        command.run(command.parse(["build"]))
    assert not list(tmp_path.rglob("*layout*"))
