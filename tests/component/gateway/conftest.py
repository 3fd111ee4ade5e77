"""A gateway in the test's event loop, in front of one real sshd; alice has the job `train` and a registered key."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.cluster import embedded_api
from tests.component.gateway.peers import Client, FakeAuthBackend, FakeJobDirectory, Lab, Running, Sshd, gateway
from tests.component.manager.real_hub import RealHub
from tests.component.manager.real_hub import running as running_real_hub
from tests.harness.ports import free_port


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    """The gateway's log has all of its lines."""
    caplog.set_level(logging.INFO, "ssh_gateway")


@pytest.fixture(scope="session")
def keys() -> GatewayKeys:
    return GatewayKeys(asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519"))


@pytest.fixture(scope="session")
def one_sshd(keys: GatewayKeys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("job"), keys.user_ca, free_port())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def sshd(one_sshd: Sshd) -> Sshd:
    """The sshd that all tests share; a test that finds it dead says so, and why."""
    one_sshd.check()
    return one_sshd


@pytest.fixture(scope="session")
def alices_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")


@pytest.fixture(scope="session")
def mallorys_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")


@pytest.fixture
def auth_backend(alices_key: asyncssh.SSHKey, mallorys_key: asyncssh.SSHKey) -> FakeAuthBackend:
    found = FakeAuthBackend()
    found.register("alice", alices_key)
    found.register("mallory", mallorys_key)
    return found


@pytest.fixture
def job_directory(sshd: Sshd) -> FakeJobDirectory:
    return FakeJobDirectory({("alice", "train"): sshd.target()})


@pytest.fixture
async def running(
    keys: GatewayKeys, auth_backend: FakeAuthBackend, job_directory: FakeJobDirectory
) -> AsyncIterator[Running]:
    async with gateway(keys, auth_backend, job_directory) as found:
        yield found


@pytest.fixture
def alice(running: Running, keys: GatewayKeys, alices_key: asyncssh.SSHKey, tmp_path: Path) -> Client:
    return Client(tmp_path / "alice", running.port, alices_key, keys.host)


@pytest.fixture
def mallory(running: Running, keys: GatewayKeys, mallorys_key: asyncssh.SSHKey, tmp_path: Path) -> Client:
    return Client(tmp_path / "mallory", running.port, mallorys_key, keys.host)


@pytest.fixture(scope="session")
def real_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHub]:
    with running_real_hub(tmp_path_factory.mktemp("gateway-real_hub")) as found:
        yield found


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with embedded_api(tmp_path_factory.mktemp("api") / "state") as path:
        yield path


@pytest.fixture
def lab(
    keys: GatewayKeys,
    auth_backend: FakeAuthBackend,
    job_directory: FakeJobDirectory,
    alices_key: asyncssh.SSHKey,
    tmp_path: Path,
) -> Lab:
    return Lab(keys, auth_backend, job_directory, alices_key, tmp_path)
