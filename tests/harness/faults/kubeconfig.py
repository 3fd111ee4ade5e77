"""The proxy before the API server that a kubeconfig names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from yarl import URL

from tests.contract.client import Client
from tests.harness.faults.proxy import Proxy


@contextlib.contextmanager
def before(kubeconfig: Path, written: Path, seed: int = 1) -> Iterator[Proxy]:
    """A proxy before the API server of a kubeconfig; another one, which leads to it, is written."""
    client = Client(kubeconfig)
    proxy = Proxy(URL(client.server.geturl()), client.context, client.headers, written, seed)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
