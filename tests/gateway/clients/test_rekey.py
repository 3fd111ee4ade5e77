"""New keys in the middle, wanted by client, job or gateway, or by all of them, with every cipher."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway import algorithms
from ssh_gateway.keys import Keys
from tests.gateway.clients.conftest import at_desk
from tests.gateway.clients.ways import Desk, Way
from tests.gateway.peers import FakePeople, Sshd
from tests.ports import free_port

MIB = 2**20


@pytest.fixture
async def restless(
    request: pytest.FixtureRequest, keys: Keys, people: FakePeople, alices_key: asyncssh.SSHKey, tmp_path: Path
) -> AsyncIterator[Desk]:
    """A desk before a job whose sshd knows one cipher, and wants new keys after every MiB."""
    settings = ("RekeyLimit 1M", f"Ciphers {request.param}")
    server = Sshd(tmp_path / "job", keys.user_ca, free_port(), settings, keys=(alices_key,))
    server.start()
    try:
        async with at_desk(server, keys, people, alices_key, tmp_path) as found:
            yield found
    finally:
        server.stop()


def every_cipher(*, quick: str) -> list[object]:
    """All ciphers of the gateway, the others as slow."""
    marks = {name: () if name == quick else (pytest.mark.slow,) for name in algorithms.ENCRYPTION_ALGS}
    return [pytest.param(name, marks=marks[name], id=name.split("@")[0]) for name in algorithms.ENCRYPTION_ALGS]


@pytest.mark.parametrize("restless", every_cipher(quick="chacha20-poly1305@openssh.com"), indirect=True)
async def test_the_job_wants_new_keys_after_every_mib_and_so_does_the_client(restless: Desk) -> None:
    """The pod's leg has the one cipher that its sshd knows, and so has the client's, because it is given as well."""
    data = os.urandom(8 * MIB)
    cipher = restless_cipher(restless)

    async def case(way: Way) -> tuple[int, bool, bool]:
        done = await restless.run("ssh", "-v", "-c", cipher, "-o", "RekeyLimit=1M", way.value, "cat", feed=data)
        return done.status, done.out == data, done.err.count("SSH2_MSG_NEWKEYS received") > 7

    assert await restless.each(case) == (0, True, True)


def restless_cipher(desk: Desk) -> str:
    return next(one.split()[1] for one in desk.sshd.settings if one.startswith("Ciphers"))


@pytest.mark.parametrize("cipher", every_cipher(quick="aes128-gcm@openssh.com"))
async def test_the_gateway_wants_new_keys_after_every_mib(
    desk: Desk, cipher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directly there is nothing but the sshd's own limit: only the outcome is compared."""
    monkeypatch.setattr(desk.running.server._options, "rekey_bytes", MIB)
    data = os.urandom(8 * MIB)
    done = await desk.each_runs("ssh", "-c", cipher, "HOST", "cat", feed=data)
    assert (done.status, done.out == data) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["16", "64k"])
async def test_keys_that_hardly_last_a_packet(desk: Desk, limit: str) -> None:
    data = os.urandom(200_000)
    done = await desk.each_runs("ssh", "-o", f"RekeyLimit={limit}", "HOST", "cat", feed=data)
    assert (done.status, done.out == data) == (0, True)
