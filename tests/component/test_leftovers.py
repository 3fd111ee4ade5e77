"""Tests that are killed leave no servers behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.component.manager.databases import INSTALLED

POSTGRESQL = """
import sys
from pathlib import Path
from tests.component.manager.databases import postgresql

with postgresql() as directory:
    print(Path(directory, "data/postmaster.pid").read_text().split()[0], flush=True)
    sys.stdin.read()
"""
SSHD = """
import sys
from pathlib import Path
import asyncssh
from tests.component.gateway.peers import Sshd
from tests.harness.ports import free_port

server = Sshd(Path(sys.argv[1]) / "job", asyncssh.generate_private_key("ssh-ed25519"), free_port())
server.start()
print(server.process.pid, flush=True)
sys.stdin.read()
"""


def runs(pid: int) -> bool:
    """Whether a process is there, and not merely waits for its end to be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            POSTGRESQL, id="postgresql", marks=pytest.mark.skipif(not INSTALLED, reason="needs Debian's postgresql-15")
        ),
        pytest.param(SSHD, id="sshd"),
    ],
)
def test_a_server_ends_with_the_test_that_is_killed(script: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        server = int(test.stdout.readline())
        assert runs(server)
        test.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while runs(server):
        assert time.monotonic() < until, "it is still there"
        time.sleep(0.05)
