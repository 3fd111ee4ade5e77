"""Files without a job: the login of a new user starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.people import Person, Stack

pytestmark = [pytest.mark.launcher, pytest.mark.slow]


@pytest.fixture
def fred(stack: Stack) -> Iterator[Person]:
    person = stack.person("fred")
    yield person
    person.stop("files")


def test_concurrent_logins_start_one_files_job_without_gpus(fred: Person, tmp_path: Path) -> None:
    client, known = fred.ssh(tmp_path / "fred"), {one["id"] for one in fred.jobs()}
    (tmp_path / "up").write_bytes(os.urandom(1 << 20))
    batch = f"put {tmp_path}/up data.bin\nget data.bin {tmp_path}/down\n"
    sftp = ("sftp", "-q", "-F", str(client.config), "-b", "-", "fred+files@gateway")
    rsync = ("rsync", "-a", "-e", client.remote_shell, "fred+files@gateway:data.bin", str(tmp_path / "copy"))
    with ThreadPoolExecutor() as pool:
        # A command's standard output is its own, without the login's own lines.
        shell = pool.submit(client.run, "files", "printf out; id -un >&2", options=("-o", "LogLevel=INFO"), seconds=180)
        sent = pool.submit(client.tool, *sftp, text=batch, seconds=180)
    done, moved = shell.result(), sent.result()
    assert (done.returncode, done.stdout) == (0, "out"), done.stderr
    assert done.stderr.strip().endswith("fred")
    assert moved.returncode == 0, moved.stderr
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()
    assert client.tool(*rsync).returncode == 0
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "up").read_bytes()
    (job,) = [one for one in fred.jobs() if one["id"] not in known]
    assert (job["server"], job["template"], job["gpus"], job["state"]) == ("files", "files", 0, "running")
