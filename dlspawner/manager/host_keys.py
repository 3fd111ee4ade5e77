"""The gateway's public host keys, from the file that `Manager.ssh_host_key_file` names; for people to pin."""

from __future__ import annotations

from pathlib import Path

from dlspawner.manager.web import log


def read_host_keys(file: Path | None) -> tuple[str, ...]:
    """The keys in a file of public keys, one a line; none where there is no such file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file is not None else []
    except (OSError, UnicodeDecodeError) as problem:
        log.warning("ssh-config: host keys cannot be read: %s (Manager.ssh_host_key_file)", problem)
        return ()
    words = [line.split() for line in lines if not line.startswith("#")]
    return tuple(" ".join(line[:2]) for line in words if len(line) > 1)
