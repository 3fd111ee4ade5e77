"""The gateway's own keys: the host key that clients know, and the user CA that the jobs' sshd trust.

``state_dir`` holds ``ssh_host_ed25519_key``, ``user_ca`` and the public half of each, 0600 in a directory of 0700, made
once and never replaced: a file appears complete or not at all, and two processes that make a key at once both use the
same one. An administrator may add ``ssh_host_ed25519_key.next``: it is announced to clients, so that they know it
before it replaces the present key. Several gateways behind one address share the directory's contents. In a cluster the
directory is a Secret, which Kubernetes makes readable for the pod's group: as with OpenSSH, that is accepted for files
of another owner.

Only ed25519: every client still in use knows it, and asyncssh shares an RSA key's choice of hash between connections.

Offered and accepted algorithms: those without a fail of ssh-audit, and keys of sufficient length.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh
from cryptography.exceptions import UnsupportedAlgorithm

HOST_KEY = "ssh_host_ed25519_key"
NEXT_HOST_KEY = f"{HOST_KEY}.next"
USER_CA = "user_ca"

_PRIVATE = re.compile(r"-----BEGIN .*PRIVATE KEY-----|PuTTY-User-Key-File-", re.IGNORECASE)
# A line's first word is quoted in an error only if it is a kind of key; any other word may be a token.
_HARMLESS = re.compile(r"(?:ssh-|ecdsa-|sk-)[a-z0-9@.-]{1,40}(?=\s|$)")


class KeysUnusable(Exception):
    """The state directory or a key in it cannot be used; the message has its path and the reason."""


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    host: asyncssh.SSHKey
    user_ca: asyncssh.SSHKey
    next_host: asyncssh.SSHKey | None = None

    @property
    def hosts(self) -> list[asyncssh.SSHKey]:
        """Returns the present host key, then the next one if there is one."""
        return [self.host, *([self.next_host] if self.next_host else [])]


def load_or_make(state_dir: Path) -> GatewayKeys:
    """Returns the keys in ``state_dir``; makes missing ones."""
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
    """Returns the public key of a line; ValueError with the expected format, and without text that may be secret."""
    if _PRIVATE.match(line):
        raise ValueError("this is a private key: give its public half, the file that ends in .pub")
    try:
        return asyncssh.import_public_key(line)
    except (ArithmeticError, UnsupportedAlgorithm, ValueError) as error:  # numbers that are no key
        word = _HARMLESS.match(line)
        begins = f"what begins with “{word[0]}”" if word else "this"
        raise ValueError(f"{begins} is no public key: one is a line as in a .pub file, ssh-ed25519 AAAA…") from error


def _load_or_make(path: Path) -> asyncssh.SSHKey:
    if not path.exists():
        key = asyncssh.generate_private_key("ssh-ed25519", comment=f"dlspawner {path.name}")
        _write_once(path, key.export_private_key())
    return _load(path)


def _load_next(path: Path, host: asyncssh.SSHKey) -> asyncssh.SSHKey | None:
    """Returns the next host key, if there is one; a key of another kind would be offered already."""
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
    """Creates ``path`` with its complete content, unless it exists, also if another process creates it meanwhile."""
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


KEX_ALGS = [
    # RFC 4253 §7 guesses are handled wrongly by asyncssh, so the algorithm that Dropbear guesses comes first; clients
    # that know the post-quantum one prefer it themselves, and their order decides.
    "curve25519-sha256",
    "curve25519-sha256@libssh.org",
    "mlkem768x25519-sha256",
]
ENCRYPTION_ALGS = [
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes256-ctr",
    "aes128-ctr",
]
MAC_ALGS = [
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    # For clients without -etm and GCM: curl's sftp (libssh2 before 1.11), older SSH.NET and sshj.
    "hmac-sha2-256",
    "hmac-sha2-512",
]
SIGNATURE_ALGS = [
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
]
HOST_KEY_ALGS = ["ssh-ed25519"]
RSA_BITS = range(2048, 8192 + 1)

# OpenSSH sends some requests (such as the obsolete eow@openssh.com) only if the other end's version contains OpenSSH.
# Each end of the relay receives the truth about the far one, without a number: workarounds for bugs depend on numbers.
OPENSSH = "OpenSSH_compatible"
SERVER_VERSION = f"{OPENSSH} dlspawner"


def is_strong(key: asyncssh.SSHKey) -> bool:
    """True if a key's kind and length are accepted."""
    name = key.algorithm.decode("ascii")
    return name in SIGNATURE_ALGS or (name == "ssh-rsa" and rsa_bits(key) in RSA_BITS)


def rsa_bits(key: asyncssh.SSHKey) -> int:
    """Returns the length of an RSA key."""
    return int(getattr(key.pyca_key, "key_size", 0))


def server_options(host_keys: Sequence[asyncssh.SSHKey], login_seconds: float) -> asyncssh.SSHServerConnectionOptions:
    """Returns the options for every client; reads no file.

    The first host key is used; if there are more, they are announced to clients (OpenSSH's UpdateHostKeys).
    """
    return asyncssh.SSHServerConnectionOptions(
        config=None,
        server_host_keys=list(host_keys),
        send_server_host_keys=len(host_keys) > 1,
        server_version=SERVER_VERSION,
        kex_algs=KEX_ALGS,
        encryption_algs=ENCRYPTION_ALGS,
        mac_algs=MAC_ALGS,
        compression_algs=["none"],
        signature_algs=SIGNATURE_ALGS,
        login_timeout=login_seconds,
        keepalive_interval=0,
        gss_host=None,
        host_based_auth=False,
        x11_forwarding=False,
        agent_forwarding=False,
        allow_scp=False,
        line_editor=False,
        encoding=None,
    )


def version_for_job(clients: str) -> str:
    """Returns the gateway's version for the job's sshd; of the client's version it only has OpenSSH or not."""
    return f"{OPENSSH} dlspawner-gateway" if clients.startswith("SSH-2.0-OpenSSH") else "dlspawner-gateway"


def client_options(  # noqa: PLR0913  (one login has that many parts)
    *,
    login: str,
    credential: tuple[asyncssh.SSHKey, asyncssh.SSHCertificate],
    host_key: asyncssh.SSHKey,
    host: str,
    port: int,
    version: str,
    owner: Callable[[], asyncssh.SSHClient],
) -> asyncssh.SSHClientConnectionOptions:
    """Options for one login by one certificate at a server with a known key: no agent, files or other method."""
    return asyncssh.SSHClientConnectionOptions(
        config=None,
        host=host,
        port=port,
        client_factory=owner,
        client_version=version,
        username=login,
        client_keys=[credential],
        known_hosts=([host_key], [], []),
        server_host_key_algs=HOST_KEY_ALGS,
        agent_path=None,
        password=None,
        preferred_auth="publickey",
        gss_host=None,
        kex_algs=["curve25519-sha256", "curve25519-sha256@libssh.org"],
        encryption_algs=ENCRYPTION_ALGS,
        mac_algs=MAC_ALGS,
        compression_algs=["none"],
        keepalive_interval=0,
        login_timeout=0,
        x509_trusted_certs=None,
    )
