"""Certificates of the organisation's CA: the conditions of a login, and the limits that a certificate sets. Pure.

Rules, as OpenSSH's for TrustedUserCAKeys: a certificate without principals is refused, and so is one with an unknown
critical option. The login's user must be one of the users whom the principals name. Permitted
addresses are compared with the user's own, through `ssh -J` as well. A forced command and missing permissions are
written into the gateway's own certificate for the job; the job's sshd enforces them.

The sentences are for users with a verified signature under a certificate that a trusted CA signed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ssh_gateway.core.addresses import Network, read_address
from ssh_gateway.core.proof import UNBOUND, CertificateId, Identity, SessionBounds, every_server


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
    def id(self) -> CertificateId:
        return CertificateId(self.serial, self.key_id, self.key, self.ca, self.valid_before)

    @property
    def name(self) -> str:
        """The certificate's name in the log, for one that a trusted CA signed."""
        return f"certificate {self.serial} {self.key_id[:100]}"


def folded(name: str) -> str:
    """Returns the user name that JupyterHub's authenticators make of a name: as `routing.parse_logins` folds logins."""
    return unicodedata.normalize("NFKC", name).lower()


def certificate_refusal(
    certificate: UserCertificate, user: str, source: str, now: float, unknown: Collection[str] = ()
) -> str | None:
    """Returns the reason why the certificate does not let this user in from ``source`` now; None if it does.

    A principal names the user of exactly this name; one that is ``unknown`` to the Hub, the user of the folded name.
    """
    if not certificate.for_users:
        return "this certificate is for a host, not for a person"
    if user not in {folded(name) if name in unknown else name for name in certificate.principals}:
        return "this certificate is for another login name"
    if now < certificate.valid_after:
        return f"this certificate is not valid before {_time(certificate.valid_after)}"
    if now >= certificate.valid_before:
        return f"this certificate expired at {_time(certificate.valid_before)}: get a new one"
    if certificate.addresses and not _within(source, certificate.addresses):
        return "this certificate may not be used from your address"
    return None


def verify_certificate(certificate: UserCertificate, user: str) -> Identity:
    """Returns the identity proven by a verified signature under a certificate that `certificate_refusal` accepts."""
    return Identity(
        user,
        "publickey",
        certificate.name,
        every_server,
        certificate=certificate.id,
        starts=every_server,
        bounds=certificate.bounds,
    )


def _within(source: str, networks: Sequence[Network]) -> bool:
    address = read_address(source)
    return address is not None and any(address in network for network in networks)


def _time(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "its time"
