"""The public keys of the CAs whose certificates let people in: a file, read again when it changes.

One key a line, as in sshd's TrustedUserCAKeys; # begins a comment. A file that cannot be read any more, or has
something else in it, changes nothing: the log says so, and who was trusted stays trusted. At the start it is a reason
not to start.
"""

from __future__ import annotations

import logging
from pathlib import Path

import asyncssh

from ssh_gateway.algorithms import is_strong
from ssh_gateway.keys import KeysUnusable, read_public
from ssh_gateway.logs import say
from ssh_gateway.watched import WatchedFile, each_line


class TrustedCas:
    """`trusts` is asked for every certificate; ``path`` None: nobody is trusted."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = WatchedFile(path, "Gateway.user_ca_file", _read, frozenset[bytes]())

    def load(self) -> None:
        """Read the file if it has changed; KeysUnusable says what is wrong with it."""
        self._file.load()

    def trusts(self, key: asyncssh.SSHKey) -> bool:
        """Whether certificates that this key signed let people in."""
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
            f"a {key.algorithm.decode()} key that is too weak for a CA: ed25519, ECDSA or RSA from 3072 bits"
        )
    return key.public_data
