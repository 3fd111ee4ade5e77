"""Here the cluster is always the embedded server, independent of $KUBECONFIG."""

from collections.abc import Iterator

import pytest

from tests.contract.client import Client
from tests.contract.conftest import Server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    server = Server(tmp_path_factory.mktemp("embedded"))
    yield server.start()
    assert server.stop() == 0
