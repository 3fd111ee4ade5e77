"""`make bench`: measure the product on the embedded cluster against its peers, in one run."""

from __future__ import annotations

from pathlib import Path

from tests.bench import dropin, gateway, spawn
from tests.bench.figures import Figure, publish
from tests.contract.conftest import Server


def measure(state: Path) -> list[Figure]:
    """The drop-in on an API server without nodes, then the product, then the gateway alone."""
    server = Server(state / "api")
    try:
        figures = dropin.measure(server.start(), state)
    finally:
        server.stop()
    return [*figures, *spawn.run(state), *gateway.measure(state / "relay", gateway.Size())]


publish("bench", measure)
