"""Certificates that were taken back, or have expired: what the file may say, and who is sent home for it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway.auth.trust import REVOKED, UNKNOWN, RevocationList, TrustedCas, read_revocations
from ssh_gateway.core.proof import CertificateId, TokenOwner, every_server
from ssh_gateway.transport.keys import GatewayKeys, KeysUnusable
from ssh_gateway.transport.reading import read_certificate
from tests.component.gateway.hostile import drop
from tests.component.gateway.peers import FakePeople, FakePlaces, Running, gateway, until
from tests.component.gateway.test_certificates import holder, keygen
from tests.component.gateway.test_notices import seen

KEY, CA = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
BADGE = CertificateId(17, "alice@laptop", KEY.get_fingerprint(), CA.get_fingerprint(), 2e9)
ELSE = replace(BADGE, serial=18, key_id="bob", key="SHA256:k", ca="SHA256:c")
WRITTEN, CAS = (key.export_public_key().decode().strip() for key in (KEY, CA))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"SSHKRL\n\0\0\0\0\1", "this is a binary KRL: give the text from which ssh-keygen -k makes one"),
        (b"\xe9\x01", "this is no text"),
    ],
    ids=["a KRL", "anything"],
)
def test_what_is_no_text_is_told(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    for load in (RevocationList, TrustedCas):
        with pytest.raises(KeysUnusable) as problem:
            load(tmp_path / "file").load()
        assert str(problem.value).startswith(f"{tmp_path / 'file'}: {why} (setting ")


@pytest.mark.parametrize(
    "line",
    [
        "serial: 17",
        "serial: 17  # a laptop that was lost",
        "SERIAL:17-17",
        "serial: 0-18446744073709551615 ",
        "id: alice@laptop",
        f"hash: {KEY.get_fingerprint()}",
        f"hash: {CA.get_fingerprint()}",
        f"key: {WRITTEN}",
        WRITTEN,
        f"{CAS} a comment: with a colon",
    ],
    ids=[
        "serial",
        "comment",
        "range",
        "all",
        "id",
        "hash of the key",
        "hash of the CA",
        "key",
        "bare key",
        "bare key of the CA",
    ],
)
def test_a_line_names_a_certificate(line: str) -> None:
    assert read_revocations(f"# taken back\n\n{line}\n").names(BADGE)
    assert read_revocations(f"# taken back\n\n{line}\n").names(ELSE) is ("-1844" in line)


@pytest.mark.parametrize(
    "line",
    [
        "serial: x",
        "serial: 20-17",
        "serial: 18446744073709551616",
        "serial: 0x10000000000000000",
        "serial: 08",
        "id:",
        "hash: SHA256:x",
        "key: x",
        "nonsense",
        "a: b",
    ],
)
def test_what_is_no_such_line_is_a_sentence_with_the_setting(line: str, tmp_path: Path) -> None:
    (tmp_path / "revoked").write_text(f"serial: 3\n{line}\n")
    with pytest.raises(KeysUnusable, match=r"revoked: line 2: .*Gateway\.revoked_certificates_file"):
        RevocationList(tmp_path / "revoked").load()


@dataclass(frozen=True)
class Issued:
    """Certificates of one CA, in a folder with it: of two serials and of none, each for a key of its own."""

    folder: Path
    names: tuple[str, ...] = ("seventeen", "fifteen", "without")

    def filled(self, line: str) -> str:
        """A line in which names stand for what is written in these files."""
        words = {path.stem: path.read_text().strip() for path in self.folder.glob("*.pub")}
        prints = {name: asyncssh.read_public_key(self.folder / f"{name}.pub").get_fingerprint() for name in self.names}
        return line.format(**{name.replace("-", "_"): text for name, text in words.items()}, prints=prints)

    def badge(self, name: str) -> CertificateId:
        return read_certificate((self.folder / f"{name}-cert.pub").read_text()).badge

    def taken_back(self, krl: Path) -> set[str]:
        """Whom OpenSSH finds in a list."""
        asked = {name: ("ssh-keygen", "-Q", "-f", krl, self.folder / f"{name}-cert.pub") for name in self.names}
        return {name for name, command in asked.items() if subprocess.call(command, stdout=subprocess.DEVNULL) == 1}


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    found = Issued(tmp_path_factory.mktemp("issued"))
    for name in ("ca", *found.names):
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", found.folder / name), check=True)
    for name, serial, id_ in zip(found.names, ("17", "15", "0"), ("alice@laptop", "bob", "eve the first"), strict=True):
        ca, public = found.folder / "ca", found.folder / f"{name}.pub"
        subprocess.run(("ssh-keygen", "-q", "-s", ca, "-I", id_, "-z", serial, "-n", "alice", public), check=True)
    return found


@pytest.mark.parametrize(
    "line",
    [
        "serial: 17",
        "serial:\t0x11 # hexadecimal",
        "serial: 017",
        "serial: 15-0X10",
        "SERIAL: 1-18446744073709551615",
        "id: alice@laptop",
        "Id:eve the first",
        "hash: {prints[fifteen]}",
        "hash: {prints[fifteen]}=",
        "key: {seventeen}",
        "sha1: {seventeen}",
        "sha256: {seventeen}",
        "{seventeen}",
        "{ca}",
        "{seventeen_cert}",
        "key: {seventeen_cert}",
        "sha256: {without_cert}",
        "{without_cert}",
        "  serial: 16\n\n# and\nserial: 14-15\nserial: 17",
    ],
)
def test_a_line_takes_back_what_it_does_in_ssh_keygens_list(line: str, issued: Issued, tmp_path: Path) -> None:
    written = issued.filled(line)
    (tmp_path / "revoked").write_text(f"{written}\n")
    making = ("ssh-keygen", "-q", "-k", "-f", tmp_path / "krl", "-s", issued.folder / "ca.pub", tmp_path / "revoked")
    subprocess.run(making, check=True)
    found = read_revocations(written)
    assert {name for name in issued.names if found.names(issued.badge(name))} == issued.taken_back(tmp_path / "krl")


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6))))
def test_ranges_that_overlap_name_what_each_of_them_names(ranges: list[tuple[int, int]]) -> None:
    found = read_revocations("\n".join(f"serial: {first}-{first + more}" for first, more in ranges))
    named = {serial for serial in range(50) if found.names(replace(ELSE, serial=serial))}
    assert named == {serial for first, more in ranges for serial in range(first, first + more + 1)}
    assert all(ends < begins for (_, ends), (begins, _) in pairwise(found.serials))


def test_a_round_over_many_sessions_searches_no_long_list() -> None:
    found = read_revocations("\n".join(f"serial: {2 * number}-{2 * number}" for number in range(1, 50_001)))
    began = time.process_time()
    assert sum(found.names(replace(ELSE, serial=serial)) for serial in range(1, 2001)) == 1000
    assert time.process_time() - began < 1.0  # by search 2,000 × 50,000 comparisons take about 5


@pytest.fixture
async def organisation(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, tmp_path: Path
) -> AsyncIterator[Running]:
    """A gateway that trusts the CA in `tmp_path`/ca, but for what is in `tmp_path`/revoked."""
    await keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "ca"))
    (tmp_path / "revoked").write_text("")
    async with gateway(
        keys,
        people,
        places,
        authorities=TrustedCas(tmp_path / "ca.pub"),
        revocations=RevocationList(tmp_path / "revoked"),
    ) as found:
        yield found


async def complains(process: asyncio.subprocess.Process, sentence: bytes) -> None:
    """The client, whose input stays open, ends with this on standard error."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        assert sentence in await process.stderr.read()
        assert await process.wait() == 255


