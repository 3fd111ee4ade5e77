"""Certificates of the organisation's CA: what one must say to let somebody in, and what of it binds a session. Pure.

Rules, as OpenSSH's for TrustedUserCAKeys: a certificate without principals is nobody's, and an option that is critical
and unknown is a no. The login's name must be one of the principals (in lower case, as the Hub keeps names); addresses
count where the person comes from, through `ssh -J` as well. A forced command and what is not permitted are written
into the gateway's own certificate for the job, whose sshd enforces them.

The sentences are for somebody whose signature was verified, under a certificate that the CA did sign.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ssh_gateway.core.addresses import Network
from ssh_gateway.core.proof import CertificateId, Identity, every_server

PERMITS = ("X11-forwarding", "agent-forwarding", "port-forwarding", "pty", "user-rc")


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """The limits that a certificate sets to a session: permitted requests, and the forced command if there is one."""

    permits: frozenset[str] = frozenset(PERMITS)
    force_command: str | None = None


UNBOUND = SessionBounds()


@dataclass(frozen=True, slots=True)
class UserCertificate:
    """The content of a user certificate; times are seconds since 1970."""

    key_id: str
    serial: int
    for_users: bool
    principals: tuple[str, ...]
    valid_after: float
    valid_before: float
    addresses: tuple[Network, ...] = ()
    bounds: SessionBounds = UNBOUND
    key: str = ""  # fingerprints: of the key, and of the CA's
    ca: str = ""

    @property
    def badge(self) -> CertificateId:
        return CertificateId(self.serial, self.key_id, self.key, self.ca, self.valid_before)

    @property
    def name(self) -> str:
        """What it is called in the log, once a trusted CA is known to have written it."""
        return f"certificate {self.serial} {self.key_id[:100]}"


def certificate_refusal(certificate: UserCertificate, user: str, source: str, now: float) -> str | None:
    """Why it does not let this person in from there now; None when it does."""
    if not certificate.for_users:
        return "this certificate is for a host, not for a person"
    if user not in {principal.lower() for principal in certificate.principals}:
        return "this certificate is for another login name"
    if now < certificate.valid_after:
        return f"this certificate is not valid before {_time(certificate.valid_after)}"
    if now >= certificate.valid_before:
        return f"this certificate expired at {_time(certificate.valid_before)}: get a new one"
    if certificate.addresses and not _within(source, certificate.addresses):
        return "this certificate may not be used from your address"
    return None


def verify_certificate(certificate: UserCertificate, user: str) -> Identity:
    """The proof in a verified signature under a certificate without `obstacle`."""
    return Identity(
        user, "publickey", certificate.name, every_server, certificate=certificate.badge, starts=every_server
    )


def _within(source: str, networks: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return any(address in network for network in networks)


def _time(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "its time"
