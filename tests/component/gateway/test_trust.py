"""Files of trusted CAs and of revoked certificates, compared with ssh-keygen."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssh_gateway.auth.trust import RevocationList, TrustedCas, read_revocations
from ssh_gateway.core import packets
from ssh_gateway.core.proof import CertificateId
from ssh_gateway.transport.keys import KeysUnusable
from ssh_gateway.transport.reading import read_certificate

PRIVATE_KEY = asyncssh.generate_private_key("ssh-ed25519").export_private_key("openssh").decode()
PKCS8 = asyncssh.generate_private_key("ssh-ed25519").export_private_key("pkcs8-pem").decode()
IS_PRIVATE = "line 3: this is a private key: give its public half"
NEGATIVE = base64.b64encode(packets.text(b"ssh-rsa") + packets.text(b"\xff") + packets.text(b"\xfe")).decode()
WRONG: dict[str, tuple[str, str]] = {
    "another text": ("token: hunter2", "line 3: this is n"),
    "a key cut short": ("ssh-ed25519 AAAAx", "line 3: what begins with “ssh-ed25519” is no public key"),
    "negative numbers": (f"ssh-rsa {NEGATIVE}", "line 3: what begins with “ssh-rsa” is no public key"),
    "a private key": (PRIVATE_KEY, IS_PRIVATE),
    "a private key of another form": (PKCS8, IS_PRIVATE),
    "a private key without its first line": (PRIVATE_KEY.partition("\n")[2], "line 3: this is no public key"),
}


@pytest.mark.parametrize("load", [TrustedCas, RevocationList])
@pytest.mark.parametrize(("content", "why"), WRONG.values(), ids=WRONG)
def test_wrong_file_is_named_by_its_line_and_not_repeated(
    load: type[TrustedCas | RevocationList], content: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text(f"# ours\n\n{content}\n")
    with pytest.raises(KeysUnusable) as problem:
        load(path).load()
    assert str(problem.value).startswith(f"{path}: {why}")
    assert not any(word in str(problem.value) for word in content.split() if len(word) > 6 and "-" not in word)


def test_file_without_strong_keys_is_refused(tmp_path: Path) -> None:
    short = asyncssh.generate_private_key("ssh-rsa", key_size=1024).export_public_key().decode()
    (tmp_path / "ca").write_text(short)
    with pytest.raises(KeysUnusable, match=f"{tmp_path}/ca: .*too weak for a CA.*Gateway.user_ca_file"):
        TrustedCas(tmp_path / "ca").load()
    with pytest.raises(KeysUnusable, match="No such file"):
        TrustedCas(tmp_path / "none").load()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"SSHKRL\n\0\0\0\0\1", "this is a binary KRL: give the text from which ssh-keygen -k makes one"),
        (b"\xe9\x01", "this is no text"),
    ],
    ids=["a KRL", "no text"],
)
def test_binary_file_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    for load in (RevocationList, TrustedCas):
        with pytest.raises(KeysUnusable) as problem:
            load(tmp_path / "file").load()
        assert str(problem.value).startswith(f"{tmp_path / 'file'}: {why} (setting ")


CERTIFICATE = CertificateId(18, "bob", "SHA256:k", "SHA256:c", 2e9)


@pytest.mark.parametrize(
    "line",
    [
        "serial: x",
        "serial: 20-17",
        "serial: 18446744073709551616",
        "serial: 08",
        "id:",
        "hash: SHA256:x",
        "key: x",
        "a: b",
    ],
)
def test_invalid_revocation_names_line_and_setting(line: str, tmp_path: Path) -> None:
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

    def certificate(self, name: str) -> CertificateId:
        return read_certificate((self.folder / f"{name}-cert.pub").read_text()).id

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
        "serial: 15-0X10",
        "SERIAL: 1-18446744073709551615",
        "id: alice@laptop",
        "hash: {prints[fifteen]}",
        "key: {seventeen}",
        "sha1: {seventeen}",
        "{ca}",
        "{seventeen_cert}",
        "{without_cert}",
        "  serial: 16\n\n# and\nserial: 14-15\nserial: 17",
    ],
)
def test_revocation_means_the_same_as_to_ssh_keygen(line: str, issued: Issued, tmp_path: Path) -> None:
    written = issued.filled(line)
    (tmp_path / "revoked").write_text(f"{written}\n")
    making = ("ssh-keygen", "-q", "-k", "-f", tmp_path / "krl", "-s", issued.folder / "ca.pub", tmp_path / "revoked")
    subprocess.run(making, check=True)
    found = read_revocations(written)
    assert {name for name in issued.names if found.names(issued.certificate(name))} == issued.taken_back(
        tmp_path / "krl"
    )


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6))))
def test_overlapping_ranges_revoke_their_union(ranges: list[tuple[int, int]]) -> None:
    found = read_revocations("\n".join(f"serial: {first}-{first + more}" for first, more in ranges))
    named = {serial for serial in range(50) if found.names(replace(CERTIFICATE, serial=serial))}
    assert named == {serial for first, more in ranges for serial in range(first, first + more + 1)}
    assert all(ends < begins for (_, ends), (begins, _) in pairwise(found.serials))
