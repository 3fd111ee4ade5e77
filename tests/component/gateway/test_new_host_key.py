"""A host key that takes another's place, as OpenSSH's client with UpdateHostKeys learns and forgets them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.core.packets import GLOBAL_REQUEST, PROVE_HOST_KEYS, text
from tests.component.gateway.peers import Client, Lab, connect, gateway


def known(client: Client) -> set[str]:
    """The keys in the client's file."""
    return {line.split()[2] for line in (client.directory / "known_hosts").read_text().splitlines() if line.strip()}


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().split()[1]


def person(folder: Path, port: int, key: asyncssh.SSHKey, trusted: asyncssh.SSHKey) -> Client:
    """A client that updates a file in which the gateway has one name."""
    client = Client(folder, port, key, trusted)
    (folder / "known_hosts").write_text(f"gateway {trusted.export_public_key().decode().strip()}\n")
    client.config.write_text(f"{client.config.read_text()}Host *\n UpdateHostKeys yes\n")
    return client


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(["alice+train@gateway"], id="to a job"),
        # Two replies of the job's before the proof, or behind it.
        pytest.param(
            ["-o", "ExitOnForwardFailure=yes", "-R", "0:localhost:9", "-R", "0:localhost:9", "alice+train@gateway"],
            id="with forwards",
        ),
        pytest.param(["-J", "alice@gateway", "alice@train"], id="as a jump host"),
    ],
)
async def test_client_learns_the_next_host_key_and_forgets_the_last(lab: Lab, way: list[str]) -> None:
    following = asyncssh.generate_private_key("ssh-ed25519")
    async with gateway(replace(lab.keys, next_host=following), lab.auth_backend, lab.job_directory) as announces:
        alice = person(lab.folder / "alice", announces.port, lab.alices_key, lab.keys.host)
        done = await alice.ssh(*way, "echo in")
        assert (done.status, done.text) == (0, "in\n"), done.err
        assert known(alice) == {public(lab.keys.host), public(following)}, done.err
    async with gateway(
        replace(lab.keys, host=following, next_host=following), lab.auth_backend, lab.job_directory
    ) as changed:
        alice.config.write_text(alice.config.read_text().replace(f"Port {announces.port}", f"Port {changed.port}"))
        done = await alice.ssh(*way, "echo in")
        assert (done.status, done.text) == (0, "in\n"), done.err
        assert known(alice) == {public(following)}
        late = person(lab.folder / "late", changed.port, lab.alices_key, lab.keys.host)
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in (await late.ssh(*way, "echo in")).err


async def test_foreign_host_key_is_not_proven(lab: Lab) -> None:
    following = asyncssh.generate_private_key("ssh-ed25519")
    async with (
        gateway(replace(lab.keys, next_host=following), lab.auth_backend, lab.job_directory) as running,
        connect(running.port, client_keys=[lab.alices_key]),
    ):  # fmt: skip
        [leg] = [visitor.client.leg for visitor in running.server.connections]
        ours, others = following.public_data, lab.alices_key.public_data

        def asked(*keys: bytes) -> bytes:
            return bytes([GLOBAL_REQUEST]) + text(PROVE_HOST_KEYS) + b"\1" + b"".join(map(text, keys))

        assert leg.prove_host_keys(asked(ours)) is not None
        assert leg.prove_host_keys(asked(ours, others)) is None
        assert leg.prove_host_keys(asked(*[ours] * 100)) is None, "no work for nothing"
        assert leg.prove_host_keys(asked(ours)[:-1]) is None
