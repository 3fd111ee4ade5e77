"""The public keys of the CAs whose certificates let people in: a file, read again when it changes.

One key a line, as in sshd's TrustedUserCAKeys; # begins a comment. A file that cannot be read any more, or has
something else in it, changes nothing: the log says so, and who was trusted stays trusted. At the start it is a reason
not to start.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from ssh_gateway.algorithms import is_strong
from ssh_gateway.keys import KeysUnusable
from ssh_gateway.logs import say


@dataclass(slots=True)
class Authorities:
    """`trusts` is asked for every certificate; ``path`` None: nobody is trusted."""

    path: Path | None = None
    _keys: frozenset[bytes] = frozenset()
    _read: tuple[int, int, int] | None = field(default=None)

    def load(self) -> None:
        """Read the file if it has changed; KeysUnusable says what is wrong with it."""
        if self.path is None:
            return
        try:
            found = self.path.stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if version != self._read:
                self._keys = frozenset(_read_line(line) for line in _lines(self.path.read_text("utf-8")))
                self._read = version
        except (OSError, UnicodeDecodeError, asyncssh.KeyImportError, ValueError) as error:
            raise KeysUnusable(f"{self.path}: {error} (setting Gateway.user_ca_file)") from error

    def trusts(self, key: asyncssh.SSHKey) -> bool:
        """Whether certificates that this key signed let people in."""
        try:
            self.load()
        except KeysUnusable as problem:
            say("authorities", level=logging.WARNING, result="failed", why=problem)
        return key.public_data in self._keys


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _read_line(line: str) -> bytes:
    key = asyncssh.import_public_key(line)
    if not is_strong(key):
        raise ValueError(
            f"a {key.algorithm.decode()} key that is too weak for a CA: ed25519, ECDSA or RSA from 3072 bits"
        )
    return key.public_data
