"""A test rig with three ways to one job, before a gateway that allows agents and X11, and an sshd that does as well."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.clients.ways import Rig
from tests.component.gateway.peers import FakeJobDirectory, Lab, Sshd
from tests.harness.ports import free_port

EVERYTHING = RelayPolicy(agent_forwarding=True, x11_forwarding=True)


@pytest.fixture(scope="session")
def open_sshd(
    keys: GatewayKeys, alices_key: asyncssh.SSHKey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sshd]:
    """A job's sshd that also takes alice's own key."""
    settings = ("X11Forwarding yes", "StreamLocalBindUnlink yes")
    server = Sshd(tmp_path_factory.mktemp("job"), keys.user_ca, free_port(), settings, keys=(alices_key,))
    server.start()
    yield server
    server.stop()


@contextlib.asynccontextmanager
async def rig_before(sshd: Sshd, lab: Lab, policy: RelayPolicy = EVERYTHING) -> AsyncIterator[Rig]:
    """A rig and its gateway, in front of one sshd."""
    async with lab.gateway(
        job_directory=FakeJobDirectory({("alice", "train"): sshd.target()}), policy=policy
    ) as running:
        # a socket's path may be 108 bytes long, and OpenSSH adds some
        with tempfile.TemporaryDirectory(prefix="ssh") as sockets:
            yield Rig(lab.folder, Path(sockets), sshd, running, lab.alices_key, lab.keys.host)


@pytest.fixture
async def rig(open_sshd: Sshd, lab: Lab) -> AsyncIterator[Rig]:
    async with rig_before(open_sshd, lab) as found:
        yield found


@pytest.fixture
async def strict(open_sshd: Sshd, lab: Lab) -> AsyncIterator[Rig]:
    """A rig before a gateway as it comes: without agents and X11."""
    async with rig_before(open_sshd, lab, RelayPolicy()) as found:
        yield found


@pytest.fixture
async def with_keys(rig: Rig) -> Rig:
    """A rig with the key as PuTTY and as Dropbear want it."""
    await asyncio.gather(rig.make_ppk(), rig.make_dropbear_key())
    return rig


@pytest.fixture
async def configured(request: pytest.FixtureRequest, lab: Lab) -> AsyncIterator[Rig]:
    """A rig before a job with these settings of sshd, which logs re-keys and requests."""
    settings = ("LogLevel DEBUG1", *request.param)
    server = Sshd(lab.folder / "job", lab.keys.user_ca, free_port(), settings, keys=(lab.alices_key,))
    server.start()
    try:
        async with rig_before(server, lab) as found:
            yield found
    finally:
        server.stop()
