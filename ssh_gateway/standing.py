"""Whether somebody who is inside may stay: judgements over what was looked up for everybody at once. Pure.

What could not be looked up ends nobody: an answer that did not come is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ssh_gateway.access import CertificateId, Identity, TokenOwner

BLOCKED = "your account may not use this gateway: ask an administrator"
UNTOLD = "nobody can tell right now whether your account may use this gateway: try again later"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """One open connection: by which proof, in which job; ``server`` and ``job`` are None until one is entered."""

    proof: Identity
    server: str | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Checks:
    """What was found out; None where nobody could tell, and ``bearers`` only of tokens that were answered for."""

    blocked: frozenset[str] = frozenset()
    gone_keys: frozenset[tuple[str, str]] = frozenset()
    gone_users: frozenset[str] = frozenset()
    jobs: frozenset[str] | None = None
    bearers: Mapping[str, TokenOwner | None] = field(default_factory=dict)
    revoked: frozenset[CertificateId] = frozenset()
    now: float = 0.0  # seconds since 1970


def evaluate_access(held: OpenSession, facts: Checks) -> str | None:
    """Why this connection ends now, in a sentence for the person; None while it may go on."""
    user = held.proof.user
    if user in facts.blocked:
        return BLOCKED
    if user in facts.gone_users:
        return "your account was removed"
    return _of_credential(held, facts) or _of_job(held, facts)


def _of_credential(held: OpenSession, facts: Checks) -> str | None:
    proof = held.proof
    if (proof.user, proof.credential) in facts.gone_keys:
        return "the key that you came in with was removed from your keys"
    if proof.certificate is not None:
        return _of_certificate(proof.certificate, facts)
    return _of_token(held, facts) if proof.token in facts.bearers else None


def _of_certificate(badge: CertificateId, facts: Checks) -> str | None:
    if facts.now >= badge.until:
        return "the certificate that you came in with has expired: get a new one"
    return "the certificate that you came in with was revoked" if badge in facts.revoked else None


def _of_token(held: OpenSession, facts: Checks) -> str | None:
    proof = held.proof
    bearer = facts.bearers[proof.token]
    if bearer is None or bearer.user != proof.user:
        return "the token that you came in with was revoked, or has expired"
    if held.server is not None and not bearer.opens(held.server):
        return f"the token that you came in with may not open {_name(held)} any more"
    return None


def _of_job(held: OpenSession, facts: Checks) -> str | None:
    stopped = held.job is not None and facts.jobs is not None and held.job not in facts.jobs
    return f"{_name(held)} was stopped" if stopped else None


def _name(held: OpenSession) -> str:
    return held.server or "your default server"
