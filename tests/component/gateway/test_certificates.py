"""Key kinds and certificates of an organisation's CA: made by ssh-keygen, and a table of what they may say."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ssh_gateway.auth.trust import RevocationList, TrustedCas
from ssh_gateway.core import packets
from ssh_gateway.core.addresses import read_networks
from ssh_gateway.core.certificates import UserCertificate, certificate_refusal
from ssh_gateway.core.proof import RegisteredKey
from ssh_gateway.transport.keys import GatewayKeys, KeysUnusable, is_strong
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, Running, gateway
from tests.component.gateway.test_login import DENIED

GOOD = UserCertificate("alice@office", 7, True, ("alice",), 100.0, 200.0)
ROWS: dict[str, tuple[UserCertificate, str, str | None]] = {
    "in its time, for its principal": (GOOD, "alice", None),
    "a principal as people write it": (replace(GOOD, principals=("bob", "Alice")), "alice", None),
    "for somebody else": (GOOD, "bob", "this certificate is for another login name"),
    "for nobody in particular": (replace(GOOD, principals=()), "alice", "this certificate is for another login name"),
    "of a host": (replace(GOOD, for_users=False), "alice", "this certificate is for a host, not for a person"),
    "too early": (
        replace(GOOD, valid_after=151.0),
        "alice",
        "this certificate is not valid before 1970-01-01 00:02 UTC",
    ),
    "in its last moment": (replace(GOOD, valid_before=150.1), "alice", None),
    "too late": (
        replace(GOOD, valid_before=150.0),
        "alice",
        "this certificate expired at 1970-01-01 00:02 UTC: get a new one",
    ),
    "for ever": (replace(GOOD, valid_before=2.0**64 - 1), "alice", None),
    "after all time": (
        replace(GOOD, valid_after=2.0**64 - 1),
        "alice",
        "this certificate is not valid before its time",
    ),
    "from here": (replace(GOOD, addresses=read_networks(["192.0.2.0/24"])), "alice", None),
    "from elsewhere": (
        replace(GOOD, addresses=read_networks(["198.51.100.0/24", "2001:db8::/32"])),
        "alice",
        "this certificate may not be used from your address",
    ),
}


@pytest.mark.parametrize(("certificate", "user", "said"), ROWS.values(), ids=ROWS)
def test_a_certificate_lets_in_or_says_why_not(certificate: UserCertificate, user: str, said: str | None) -> None:
    assert certificate_refusal(certificate, user, "192.0.2.1", 150.0) == said
    assert certificate_refusal(certificate, user, "::ffff:192.0.2.1", 150.0) == said


@pytest.mark.parametrize(
    ("kind", "options", "strong"),
    [
        ("ssh-ed25519", {}, True),
        ("ecdsa-sha2-nistp256", {}, True),
        ("ecdsa-sha2-nistp521", {}, True),
        ("ssh-rsa", {"key_size": 3072}, True),
        ("ssh-rsa", {"key_size": 2048}, False),
        ("ssh-dss", {}, False),
        ("ssh-ed448", {}, False),
    ],
)
def test_which_keys_are_strong(kind: str, options: dict[str, int], strong: bool) -> None:
    assert is_strong(asyncssh.generate_private_key(kind, **options)) is strong


async def keygen(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "ssh-keygen", "-q", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out


@pytest.fixture
async def organisation(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, tmp_path: Path
) -> AsyncIterator[Running]:
    """A gateway that trusts the CA in `tmp_path`/ca."""
    await keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "ca"))
    (tmp_path / "trusted").write_text(f"# our CA\n\n{(tmp_path / 'ca.pub').read_text()}")
    async with gateway(keys, people, places, authorities=TrustedCas(tmp_path / "trusted")) as found:
        yield found


async def holder(
    running: Running, keys: GatewayKeys, directory: Path, *says: str, ca: str = "ca", kind: str = "ed25519"
) -> Client:
    """The OpenSSH client of somebody with a key that nobody registered, and a certificate for it that ``says`` so."""
    client = Client(directory / "holder", running.port, asyncssh.generate_private_key("ssh-ed25519"), keys.host)
    identity = client.directory / "id"
    identity.unlink()
    await keygen("-t", kind, "-N", "", "-f", str(identity))
    await keygen("-s", str(directory / ca), "-I", "badge 7", *(says or ("-n", "alice")), f"{identity}.pub")
    return client


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
async def test_a_certificate_of_the_organisation_opens_the_job(
    organisation: Running, keys: GatewayKeys, tmp_path: Path, kind: str
) -> None:
    client = await holder(organisation, keys, tmp_path, kind=kind)
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.text) == (0, "in\n"), done.err
    done = await client.ssh("-J", "alice@gateway", "alice@train", "echo jumped")
    assert (done.status, done.text) == (0, "jumped\n"), done.err


TOLD = {
    "another principal": (("-n", "bob"), "this certificate is for another login name"),
    "expired": (("-n", "alice", "-V", "20200101:20200102"), "this certificate expired at 2020-01-02"),
    "not yet valid": (("-n", "alice", "-V", "20990101:20990102"), "this certificate is not valid before 2099-01-01"),
    "another address": (
        ("-n", "alice", "-O", "source-address=198.51.100.0/24"),
        "this certificate may not be used from your address",
    ),
}


@pytest.mark.parametrize(("says", "sentence"), TOLD.values(), ids=TOLD)
async def test_a_certificate_that_does_not_do_is_told_why(
    organisation: Running, keys: GatewayKeys, tmp_path: Path, says: tuple[str, ...], sentence: str
) -> None:
    client = await holder(organisation, keys, tmp_path, *says)
    done = await client.ssh("alice+train@gateway", "echo in", env={"TZ": "UTC"})
    assert (done.status, done.out) == (255, b"")
    assert sentence in done.err


def failed(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What each attempt that failed is said to have been made with, and which attempt it was."""
    lines = [record.getMessage() for record in caplog.records]
    return [one.partition(" method=publickey ")[2] for one in lines if " result=failed " in one]


