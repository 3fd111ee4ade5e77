"""The cluster that the contract is stated about: the one of $KUBECONFIG, or an embedded API server of our own.

Nothing here may skip on either: what is about the embedded server alone lies in `embedded`.
Every test has a namespace of its own; objects without a namespace get names of their own.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.contract import machines
from tests.contract.client import Client, node
from tests.contract.machines import Machine
from tests.harness.ports import free_port


@dataclass
class Server:
    """The embedded API server as a process of its own."""

    state: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def start(self) -> Client:
        command = [sys.executable, "-m", "dlspawner.devcluster.api", "--state", str(self.state)]
        self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("API server ready"), line
        client = Client(self.kubeconfig)
        self.port = client.server.port or 0
        return client

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        assert self.process
        self.process.terminate()
        return self._reap()

    def _reap(self) -> int:
        assert self.process
        code = self.process.wait(60)
        assert self.process.stdout
        self.process.stdout.close()
        self.process = None
        return code


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    given = os.environ.get("KUBECONFIG")
    if given:
        yield Client(Path(given))
        return
    server = Server(tmp_path_factory.mktemp("cluster"))
    yield server.start()
    assert server.stop() == 0


@pytest.fixture(scope="session")
def machine(cluster: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A node that runs pods: one of the cluster, else one of ours."""
    found = machines.real(cluster)
    if found is not None:
        yield found
        return
    with machines.simulated(cluster, tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """An embedded server that the test starts, kills and starts again."""
    server = Server(tmp_path / "state")
    yield server
    if server.process is not None:
        server.stop()


@pytest.fixture
def namespace(cluster: Client) -> Iterator[str]:
    with cluster.namespace("contract") as name:
        yield name


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def services(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/services"


@pytest.fixture
def secrets_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


@pytest.fixture
def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


NodeMaker = Callable[..., str]


@pytest.fixture
def make_node(cluster: Client) -> Iterator[NodeMaker]:
    """Makes nodes without a kubelet, labelled so that pods of one test find only its own."""
    names = []

    def make(**allocatable: str) -> str:
        name = f"node-{secrets.token_hex(4)}"
        cluster.create("/api/v1/nodes", node(name, {"contract/node": name}, **allocatable))
        names.append(name)
        return name

    yield make
    for name in names:
        cluster.request("DELETE", f"/api/v1/nodes/{name}")
