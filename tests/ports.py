"""Free ports for servers that are started a moment later."""

from __future__ import annotations

import contextlib
import secrets
import socket


def free_port() -> int:
    """A port that no outgoing connection can take before it is used: below the ephemeral range.

    Not drawn from `random`, which begins anew with every test, and in every process with the same numbers.
    """
    while True:
        port = 10000 + secrets.randbelow(10000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
