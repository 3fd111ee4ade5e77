"""The gateway's own keys: the host key that clients know it by, and the user CA that the jobs' sshd trust.

``state_dir`` holds ``ssh_host_ed25519_key``, ``user_ca`` and the public half of each, 0600 in a directory of 0700, made
once and never replaced: a file appears complete or not at all, and of two processes that make it at once both use the
same one. ``ssh_host_ed25519_key.next``, where somebody has put one, is announced to clients, so that they know it when
it takes the place of the other.
Several gateways behind one address share the directory's contents. In a cluster the directory is a Secret, which
Kubernetes makes readable for the pod's group: as with OpenSSH, that is fine for files that are not our own.

Only ed25519: every client still in use knows it, and asyncssh shares an RSA key's choice of hash between connections.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

import asyncssh
from cryptography.exceptions import UnsupportedAlgorithm

HOST_KEY = "ssh_host_ed25519_key"
NEXT_HOST_KEY = f"{HOST_KEY}.next"
USER_CA = "user_ca"

_PRIVATE = re.compile(r"-----BEGIN .*PRIVATE KEY-----|PuTTY-User-Key-File-", re.IGNORECASE)
# What a line may begin with to be repeated: a kind of key. Any other word may be somebody's token.
_HARMLESS = re.compile(r"(?:ssh-|ecdsa-|sk-)[a-z0-9@.-]{1,40}(?=\s|$)")


class KeysUnusable(Exception):
    """The state directory or a key in it cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    host: asyncssh.SSHKey
    user_ca: asyncssh.SSHKey
    next_host: asyncssh.SSHKey | None = None

    @property
    def hosts(self) -> list[asyncssh.SSHKey]:
        """The one that is used, and then what clients are to know as well."""
        return [self.host, *([self.next_host] if self.next_host else [])]


def load_or_make(state_dir: Path) -> GatewayKeys:
    """The keys in ``state_dir``, made where they are missing."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        host = _load_or_make(state_dir / HOST_KEY)
        keys = GatewayKeys(host, _load_or_make(state_dir / USER_CA), _load_next(state_dir / NEXT_HOST_KEY, host))
        _write_once(state_dir / f"{USER_CA}.pub", keys.user_ca.export_public_key())
        with contextlib.suppress(OSError):  # a Secret of an earlier version has none, and cannot be written
            _write_once(state_dir / f"{HOST_KEY}.pub", keys.host.export_public_key())
    except OSError as error:
        raise KeysUnusable(f"the gateway's keys: {error} (setting Gateway.state_dir)") from error
    return keys


def read_public(line: str) -> asyncssh.SSHKey:
    """The public key of a line; ValueError with what is expected instead, and nothing in it that may be secret."""
    if _PRIVATE.match(line):
        raise ValueError("this is a private key: give its public half, the file that ends in .pub")
    try:
        return asyncssh.import_public_key(line)
    except (ArithmeticError, UnsupportedAlgorithm, ValueError) as error:  # numbers that cannot be a key's
        word = _HARMLESS.match(line)
        begins = f"what begins with “{word[0]}”" if word else "this"
        raise ValueError(f"{begins} is no public key: one is a line as in a .pub file, ssh-ed25519 AAAA…") from error


def _load_or_make(path: Path) -> asyncssh.SSHKey:
    if not path.exists():
        key = asyncssh.generate_private_key("ssh-ed25519", comment=f"dlspawner {path.name}")
        _write_once(path, key.export_private_key())
    return _load(path)


def _load_next(path: Path, host: asyncssh.SSHKey) -> asyncssh.SSHKey | None:
    """The next host key, where there is one; of another kind it would be offered already."""
    found = _load(path) if path.exists() else None
    if found is not None and found.algorithm != host.algorithm:
        kind = host.algorithm.decode("ascii").removeprefix("ssh-")
        raise KeysUnusable(f"{path} is not an {kind} key as the present one: make it with ssh-keygen -t {kind} -N ''")
    return found


def _load(path: Path) -> asyncssh.SSHKey:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o077 if found.st_uid == os.geteuid() else 0o007):
        raise KeysUnusable(f"{path} can be read by others (mode {mode:o}): chmod 600 it, or remove it and start again")
    try:
        return asyncssh.read_private_key(path)
    except (asyncssh.KeyImportError, ValueError) as error:
        raise KeysUnusable(f"{path} is not an OpenSSH private key: {error}") from error


def _write_once(path: Path, content: bytes) -> None:
    """Create ``path`` with all of its content, unless it is there already, by whomever."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