async def test_a_revoked_certificate_lets_nobody_in_and_ends_its_sessions(
    organisation: Running, keys: GatewayKeys, tmp_path: Path
) -> None:
    client = await holder(organisation, keys, tmp_path, "-n", "alice", "-z", "17")
    inside = await client.start("ssh", "alice+train@gateway", "echo ready; cat")
    await seen(inside, b"ready")
    (tmp_path / "revoked").write_text("serial: 17\n")
    await complains(inside, b"the certificate that you came in with was revoked")
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out, REVOKED in done.err) == (255, b"", True)
    (tmp_path / "revoked").write_text("serial: 170\n")
    assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
    (tmp_path / "revoked").write_text("nonsense\n")
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, UNKNOWN in done.err) == (255, True)


async def test_a_certificate_that_nobody_can_judge_costs_neither_an_attempt_nor_the_address_anything(
    organisation: Running, keys: GatewayKeys, people: FakePeople, tmp_path: Path
) -> None:
    """The key without its certificate is the one attempt that fails, and the token the second."""
    people.tokens["right"] = TokenOwner("alice", every_server)
    organisation.server.limits = replace(organisation.server.limits, attempts=2)
    client = await holder(organisation, keys, tmp_path, "-n", "alice")
    (tmp_path / "revoked").write_text("nonsense\n")
    conn = await asyncssh.connect(
        "127.0.0.1", organisation.port, username="alice+train", known_hosts=None, config=None, agent_path=None,
        client_keys=[str(client.directory / "id")], password="right",
    )  # fmt: skip
    assert (await conn.run("echo in")).stdout == "in\n"
    drop(conn)
    await conn.wait_closed()
    assert (await client.ssh("alice+train@gateway", "echo in")).status == 255
    penalties = organisation.server.penalties
    await until(lambda: not organisation.server.connections)
    assert penalties.penalised(organisation.server.now()) == (0, 0)


async def test_a_certificate_that_expires_ends_its_sessions(
    organisation: Running, keys: GatewayKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    client = await holder(organisation, keys, tmp_path, "-n", "alice", "-V", f"-1m:{until:%Y%m%d%H%M%S}Z")
    inside = await client.start("ssh", "alice+train@gateway", "echo ready; cat")
    await seen(inside, b"ready")
    late = time.time() + 3700
    monkeypatch.setattr("ssh_gateway.auth.revalidation.time.time", lambda: late)
    await complains(inside, b"the certificate that you came in with has expired: get a new one")
