"""Who may in: judgements over credentials that were looked up elsewhere, and the counts that keep guessing slow. Pure.

Rules:

* A credential proves one person, and the login's name must be that person's; what it opens comes with the proof.
* Until something is proven there is one answer, "no", whatever the reason.
* What is judged is the credential of the request at hand, never one that was offered earlier (CVE-2024-45337).
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


def every_server(_server: str) -> bool:
    """A registered key opens and starts every server of its user."""
    return True


def no_server(_server: str) -> bool:
    """What nobody has said otherwise of."""
    return False


@dataclass(frozen=True, slots=True)
class RegisteredKey:
    """A public key that a person registered; ``data`` is the key as SSH sends it."""

    id: int
    data: bytes
    fingerprint: str


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """Whom the Hub says a token belongs to, and which of that person's servers the token may enter, and start."""

    user: str
    opens: Callable[[str], bool]
    person: bool = True
    starts: Callable[[str], bool] = no_server


@dataclass(frozen=True, slots=True)
class CertificateId:
    """A certificate as it may be taken back: fingerprints of its key and its CA's; ``until`` in seconds since 1970."""

    serial: int
    key_id: str
    key: str
    ca: str
    until: float


@dataclass(frozen=True, slots=True)
class Identity:
    """A credential that was proven just now: whose it is, how it reads in the log, what it opens and what it starts.

    ``token`` is the secret itself, to ask later whether it is still good; no log and no message ever has it.
    """

    user: str
    method: str
    credential: str
    opens: Callable[[str], bool]
    token: str = field(default="", repr=False)
    registered: bool = False  # a key that its user registered, and can remove
    certificate: CertificateId | None = None  # the certificate, where it was one
    starts: Callable[[str], bool] = no_server


def verify_key(user: str, data: bytes, registered: Iterable[RegisteredKey]) -> tuple[Identity, RegisteredKey] | None:
    """The proof in a verified signature of the key ``data``; every registered key is compared, in constant time."""
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


def _remove_one(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]


@dataclass(frozen=True, slots=True)
class SshSessionState:
    """The sessions on one server: seconds since the last byte (None: there was none yet), whether one is open."""

    user: str
    server: str
    seconds: float | None
    open: bool


@dataclass(frozen=True, slots=True)
class OpenSession:
    """One open connection: by which proof, in which job; ``server`` and ``job`` are None until one is entered."""

    proof: Identity
    server: str | None = None
    job: str | None = None
