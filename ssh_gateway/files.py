"""The files that a gateway reads beside its keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ssh_gateway.authorities import Authorities
from ssh_gateway.revocations import Revocations


@dataclass(frozen=True, slots=True)
class Files:
    authorities: Authorities
    revocations: Revocations


def load(user_ca_file: str, revoked_certificates_file: str) -> Files:
    """Reads the files that are there; an empty path is none. Raises KeysUnusable with the wrong setting."""
    authorities, revocations = Authorities(_path(user_ca_file)), Revocations(_path(revoked_certificates_file))
    authorities.load()
    revocations.load()
    return Files(authorities, revocations)


def _path(written: str) -> Path | None:
    return Path(written) if written else None
