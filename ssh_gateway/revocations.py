"""Certificates that were taken back: a text file, read again when it changes, in the words that ssh-keygen -k reads.

    serial: 17            certificates of these serial numbers, of every CA that is trusted
    serial: 100-199
    id: alice@laptop      certificates of this key id
    hash: SHA256:w3…      this key: a person's, or a CA's with all that it has signed
    key: ssh-ed25519 AA…  the same, written out; `key:` may be left away

A file that cannot be read any more, or has something else in it, lets nobody in by a certificate until it can be read:
who was to be kept out may be in it. Sessions that go on are judged by what it said last.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from ssh_gateway.access import Badge
from ssh_gateway.keys import KeysUnusable
from ssh_gateway.logs import say
from ssh_gateway.watched import Watched, lines

REVOKED = "this certificate was revoked: get a new one"
UNKNOWN = "certificates cannot be checked right now: use a registered key or a token, or try again later"
MOST_SERIAL = 2**64 - 1

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_SERIALS = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")


@dataclass(frozen=True, slots=True)
class Revoked:
    """What a file says: first and last of serials, key ids, and fingerprints of keys."""

    serials: tuple[tuple[int, int], ...] = ()
    ids: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()

    def names(self, badge: Badge) -> bool:
        """Whether this certificate is taken back."""
        return (
            badge.key_id in self.ids
            or not self.keys.isdisjoint({badge.key, badge.ca})
            or any(first <= badge.serial <= last for first, last in self.serials)
        )


class Revocations:
    """`obstacle` is asked for every certificate that lets somebody in; ``path`` None: none is revoked."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = Watched(path, "Gateway.revoked_certificates_file", read, Revoked())

    def load(self) -> None:
        """Read the file if it has changed; KeysUnusable says what is wrong with it."""
        self._file.load()

    def obstacle(self, badge: Badge) -> str | None:
        """Why it lets nobody in; None when it does."""
        if not self._is_read():
            return UNKNOWN
        return REVOKED if self._file.latest.names(badge) else None

    def latest(self) -> Revoked:
        """What the file says, or said last."""
        self._is_read()
        return self._file.latest

    def _is_read(self) -> bool:
        try:
            self.load()
        except KeysUnusable as problem:
            say("revocations", level=logging.WARNING, result="failed", why=problem)
            return False
        return True


def read(text: str) -> Revoked:
    """What the lines of a file say; ValueError or KeyImportError for something else."""
    serials, ids, keys = list[tuple[int, int]](), set[str](), set[str]()
    for line in (line.partition("#")[0].strip() for line in lines(text)):
        word, colon, rest = line.partition(":")
        kind, value = (word.strip().lower(), rest.strip()) if colon and " " not in word.strip() else ("key", line)
        if kind == "serial":
            serials.append(_serials(value))
        elif kind == "id" and value:
            ids.add(value)
        elif kind == "key":
            keys.add(asyncssh.import_public_key(value).get_fingerprint())
        elif kind == "hash" and _FINGERPRINT.fullmatch(value):
            keys.add(value)
        else:
            raise ValueError(f"“{line[:80]}” is none of serial: 17, serial: 17-20, id: …, hash: SHA256:…, key: …")
    return Revoked(tuple(serials), frozenset(ids), frozenset(keys))


def _serials(value: str) -> tuple[int, int]:
    found = _SERIALS.fullmatch(value)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not first <= last <= MOST_SERIAL:
        raise ValueError(f"serial: “{value[:80]}” is no number, and no range such as 17-20")
    return first, last
