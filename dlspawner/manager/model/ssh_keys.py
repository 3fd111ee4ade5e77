"""SSH public keys as people paste them: read strictly, or refuse with a sentence that says what to do instead.

PURE: text in, values out. Accepted is what OpenSSH writes into a .pub file, and several of those, one a line:
ed25519, ECDSA on the three NIST curves, both with security-key variants (sk-), and RSA that is long enough. What leaves
here is rebuilt from the decoded key, so nothing a user typed reaches a database or an `authorized_keys` line except the
cleaned comment.

Refused: `authorized_keys` options (they would be promises that the gateway does not keep), certificates (they expire;
the organisation's CA is trusted as a whole), DSA and short RSA. `asyncssh.import_public_key` would read PEM, PKCS#8,
RFC 4716 and certificates too, which is more than a page should accept, and reports all failures alike.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

MAX_INPUT = 16 * 1024
MAX_NAME = 100
MOST_KEYS = 50  # of a person: the gateway reads all of them at every login
MIN_RSA_BITS = 2048  # what PuTTYgen makes
MAX_RSA_BITS = 8192  # above, a verification costs the gateway milliseconds for nothing

ACCEPTED = {
    "ssh-ed25519": "Ed25519",
    "ecdsa-sha2-nistp256": "ECDSA P-256",
    "ecdsa-sha2-nistp384": "ECDSA P-384",
    "ecdsa-sha2-nistp521": "ECDSA P-521",
    "ssh-rsa": "RSA",
    "sk-ssh-ed25519@openssh.com": "Ed25519 security key",
    "sk-ecdsa-sha2-nistp256@openssh.com": "ECDSA P-256 security key",
}

PRIVATE = (
    "This is a private key, the half that must never leave your computer. It was not stored and not written to any "
    "log; if the address of this page does not begin with https://, consider it exposed and make a new one. "
    "Paste the public key: the file whose name ends in .pub."
)
EMPTY = "There is no key in what you sent. Paste the content of a file such as ~/.ssh/id_ed25519.pub."
TOO_LONG = f"This is longer than {MAX_INPUT // 1024} KiB. Paste only public keys, one a line."
NOT_A_KEY = (
    "This is not a public key. It begins with a type such as ssh-ed25519, then a long word that begins with AAAA."
)
DAMAGED = "This key is damaged: part of it is missing or changed. Copy the whole line again."
OPTIONS = "This line has options in front of the key, as in authorized_keys. Remove all that comes before {type}."
CERTIFICATE = "This is a certificate. Paste the key itself: the .pub file whose name does not contain -cert."
DSA = "DSA keys can no longer be trusted. Make a new key with: ssh-keygen -t ed25519"
PEM = "This is a public key in another format. Convert it with: ssh-keygen -i -f FILE (or paste OpenSSH's .pub file)."
RSA_SIZE = "This RSA key has {bits} bits; {least} to {most} are accepted. Make a new key with: ssh-keygen -t ed25519"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One accepted key; `key` is "type base64" without a comment, `name` what its comment said, cleaned."""

    key: str
    name: str
    bits: int | None = None  # of RSA keys

    @property
    def type(self) -> str:
        return self.key.partition(" ")[0]

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


@dataclass(frozen=True, slots=True)
class KeyRejected:
    """Why nothing of the input was accepted: one sentence or more, ready to be shown."""

    sentences: tuple[str, ...]

    @property
    def private(self) -> bool:
        """The input held a private key: it must not be echoed, stored or logged."""
        return PRIVATE in self.sentences


def parse_keys(text: str, min_rsa_bits: int = MIN_RSA_BITS) -> tuple[PublicKey, ...] | KeyRejected:
    """All keys of the input, each once, in its order; or every reason why not. All or nothing."""
    if is_private(text):
        return KeyRejected((PRIVATE,))
    if len(text.encode(errors="replace")) > MAX_INPUT:
        return KeyRejected((TOO_LONG,))
    if "-----BEGIN" in text or "---- BEGIN" in text:
        return KeyRejected((PEM,))
    lines = list(_lines(text))
    if not lines:
        return KeyRejected((EMPTY,))
    read = [(number, parse_line(line, min_rsa_bits)) for number, line in lines]
    problems = [
        f"Line {number}: {sentence}" if len(lines) > 1 else sentence
        for number, result in read
        if isinstance(result, KeyRejected)
        for sentence in result.sentences
    ]
    if problems:
        return KeyRejected(tuple(problems))
    unique: dict[str, PublicKey] = {}
    for _, result in read:
        if isinstance(result, PublicKey):
            unique.setdefault(result.key, result)
    return tuple(unique.values())


def parse_line(line: str, min_rsa_bits: int = MIN_RSA_BITS) -> PublicKey | KeyRejected:
    type_, _, rest = line.partition(" ")
    refusal = _refuse_type(type_, rest)
    if refusal:
        return KeyRejected((refusal,))
    encoded, _, comment = rest.strip().partition(" ")
    try:
        blob = base64.b64decode(encoded, validate=True)
        loaded = load_ssh_public_key(f"{type_} {encoded}".encode("ascii"))
    except (ValueError, UnsupportedAlgorithm, binascii.Error):
        return KeyRejected((DAMAGED,))
    bits = None
    if isinstance(loaded, RSAPublicKey):
        bits = loaded.key_size
        # OpenSSL verifies no larger exponents with keys of this size: the key would never log in.
        if not min_rsa_bits <= bits <= MAX_RSA_BITS or loaded.public_numbers().e.bit_length() > 64:
            return KeyRejected((RSA_SIZE.format(bits=bits, least=min_rsa_bits, most=MAX_RSA_BITS),))
    return PublicKey(f"{type_} {base64.b64encode(blob).decode('ascii')}", clean_name(comment), bits)


def is_private(text: str) -> bool:
    """True if the text contains a private key: OpenSSH's, PEM of any kind, or PuTTY's."""
    return "PRIVATE KEY" in text.upper() or "PuTTY-User-Key-File" in text


def fingerprint(key: str) -> str:
    """SHA256:… of "type base64", as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(key.split(" ")[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


def with_names(keys: Sequence[PublicKey], name: str) -> list[PublicKey]:
    """The keys under `name` if there is one and one key, else under their comments; none stays without a name."""
    if name and len(keys) == 1:
        return [replace(keys[0], name=name)]
    return [key if key.name else replace(key, name=f"{describe_type(key.type)} key") for key in keys]


def describe_type(type_: str) -> str:
    """The type in words that people use."""
    return ACCEPTED.get(type_, type_)


def clean_name(text: str, most: int = MAX_NAME) -> str:
    """A comment as a name: one line of visible characters, cut to `most`; may be empty."""
    visible = "".join(char if unicodedata.category(char)[0] != "C" else " " for char in text)
    return " ".join(unicodedata.normalize("NFC", visible).split())[:most].rstrip()


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with something on them, numbered from 1; comments as in authorized_keys are skipped."""
    for number, raw in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        line = " ".join(raw.split())
        if line and not line.startswith("#"):
            yield number, line


def _refuse_type(type_: str, rest: str) -> str | None:
    """Why this first word cannot begin a key that is accepted; None when it can."""
    if type_ in ACCEPTED:
        return None if rest.strip() else DAMAGED
    if type_.endswith("-cert-v01@openssh.com"):
        return CERTIFICATE
    if type_ == "ssh-dss":
        return DSA
    # With options in front: `no-pty,command="…" ssh-ed25519 AAAA…`. Quoted options may hold spaces.
    for word in rest.split(" "):
        if word in ACCEPTED:
            return OPTIONS.format(type=word)
    return NOT_A_KEY
