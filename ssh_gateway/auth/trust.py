"""The public keys of the CAs that sign user certificates: a file, read again when it changes.

One key a line, as in sshd's TrustedUserCAKeys; # begins a comment. A file that becomes unreadable or invalid changes
nothing: the problem is logged, and the trusted CAs stay trusted. At the start such a file is an error, and the gateway
does not start.

Revoked certificates: a text file, read again when it changes, in the format that ssh-keygen -k reads.

    serial: 17            certificates of these serial numbers, of every CA that is trusted
    serial: 100-0xff      numbers are read as in C: 0x is hexadecimal, and 0 before a number octal
    id: alice@laptop      certificates of this key id
    hash: SHA256:w3…      this key: a user's, or a CA's with all certificates that it has signed
    key: ssh-ed25519 AA…  the same, written out; `sha1:`, `sha256:` or no word at all means the same here

Without a word before it, a certificate itself is revoked: by its CA and serial, or by its key id if it has no serial.
After one of these words its key is revoked.

Lists are long, so a certificate is looked up in sets and sorted ranges, not by a search through the list.

While the file is unreadable or invalid, certificates open no new connection: the missing version may revoke the one at
hand. Open sessions are judged by the last valid version.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import asyncssh

from ssh_gateway.core.proof import CertificateId
from ssh_gateway.log import say
from ssh_gateway.transport.keys import KeysUnusable, is_strong, read_public
from ssh_gateway.transport.reading import read_certificate


class TrustedCas:
    """The trusted CAs; `trusts` reads a changed file again. ``path`` None: no CA is trusted."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = WatchedFile(path, "Gateway.user_ca_file", _read, frozenset[bytes]())

    def load(self) -> None:
        """Reads the file if it has changed; KeysUnusable names the problem."""
        self._file.load()

    def trusts(self, key: asyncssh.SSHKey) -> bool:
        """True if certificates signed by this key are trusted."""
        try:
            self.load()
        except KeysUnusable as problem:
            say("authorities", level=logging.WARNING, result="failed", why=problem)
        return key.public_data in self._file.latest


def _read(text: str) -> frozenset[bytes]:
    return frozenset(each_line(text, _read_line))


def _read_line(line: str) -> bytes:
    key = read_public(line)
    if not is_strong(key):
        raise ValueError(
            f"a {key.algorithm.decode()} key that is too weak for a CA: ed25519, ECDSA or RSA from 2048 bits"
        )
    return key.public_data


REVOKED = "this certificate was revoked: get a new one"
UNKNOWN = "certificates cannot be checked right now: use a registered key or a token, or try again later"
MOST_SERIAL = 2**64 - 1

_FINGERPRINT = re.compile(r"(SHA256:[A-Za-z0-9+/]{43})=?")
_NUMBER = r"(0x[0-9a-f]{1,16}|[0-9]{1,25})"
_SERIALS = re.compile(rf"{_NUMBER}(?:-{_NUMBER})?", re.IGNORECASE)
_KEYS = frozenset({"key", "sha1", "sha256"})
_CERTIFICATE = re.compile(r"\S+-cert-v01@openssh\.com\s")


@dataclass(frozen=True, slots=True)
class RevokedCertificates:
    """The content of a revocation file.

    ``serials`` are sorted ranges (first, last) without overlaps, ``keys`` fingerprints; ``single`` are certificates as
    CA and serial, or CA and key id if they have no serial.
    """

    serials: tuple[tuple[int, int], ...] = ()
    ids: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    single: frozenset[tuple[str, int | str]] = frozenset()

    def names(self, certificate: CertificateId) -> bool:
        """True if this certificate is revoked."""
        return (
            certificate.key_id in self.ids
            or not self.keys.isdisjoint({certificate.key, certificate.ca})
            or not self.single.isdisjoint({(certificate.ca, certificate.serial), (certificate.ca, certificate.key_id)})
            or self._has(certificate.serial)
        )

    def _has(self, serial: int) -> bool:
        after = bisect_right(self.serials, (serial, MOST_SERIAL))
        return after > 0 and serial <= self.serials[after - 1][1]


