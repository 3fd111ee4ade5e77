"""The files that a gateway reads beside its keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ssh_gateway.authorities import TrustedCas
from ssh_gateway.revocations import RevocationList


@dataclass(frozen=True, slots=True)
class TrustFiles:
    authorities: TrustedCas
    revocations: RevocationList


def load_trust_files(user_ca_file: str, revoked_certificates_file: str) -> TrustFiles:
    """Reads the files that are there; an empty path is none. Raises KeysUnusable with the wrong setting."""
    authorities, revocations = TrustedCas(_path(user_ca_file)), RevocationList(_path(revoked_certificates_file))
    authorities.load()
    revocations.load()
    return TrustFiles(authorities, revocations)


def _path(written: str) -> Path | None:
    return Path(written) if written else None
