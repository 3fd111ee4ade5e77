"""`make bench`: measure the product on the embedded cluster against its peers, in one run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench import dropin, gateway, spawn, ssh_product
from tests.bench.figures import Figure, publish
from tests.contract.conftest import Server
from tests.e2e.stack import ROOT, Launched


def on_embedded_api(state: Path) -> list[Figure]:
    """The drop-in, on an API server without nodes."""
    server = Server(state / "api")
    client = server.start()
    try:
        return dropin.measure(client, state)
    finally:
        server.stop()


def main() -> None:
    """The drop-in first, then one started product, whose embedded cluster the stock peers use as well; the relay last,
    which needs neither.
    """
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        figures = on_embedded_api(state)
        stack = Launched(state / "state", more=(f"--templates={spawn.templates(state)}",))
        stack.start()
        try:
            figures += spawn.measure(stack, state)
            figures += ssh_product.measure(stack, state)
        finally:
            stack.stop()
        figures += gateway.measure(state / "relay", gateway.Size())
    publish(figures, ROOT / "build" / "bench.json")


main()
