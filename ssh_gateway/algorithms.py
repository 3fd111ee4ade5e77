"""What is offered and what is taken: algorithms without a fail or a warning of ssh-audit, and keys of a good length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import asyncssh

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
MAC_ALGS = ["hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"]
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
RSA_BITS = range(3072, 8192 + 1)

# OpenSSH's ends send each other requests (that nobody reads any more: eow@openssh.com) only if the other's version says
# OpenSSH. Both ends of the relay are told what is true of the far one; without a number, which could have known bugs.
OPENSSH = "OpenSSH_compatible"
SERVER_VERSION = f"{OPENSSH} dlspawner"


def is_strong(key: asyncssh.SSHKey) -> bool:
    """Whether a key is of a kind that is taken, and of a length."""
    name = key.algorithm.decode("ascii")
    return name in SIGNATURE_ALGS or (name == "ssh-rsa" and rsa_bits(key) in RSA_BITS)


def rsa_bits(key: asyncssh.SSHKey) -> int:
    """The length of an RSA key."""
    return int(getattr(key.pyca_key, "key_size", 0))


def server_options(host_keys: Sequence[asyncssh.SSHKey], login_seconds: float) -> asyncssh.SSHServerConnectionOptions:
    """What every client is offered; no file is read for it.

    The first host key is used; when there are more, clients are told of all (OpenSSH's UpdateHostKeys).
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
    """What the job's sshd is told of a client whose own greeting is given: OpenSSH or not, and nothing else of it."""
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
    """One login with one certificate at a server with one known key: no agent, no files, no other method."""
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
