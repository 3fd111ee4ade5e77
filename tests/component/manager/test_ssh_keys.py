"""Texts that are keys, and the sentences about all others."""

from __future__ import annotations

import base64
import struct
import subprocess
from pathlib import Path

import asyncssh
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from dlspawner.manager.model import ssh_keys
from dlspawner.manager.model.ssh_keys import KeyRejected, PublicKey, parse_keys


def generated(algorithm: str, comment: str = "laptop", **more: int) -> str:
    return asyncssh.generate_private_key(algorithm, comment=comment, **more).export_public_key().decode().strip()


def packed(*fields: bytes) -> str:
    return base64.b64encode(b"".join(struct.pack(">I", len(field)) + field for field in fields)).decode()


def security_key_ed25519() -> str:
    raw = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return f"sk-ssh-ed25519@openssh.com {packed(b'sk-ssh-ed25519@openssh.com', raw, b'ssh:')} yubikey"


def security_key_ecdsa() -> str:
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    point = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    name = b"sk-ecdsa-sha2-nistp256@openssh.com"
    return f"{name.decode()} {packed(name, b'nistp256', point, b'ssh:')} yubikey"


ED25519 = generated("ssh-ed25519")
BODY = ED25519.split(" ")[1]
PRIVATE_ED25519 = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()

ACCEPTED = {
    "ed25519": ED25519,
    "ecdsa on the three curves, 256": generated("ecdsa-sha2-nistp256"),
    "ecdsa on the three curves, 384": generated("ecdsa-sha2-nistp384"),
    "ecdsa on the three curves, 521": generated("ecdsa-sha2-nistp521"),
    "rsa as PuTTYgen makes it": generated("ssh-rsa", key_size=2048),
    "an ed25519 security key": security_key_ed25519(),
    "an ecdsa security key": security_key_ecdsa(),
    "without a comment": f"ssh-ed25519 {BODY}",
    "with tabs, line ends of Windows and blank lines": f"\r\n\tssh-ed25519\t{BODY} \t me \r\n\r\n",
    "with comment lines as in authorized_keys": f"# my laptop\n{ED25519}\n",
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_key_is_accepted_and_understood_by_asyncssh(text: str) -> None:
    parsed = parse_keys(text)
    assert isinstance(parsed, tuple), parsed
    (key,) = parsed
    assert asyncssh.import_public_key(key.key).get_fingerprint() == key.fingerprint


REJECTED = {
    "nothing": ("  \n", "There is no key"),
    "a sentence": ("please let me in", "not a public key"),
    "only the body": (BODY, "not a public key"),
    "only the type": ("ssh-ed25519", "damaged"),
    "a cut key": (ED25519[:60], "damaged"),
    "a key with something behind it": (f"ssh-ed25519 {packed(b'ssh-ed25519', bytes(32))[:-1]}AAA=", "damaged"),
    "a key that says another type inside": (f"ssh-rsa {BODY}", "damaged"),
    "a body that is not base64": ("ssh-ed25519 AAAA…", "damaged"),
    "a short rsa key": (generated("ssh-rsa", key_size=1536), "1536 bits; 2048 to 8192"),
    "dsa": ("ssh-dss AAAAB3NzaC1kc3MAAACBAP", "ssh-keygen -t ed25519"),
    "a certificate": (f"ssh-ed25519-cert-v01@openssh.com {BODY}", "certificate"),
    "options": (f'no-pty,command="rm -rf ~" {ED25519}', "options in front"),
    "an option that would let anyone in": (f'cert-authority,principals="*" {ED25519}', "options in front"),
    "another format of public keys": ("-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----", "ssh-keygen -i"),
    "more than 16 KiB": ("ssh-ed25519 " + "A" * 17000, "longer than 16 KiB"),
    "a NUL inside": (f"ssh-ed25519 {BODY[:20]}\0{BODY[20:]}", "damaged"),
    "half a character": ("ssh-ed25519 \ud800", "damaged"),
}


@pytest.mark.parametrize(("text", "sentence"), REJECTED.values(), ids=REJECTED.keys())
def test_text_is_rejected_with_a_sentence(text: str, sentence: str) -> None:
    parsed = parse_keys(text)
    assert isinstance(parsed, KeyRejected)
    assert sentence in " ".join(parsed.sentences)
    assert not parsed.private


@pytest.mark.parametrize(
    "text",
    [
        PRIVATE_ED25519,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
        "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none",
        f"{ED25519}\n{PRIVATE_ED25519}",
        PRIVATE_ED25519 + "x" * 20000,
    ],
    ids=["OpenSSH's", "PEM", "PuTTY's", "after a public key", "too long"],
)
def test_private_key_is_recognised_and_not_repeated(text: str) -> None:
    parsed = parse_keys(text)
    assert isinstance(parsed, KeyRejected)
    assert parsed.private
    assert "was not stored" in parsed.sentences[0]
    assert text.rsplit(maxsplit=1)[-1] not in " ".join(parsed.sentences).split()


def test_rsa_key_needs_the_bits_that_the_administrator_wants() -> None:
    parsed = parse_keys(ACCEPTED["rsa as PuTTYgen makes it"], 3072)
    assert isinstance(parsed, KeyRejected)
    assert "2048 bits; 3072 to 8192" in parsed.sentences[0]


def test_several_keys_are_read_once_each() -> None:
    other = generated("ssh-ed25519", "desk")
    parsed = parse_keys(f"{ED25519}\n{other}\n{ED25519}")
    assert isinstance(parsed, tuple)
    assert [key.name for key in parsed] == ["laptop", "desk"]


def test_one_bad_line_rejects_all_and_is_named() -> None:
    parsed = parse_keys(f"{ED25519}\n\nssh-dss AAAA\nrubbish")
    assert isinstance(parsed, KeyRejected)
    assert [sentence.partition(":")[0] for sentence in parsed.sentences] == ["Line 3", "Line 4"]


def test_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(ED25519)
    printed = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], check=True, capture_output=True, text=True)
    (key,) = parse_keys(ED25519)
    assert isinstance(key, PublicKey)
    assert key.fingerprint in printed.stdout.split()


@pytest.mark.parametrize(
    ("comment", "name"),
    [
        ("alice@laptop", "alice@laptop"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),  # escaped where it is shown
        ("two\x1b[31m\x07 words\x00", "two [31m words"),
        ("\u202etxt.exe", "txt.exe"),
        ("x" * 500, "x" * 100),
    ],
    ids=["as it is", "markup", "terminal escapes", "text direction", "length"],
)
def test_comment_becomes_a_name_of_visible_characters(comment: str, name: str) -> None:
    assert ssh_keys.clean_name(comment) == name


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_keys(text)
    parse_keys(f"ssh-ed25519 {text}")
    parse_keys(f"ssh-ed25519 {BODY}{text}")