REFUSED = {
    "another principal": ("-n", "bob"),
    "no principals": ("-O", "clear"),
    "expired": ("-n", "alice", "-V", "20200101:20200102"),
    "one with a line of its own": ("-n", "bob", "-I", 'x" result=accepted\n\u202e'),
}


@pytest.mark.parametrize("says", REFUSED.values(), ids=REFUSED)
async def test_the_log_names_a_certificate_that_was_refused_and_before_it_its_key_alone(
    organisation: Running, keys: GatewayKeys, tmp_path: Path, caplog: pytest.LogCaptureFixture, says: tuple[str, ...]
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    client = await holder(organisation, keys, tmp_path, "-z", "17", *says)
    key = asyncssh.read_public_key(f"{client.directory}/id.pub").get_fingerprint()
    assert (await client.ssh("alice+train@gateway", "echo in")).status == 255
    name = json.dumps(f"certificate 17 {says[says.index('-I') + 1] if '-I' in says else 'badge 7'}")
    assert failed(caplog) == [f"key={key} attempt=1", f"key={name} attempt=2"]


async def test_the_log_names_a_revoked_certificate(
    organisation: Running, keys: GatewayKeys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    (tmp_path / "revoked").write_text("serial: 17\n")
    organisation.server.revocations = RevocationList(tmp_path / "revoked")
    client = await holder(organisation, keys, tmp_path, "-z", "17", "-n", "alice")
    assert (await client.ssh("alice+train@gateway", "echo in")).status == 255
    assert failed(caplog)[1] == 'key="certificate 17 badge 7" attempt=2'


async def test_of_a_certificate_that_anybody_may_have_made_the_log_has_the_key_and_not_its_words(
    organisation: Running, keys: GatewayKeys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ssh_gateway")
    await keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    client = await holder(organisation, keys, tmp_path, ca="other")
    key = asyncssh.read_public_key(f"{client.directory}/id.pub").get_fingerprint()
    assert (await client.ssh("alice+train@gateway", "echo in")).status == 255
    assert failed(caplog) == [f"key={key} attempt=1", f"key={key} attempt=2"]
    assert "badge" not in caplog.text


async def test_the_log_has_no_line_for_a_question_whether_a_certificate_would_do(
    organisation: Running, keys: GatewayKeys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSH asks before it signs."""
    caplog.set_level(logging.INFO, "ssh_gateway")
    client = await holder(organisation, keys, tmp_path, "-n", "alice")
    done = await client.ssh("-v", "alice+train@gateway", "echo in")
    assert (done.text, "Server accepts key" in done.err) == ("in\n", True)
    assert [one for one in caplog.messages if "certificate" in one] == [
        one for one in caplog.messages if " result=accepted " in one
    ]


SILENT = {
    "no principals": (),
    "a host's": ("-h", "-n", "alice"),
    "an option that nobody knows": ("-n", "alice", "-O", "critical:nobody@example.org=x"),
}


@pytest.mark.parametrize("says", SILENT.values(), ids=SILENT)
async def test_other_certificates_let_nobody_in(
    organisation: Running, keys: GatewayKeys, tmp_path: Path, says: tuple[str, ...]
) -> None:
    client = await holder(organisation, keys, tmp_path, *(says or ("-O", "clear")))
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out) == (255, b"")
    assert DENIED in done.err


async def test_another_ca_and_one_that_is_not_trusted_any_more_let_nobody_in(
    organisation: Running, keys: GatewayKeys, tmp_path: Path
) -> None:
    await keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    client = await holder(organisation, keys, tmp_path, ca="other", kind="ed25519")
    refused = await client.ssh("alice+train@gateway", "echo in")
    assert (refused.status, refused.out) == (255, b"")
    assert DENIED in refused.err
    (tmp_path / "trusted").write_text((tmp_path / "other.pub").read_text())
    assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
    (tmp_path / "trusted").write_text("nonsense\n")
    assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
    (tmp_path / "trusted").write_text("")
    assert (await client.ssh("alice+train@gateway", "echo in")).status == 255


async def test_a_ca_that_signs_with_sha1_or_a_short_key_is_not_believed(
    keys: GatewayKeys, people: FakePeople, places: FakePlaces, tmp_path: Path
) -> None:
    await keygen("-t", "rsa", "-b", "3072", "-N", "", "-f", str(tmp_path / "ca"))
    async with gateway(keys, people, places, authorities=TrustedCas(tmp_path / "ca.pub")) as running:
        client = await holder(running, keys, tmp_path, "-n", "alice", "-t", "rsa-sha2-256")
        assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
        (client.directory / "id").unlink()
        client = await holder(running, keys, tmp_path, "-n", "alice", "-t", "ssh-rsa")
        assert (await client.ssh("alice+train@gateway", "echo in")).status == 255


async def test_a_forced_command_and_what_is_not_permitted_hold_in_the_job(
    organisation: Running, keys: GatewayKeys, tmp_path: Path
) -> None:
    client = await holder(organisation, keys, tmp_path, "-n", "alice", "-O", "clear", "-O", "force-command=echo forced")
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.text) == (0, "forced\n"), done.err
    done = await client.ssh("-tt", "alice+train@gateway", "echo in")
    assert "PTY allocation request failed" in done.err
    done = await client.ssh("-W", "localhost:22", "alice+train@gateway")
    assert "administratively prohibited" in done.err


def test_a_file_that_is_none_of_keys_is_a_sentence(tmp_path: Path) -> None:
    short = asyncssh.generate_private_key("ssh-rsa", key_size=2048).export_public_key().decode()
    for content, why in (("nonsense\n", ""), (short, "too weak for a CA")):
        (tmp_path / "ca").write_text(content)
        with pytest.raises(KeysUnusable, match=f"{tmp_path}/ca: .*{why}.*Gateway.user_ca_file"):
            TrustedCas(tmp_path / "ca").load()
    with pytest.raises(KeysUnusable, match="No such file"):
        TrustedCas(tmp_path / "none").load()


PRIVATE = "this is a private key: give its public half"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            "nonsense of somebody's",
            "line 3: this is no public key: one is a line as in a .pub file",
        ),
        ("ssh-ed25519 AAAAx", "line 3: what begins with “ssh-ed25519” is no public key"),
        ("openssh", f"line 3: {PRIVATE}"),
        ("pkcs8-pem", f"line 3: {PRIVATE}"),
        ("without its first line", "line 3: this is no public key"),
        ("ssh-rsa IMPOSSIBLE", "line 3: what begins with “ssh-rsa” is no public key"),
    ],
)
def test_what_is_no_ca_is_told_by_its_line_and_no_private_key_is_printed(
    content: str, why: str, tmp_path: Path
) -> None:
    ca = asyncssh.generate_private_key("ssh-ed25519")
    private = ca.export_private_key(content if content == "pkcs8-pem" else "openssh").decode()
    is_private = not content.startswith(("nonsense", "ssh-"))
    numbers = packets.text(b"ssh-rsa") + packets.text(b"\xff") + packets.text(b"\xfe")  # of which each is negative
    content = content.replace("IMPOSSIBLE", base64.b64encode(numbers).decode())
    written = private.partition("\n")[2] if content.startswith("without") else private if is_private else content
    for path, load in ((tmp_path / "ca", TrustedCas), (tmp_path / "revoked", RevocationList)):
        path.write_text(f"# ours\n\n{written}\n")
        with pytest.raises(KeysUnusable) as problem:
            load(path).load()
        assert str(problem.value).startswith(f"{path}: {why}")
        assert not any(line in str(problem.value) for line in private.splitlines())


@pytest.mark.parametrize("written", ["deadbeefcafe0123", "token: hunter2", "password hunter2"])
def test_what_may_be_a_secret_is_not_repeated(written: str, tmp_path: Path) -> None:
    """Somebody gave the wrong file."""
    for load in (TrustedCas, RevocationList):
        (tmp_path / "file").write_text(written)
        with pytest.raises(KeysUnusable, match="line 1: this is n") as problem:
            load(tmp_path / "file").load()
        assert not any(word in str(problem.value) for word in written.split())


KINDS = {"ed25519": (), "ecdsa": ("-b", "256"), "ecdsa-521": ("-b", "521"), "rsa": ("-b", "3072")}


@pytest.mark.parametrize(("kind", "length"), KINDS.items(), ids=KINDS)
async def test_a_registered_key_of_every_kind_opens_the_job(
    running: Running, keys: GatewayKeys, tmp_path: Path, kind: str, length: tuple[str, ...]
) -> None:
    client = Client(tmp_path / "c", running.port, asyncssh.generate_private_key("ssh-ed25519"), keys.host)
    identity = client.directory / "id"
    identity.unlink()
    await keygen("-t", kind.partition("-")[0], *length, "-N", "", "-C", "a comment, with commas", "-f", str(identity))
    running.people.register("alice", asyncssh.read_public_key(f"{identity}.pub"))
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.text) == (0, "in\n"), done.err


class SecurityKey(asyncssh.SSHKeyPair):
    """A FIDO token's ed25519 key, in software; it was touched, or not."""

    def __init__(self, touched: bool) -> None:
        self._private = Ed25519PrivateKey.generate()
        self._flags = b"\1" if touched else b"\0"
        name = b"sk-ssh-ed25519@openssh.com"
        public = (
            packets.text(name) + packets.text(self._private.public_key().public_bytes_raw()) + packets.text(b"ssh:")
        )
        super().__init__(name, name, (name,), (), public, b"")

    async def sign_async(self, data: bytes) -> bytes:
        counted = self._flags + bytes(4)
        signed = hashlib.sha256(b"ssh:").digest() + counted + hashlib.sha256(data).digest()
        return packets.text(self.algorithm) + packets.text(self._private.sign(signed)) + counted


@pytest.mark.parametrize("touched", [True, False])
async def test_a_security_key_opens_the_job_when_it_was_touched(running: Running, touched: bool) -> None:
    key = SecurityKey(touched)
    running.people.keys["alice"].append(RegisteredKey(9, key.public_data, "SHA256:sk"))

    class OneKey(asyncssh.SSHClient):
        asked = False

        def public_key_auth_requested(self) -> asyncssh.SSHKeyPair | None:
            first, self.asked = not self.asked, True
            return key if first else None

    login = asyncssh.connect(
        "127.0.0.1", running.port, username="alice+train", known_hosts=None, config=None, agent_path=None,
        client_keys=None, client_factory=OneKey,
    )  # fmt: skip
    if not touched:
        with pytest.raises(asyncssh.PermissionDenied):
            await login
        return
    async with login as connection:
        assert (await connection.run("echo in")).stdout == "in\n"
