"""`make bench`: measure the product on the embedded cluster against its peers, in one run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench import gateway, spawn
from tests.bench.figures import Figure, publish
from tests.e2e.stack import ROOT, Launched


def main() -> None:
    """Everything runs on one started product; the stock peers use the same embedded cluster."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        stack = Launched(state / "state", more=(f"--templates={spawn.templates(state)}",))
        stack.start()
        figures: list[Figure] = []
        try:
            figures += spawn.measure(stack, state)
            figures += gateway.measure(stack, state)
        finally:
            stack.stop()
    publish(figures, ROOT / "build" / "bench.json")


main()
