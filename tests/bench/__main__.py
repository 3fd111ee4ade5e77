"""`make bench`: measure the product on the embedded cluster against its peers, in one run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench import dropin, gateway, spawn
from tests.bench.figures import Figure, publish
from tests.contract.conftest import Server
from tests.e2e.stack import ROOT


def on_embedded_api(state: Path) -> list[Figure]:
    """The drop-in, on an API server without nodes."""
    server = Server(state / "api")
    client = server.start()
    try:
        return dropin.measure(client, state)
    finally:
        server.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        figures = [*on_embedded_api(state), *spawn.run(state), *gateway.measure(state / "relay", gateway.Size())]
    publish(figures, ROOT / "build" / "bench.json")


main()
