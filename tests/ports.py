"""Free ports for servers that are started a moment later."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket

SOME = 2000  # ports of each worker of pytest-xdist: two workers may start servers at the same moment
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 5


def free_port() -> int:
    """A port that no outgoing connection can take before it is used: below the ephemeral range.

    Not drawn from `random`, which begins anew with every test, and in every process with the same numbers.
    """
    while True:
        port = 10000 + _WORKER * SOME + secrets.randbelow(SOME)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
