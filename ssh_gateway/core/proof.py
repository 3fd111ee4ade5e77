"""Identities proven by credentials; the data was looked up elsewhere. Pure.

Rules:

* A credential proves one user, which must be the user of the login; the servers that it opens come with the proof.
* Until a credential is proven there is one answer, "no", for every reason.
* The credential of the present request is judged, never one that was offered earlier (CVE-2024-45337).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


def every_server(_server: str) -> bool:
    """Registered keys and certificates open and start every server of their user."""
    return True


def no_server(_server: str) -> bool:
    """The default for credentials: starts no server."""
    return False


@dataclass(frozen=True, slots=True)
class RegisteredKey:
    """A public key that a user registered; ``data`` is the key in SSH's encoding."""

    id: int
    data: bytes
    fingerprint: str


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """A token's owner according to the Hub, and which of the owner's servers the token may enter, and start."""

    user: str
    opens: Callable[[str], bool]
    person: bool = True
    starts: Callable[[str], bool] = no_server


@dataclass(frozen=True, slots=True)
class CertificateId:
    """The names to revoke a certificate by; ``key`` and ``ca`` are fingerprints, ``until`` is seconds since 1970."""

    serial: int
    key_id: str
    key: str
    ca: str
    until: float


PERMITS = ("X11-forwarding", "agent-forwarding", "port-forwarding", "pty", "user-rc")


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """The limits that a certificate sets to a session: permitted requests, and the forced command if there is one."""

    permits: frozenset[str] = frozenset(PERMITS)
    force_command: str | None = None


UNBOUND = SessionBounds()


@dataclass(frozen=True, slots=True)
class Identity:
    """A credential that was proven just now: its user, its name in the log, the servers that it opens and starts.

    ``token`` is the secret itself, kept for revalidation; it is in no log and no message.
    """

    user: str
    method: str
    credential: str
    opens: Callable[[str], bool]
    token: str = field(default="", repr=False)
    registered: bool = False  # a key that its user registered, and can remove
    certificate: CertificateId | None = None  # set if the credential was a certificate
    starts: Callable[[str], bool] = no_server
    bounds: SessionBounds = UNBOUND


def verify_key(user: str, data: bytes, registered: Iterable[RegisteredKey]) -> tuple[Identity, RegisteredKey] | None:
    """Returns the identity that a verified signature of the key ``data`` proves, with the registered key.

    Every registered key is compared, in constant time.
    """
    found = [key for key in registered if hmac.compare_digest(key.data, data)]
    if not found:
        return None
    return Identity(user, "publickey", found[0].fingerprint, every_server, registered=True, starts=every_server), found[
        0
    ]


def verify_token(user: str, method: str, bearer: TokenOwner | None) -> Identity | None:
    """Returns the identity that a token proves, if the token belongs to the user of the login name."""
    if bearer is None or not bearer.person or not hmac.compare_digest(bearer.user.encode(), user.encode()):
        return None
    return Identity(user, method, "token", bearer.opens, starts=bearer.starts)


@dataclass(frozen=True, slots=True)
class SshSessionState:
    """The sessions on one server: ``seconds`` since the last byte (None: none so far), ``open`` while connected."""

    user: str
    server: str
    seconds: float | None
    open: bool


@dataclass(frozen=True, slots=True)
class OpenSession:
    """One open connection with its proof; ``server`` and ``job`` are None until the connection enters one."""

    proof: Identity
    server: str | None = None
    job: str | None = None
