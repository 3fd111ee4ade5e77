"""Keys of FIDO tokens with OpenSSH's own client; the token is OpenSSH's dummy of one, of Debian's `openssh-tests`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh
import pytest

from tests.component.gateway.clients.ways import DEBIAN
from tests.component.gateway.peers import DEADLINE, DENIED, Client, Running


def dummy() -> Path:
    """OpenSSH's dummy of a FIDO token, unpacked or installed."""
    for root in (DEBIAN, Path("/")):
        if (found := root / "usr/lib/openssh/regress/misc/sk-dummy/sk-dummy.so").exists():
            return found
    pytest.skip("no openssh-tests: `make test` unpacks them")


@pytest.mark.parametrize("kind", ["ed25519-sk", "ecdsa-sk"])
@pytest.mark.parametrize("options", [(), ("-O", "no-touch-required")], ids=["with touch", "without"])
async def test_security_key_opens_the_job_if_it_was_touched(
    alice: Client, running: Running, tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    """The user has that key, and no other."""
    token, identity = dummy(), tmp_path / "sk"
    making = await asyncio.create_subprocess_exec(
        "ssh-keygen", "-q", "-t", kind, "-w", str(token), "-N", "", *options, "-f", str(identity)
    )
    assert await asyncio.wait_for(making.wait(), DEADLINE) == 0
    running.auth_backend.keys.clear()
    running.auth_backend.register("alice", asyncssh.read_public_key(f"{identity}.pub"))
    (alice.directory / "id").unlink()
    provider = ("-o", f"SecurityKeyProvider={token}", "-i", str(identity))
    done = await alice.ssh(*provider, "alice+train@gateway", "echo in")
    if options:
        assert (done.status, done.out, DENIED in done.err) == (255, b"", True), done.err
    else:
        assert (done.status, done.text) == (0, "in\n"), done.err
