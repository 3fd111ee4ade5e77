"""Free ports for servers that are started a moment later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
from collections import deque
from pathlib import Path

SOME = 2000  # ports of each worker of pytest-xdist: two workers may start servers at the same moment
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 5
_REMEMBERED = 200  # ports that no other tests on this machine are given meanwhile: their servers may not listen yet
_taken: deque[int] = deque()  # descriptors of locks


def free_port() -> int:
    """A port that no outgoing connection can take before it is used: below the ephemeral range.

    Not drawn from `random`, which begins anew with every test, and in every process with the same numbers.
    """
    while True:
        port = 10000 + _WORKER * SOME + secrets.randbelow(SOME)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _take(port)
            return port


def _take(port: int) -> None:
    """OSError when other tests have been given this port, and may not use it yet."""
    folder = Path(tempfile.gettempdir()) / "ports-of-tests"  # of any user: tests without root run beside others
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    file = folder / str(port)
    lock = os.open(file, os.O_RDONLY) if file.exists() else os.open(file, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    _taken.append(lock)
    if len(_taken) > _REMEMBERED:
        os.close(_taken.popleft())
