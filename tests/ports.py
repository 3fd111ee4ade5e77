"""Free ports for servers that are started a moment later."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A port that no outgoing connection can take before it is used: below the ephemeral range."""
    while True:
        port = random.randrange(10000, 20000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
