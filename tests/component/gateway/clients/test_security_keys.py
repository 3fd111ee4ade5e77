"""Keys of FIDO tokens with OpenSSH's own client; the token is OpenSSH's dummy of one, of Debian's `openssh-tests`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh
import pytest

from tests.component.gateway.clients.ways import DEBIAN
from tests.component.gateway.peers import DEADLINE, DENIED, Client, Done, Running


def dummy() -> Path:
    """OpenSSH's dummy of a FIDO token, unpacked or installed."""
    for root in (DEBIAN, Path("/")):
        if (found := root / "usr/lib/openssh/regress/misc/sk-dummy/sk-dummy.so").exists():
            return found
    pytest.skip("no openssh-tests: `make test` unpacks them")


async def login(alice: Client, running: Running, folder: Path, kind: str, *made_with: str) -> Done:
    """Log in with a new key of the dummy's, and no other."""
    token, identity = dummy(), folder / "sk"
    making = await asyncio.create_subprocess_exec(
        "ssh-keygen", "-q", "-t", kind, "-w", str(token), "-N", "", *made_with, "-f", str(identity)
    )
    assert await asyncio.wait_for(making.wait(), DEADLINE) == 0
    running.people.keys.clear()
    running.people.register("alice", asyncssh.read_public_key(f"{identity}.pub"))
    (alice.directory / "id").unlink()
    options = ("-o", f"SecurityKeyProvider={token}", "-i", str(identity))
    return await alice.ssh(*options, "alice+train@gateway", "echo in")


@pytest.mark.parametrize("kind", ["ed25519-sk", "ecdsa-sk"])
async def test_security_key_opens_the_job(alice: Client, running: Running, tmp_path: Path, kind: str) -> None:
    done = await login(alice, running, tmp_path, kind)
    assert (done.status, done.text) == (0, "in\n"), done.err


@pytest.mark.parametrize("kind", ["ed25519-sk", "ecdsa-sk"])
async def test_security_key_without_touch_is_refused(
    alice: Client, running: Running, tmp_path: Path, kind: str
) -> None:
    done = await login(alice, running, tmp_path, kind, "-O", "no-touch-required")
    assert (done.status, done.out, DENIED in done.err) == (255, b"", True), done.err
