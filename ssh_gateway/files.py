"""What a gateway reads and writes beside its keys; every worker has its own, of the same paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ssh_gateway.authorities import Authorities
from ssh_gateway.keys import KeysUnusable
from ssh_gateway.recordings import Recordings
from ssh_gateway.revocations import Revocations


@dataclass(frozen=True, slots=True)
class Files:
    authorities: Authorities
    revocations: Revocations
    recordings: Recordings


def load(user_ca_file: str, revoked_certificates_file: str, recordings_dir: str, most_bytes: int) -> Files:
    """Read what is there and make the folder; an empty path is none. KeysUnusable with the setting that is wrong."""
    authorities, revocations = Authorities(_path(user_ca_file)), Revocations(_path(revoked_certificates_file))
    recordings = Recordings(_path(recordings_dir), most_bytes)
    authorities.load()
    revocations.load()
    try:
        recordings.check()
    except OSError as error:
        raise KeysUnusable(f"{error} (setting Gateway.recordings_dir)") from error
    return Files(authorities, revocations, recordings)


def _path(written: str) -> Path | None:
    return Path(written) if written else None
