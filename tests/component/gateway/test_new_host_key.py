"""A host key that takes another's place, as OpenSSH's client with UpdateHostKeys learns and forgets them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.core.packets import GLOBAL_REQUEST, PROVE_HOST_KEYS, REQUEST_SUCCESS, Proofs, text
from ssh_gateway.session.session import MOST_PROOFS
from ssh_gateway.transport.keys import GatewayKeys, KeysUnusable, load_or_make
from tests.component.gateway.hostile import drop, logged_in
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, gateway

FAILURE, PROOF = b"\x52", b"\x51proof"


def known(client: Client) -> set[str]:
    """The keys in the client's file."""
    return {line.split()[2] for line in (client.directory / "known_hosts").read_text().splitlines() if line.strip()}


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().split()[1]


def person(folder: Path, port: int, key: asyncssh.SSHKey, trusted: asyncssh.SSHKey) -> Client:
    """Somebody whose client updates a file in which the gateway has one name."""
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
async def test_clients_learn_the_next_key_and_forget_the_last(  # noqa: PLR0917  (fixtures)
    keys: GatewayKeys,
    people: FakePeople,
    places: FakePlaces,
    alices_key: asyncssh.SSHKey,
    tmp_path: Path,
    way: list[str],
) -> None:
    following = asyncssh.generate_private_key("ssh-ed25519")
    async with gateway(replace(keys, next_host=following), people, places) as announces:
        alice = person(tmp_path / "alice", announces.port, alices_key, keys.host)
        done = await alice.ssh(*way, "echo in")
        assert (done.status, done.text) == (0, "in\n"), done.err
        assert known(alice) == {public(keys.host), public(following)}, done.err
    async with gateway(replace(keys, host=following, next_host=following), people, places) as changed:
        alice.config.write_text(alice.config.read_text().replace(f"Port {announces.port}", f"Port {changed.port}"))
        done = await alice.ssh(*way, "echo in")
        assert (done.status, done.text) == (0, "in\n"), done.err
        assert known(alice) == {public(following)}
        late = person(tmp_path / "late", changed.port, alices_key, keys.host)
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in (await late.ssh(*way, "echo in")).err


async def test_a_key_that_is_not_the_gateways_is_not_proven(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, alices_key: asyncssh.SSHKey
) -> None:
    following = asyncssh.generate_private_key("ssh-ed25519")
    async with (
        gateway(replace(keys, next_host=following), people, places) as running,
        asyncssh.connect(
            "127.0.0.1", running.port, username="alice+train", client_keys=[alices_key], known_hosts=None, config=None,
            agent_path=None,
        ),
    ):  # fmt: skip
        [leg] = [visitor.leg for visitor in running.server.connections]
        ours, others = following.public_data, alices_key.public_data

        def asked(*keys: bytes) -> bytes:
            return bytes([GLOBAL_REQUEST]) + text(PROVE_HOST_KEYS) + b"\1" + b"".join(map(text, keys))

        assert leg.prove_host_keys(asked(ours)) is not None
        assert leg.prove_host_keys(asked(ours, others)) is None
        assert leg.prove_host_keys(asked(*[ours] * 100)) is None, "no work for nothing"
        assert leg.prove_host_keys(asked(ours)[:-1]) is None


async def test_before_a_pod_is_connected_few_proofs_are_given_and_none_for_nothing(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, alices_key: asyncssh.SSHKey
) -> None:
    following = asyncssh.generate_private_key("ssh-ed25519")
    ours = text(following.public_data)
    async with gateway(replace(keys, next_host=following), people, places) as running:
        conn = await logged_in(running, alices_key, "alice")

        async def proven(*wanted: bytes) -> bool:
            kind, _ = await conn._make_global_request(PROVE_HOST_KEYS, *wanted)
            return bool(kind == REQUEST_SUCCESS)

        assert not await proven(*[ours] * 600), "no work for nothing"
        assert [await proven(ours) for _ in range(100)] == [True] * (MOST_PROOFS - 1) + [False] * (101 - MOST_PROOFS)
        with pytest.raises(asyncssh.ChannelOpenError, match="no job nowhere; yours: train"):
            await conn.open_connection("nowhere", 22)  # it is served as before
        drop(conn)
        await conn.wait_closed()


def request(name: bytes, wants_reply: int = 1) -> bytes:
    return bytes([GLOBAL_REQUEST]) + text(name) + bytes([wants_reply])


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        pytest.param([request(PROVE_HOST_KEYS)], [PROOF], id="alone"),
        pytest.param([request(b"a"), request(PROVE_HOST_KEYS), request(b"b")], [FAILURE, PROOF, FAILURE], id="between"),
        pytest.param([request(b"a", 0), request(PROVE_HOST_KEYS)], [PROOF], id="behind one without a reply"),
        pytest.param([request(PROVE_HOST_KEYS), request(PROVE_HOST_KEYS)], [PROOF, FAILURE], id="one at a time"),
        pytest.param([request(PROVE_HOST_KEYS, 0), request(b"a")], [FAILURE], id="wanted by nobody"),
    ],
)
def test_a_proof_comes_in_its_place(asked: list[bytes], answers: list[bytes]) -> None:
    proofs = Proofs()
    for payload in asked:
        proofs.asked(payload, lambda _payload: PROOF)
    assert [proofs.answered(FAILURE) for _ in answers] == answers


def test_what_cannot_be_proven_stays_refused() -> None:
    proofs = Proofs()
    proofs.asked(request(PROVE_HOST_KEYS), lambda _payload: None)
    assert proofs.answered(FAILURE) == FAILURE


def test_the_next_key_is_a_file_beside_the_other(tmp_path: Path) -> None:
    assert load_or_make(tmp_path).hosts == [load_or_make(tmp_path).host]
    following = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "ssh_host_ed25519_key.next").write_bytes(following.export_private_key())
    with pytest.raises(KeysUnusable, match="can be read by others"):
        load_or_make(tmp_path)
    (tmp_path / "ssh_host_ed25519_key.next").chmod(0o600)
    found = load_or_make(tmp_path)
    assert found.hosts == [found.host, following]
    (tmp_path / "ssh_host_ed25519_key.next").write_bytes(asyncssh.generate_private_key("ssh-rsa").export_private_key())
    with pytest.raises(KeysUnusable, match=r"is not an ed25519 key as the present one"):
        load_or_make(tmp_path)