class RevocationList:
    """The revocations; `refusal` is called for every acceptable certificate. ``path`` None: none is revoked."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = WatchedFile(path, "Gateway.revoked_certificates_file", read_revocations, RevokedCertificates())

    def load(self) -> None:
        """Reads the file if it has changed; KeysUnusable names the problem."""
        self._file.load()

    def refusal(self, certificate: CertificateId) -> str | None:
        """Returns the reason why a certificate is refused; None for a valid one."""
        if not self._is_read():
            return UNKNOWN
        return REVOKED if self._file.latest.names(certificate) else None

    def latest(self) -> RevokedCertificates:
        """Returns the revocations of the file, or the last valid ones."""
        self._is_read()
        return self._file.latest

    def _is_read(self) -> bool:
        try:
            self.load()
        except KeysUnusable as problem:
            say("revocations", level=logging.WARNING, result="failed", why=problem)
            return False
        return True


@dataclass(slots=True)
class _Lines:
    """The revocations read so far."""

    serials: list[tuple[int, int]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    single: set[tuple[str, int | str]] = field(default_factory=set)

    def add(self, line: str) -> None:
        """Adds one line; ValueError for an invalid one."""
        word, colon, rest = line.partition(":")
        kind, value = (word.lower(), rest.strip()) if colon and not re.search(r"\s", word) else ("", line)
        if kind == "serial":
            self.serials.append(_serials(value))
        elif kind == "id" and value:
            self.ids.add(value)
        elif kind == "hash" and (found := _FINGERPRINT.fullmatch(value)):
            self.keys.add(found[1])
        elif kind in _KEYS or not kind:
            self._add_key(value, itself=not kind)
        else:
            raise ValueError("this is none of serial: 17, serial: 17-20, id: …, hash: SHA256:…, key: …")

    def _add_key(self, written: str, *, itself: bool) -> None:
        if _CERTIFICATE.match(written) is None:
            self.keys.add(read_public(written).get_fingerprint())
            return
        certificate = read_certificate(written).id
        if itself:
            self.single.add((certificate.ca, certificate.serial or certificate.key_id))
        else:
            self.keys.add(certificate.key)


def read_revocations(text: str) -> RevokedCertificates:
    """Returns the revocations of a file's lines; raises ValueError with the number of an invalid line."""
    found = _Lines()
    each_line(text, lambda line: found.add(line.partition("#")[0].strip()))
    return RevokedCertificates(
        tuple(_apart(found.serials)), frozenset(found.ids), frozenset(found.keys), frozenset(found.single)
    )


def _apart(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorts the ranges and joins those that overlap."""
    found = list[tuple[int, int]]()
    for first, last in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def _serials(value: str) -> tuple[int, int]:
    found = _SERIALS.fullmatch(value)
    try:
        first, last = (_number(found[1]), _number(found[2] or found[1])) if found else (1, 0)
    except ValueError:
        first, last = 1, 0
    if not first <= last <= MOST_SERIAL:
        raise ValueError(f"serial: “{value[:80]}” is no number, and no range such as 17-20")
    return first, last


def _number(written: str) -> int:
    """Reads a number as C's strtoull does."""
    if written[:2].lower() == "0x":
        return int(written, 16)
    return int(written, 8 if written.startswith("0") else 10)


Content = TypeVar("Content")
Read = TypeVar("Read")
_KRL = b"SSHKRL\n\0"  # OpenSSH's PROTOCOL.krl


@dataclass(slots=True)
class WatchedFile(Generic[Content]):
    """A file that may change at any time; ``latest`` is the last valid content. ``path`` None: there is no file."""

    path: Path | None
    setting: str
    parse: Callable[[str], Content]  # ValueError for an invalid file
    latest: Content
    _version: tuple[int, int, int] | None = field(default=None)

    def load(self) -> None:
        """Reads the file if it has changed; KeysUnusable names the problem."""
        if self.path is None:
            return
        try:
            found = self.path.stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if version != self._version:
                self.latest = self.parse(_text(self.path.read_bytes()))
                self._version = version
        except (OSError, ValueError) as error:
            raise KeysUnusable(f"{self.path}: {error} (setting {self.setting})") from error


def _text(content: bytes) -> str:
    if content.startswith(_KRL):
        raise ValueError("this is a binary KRL: give the text from which ssh-keygen -k makes one")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("this is no text") from error


def each_line(text: str, read: Callable[[str], Read]) -> list[Read]:
    """Returns the parsed lines, without comments and empty ones; ValueError names an invalid line."""
    found = list[Read]()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        try:
            found.append(read(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return found
