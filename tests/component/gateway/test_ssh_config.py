"""`dlspawner ssh-config` with OpenSSH's own client: the names it knows, the pinned key, and jobs it does not list."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from dlspawner.ssh_config import SshAccessConfig, config, known_hosts
from tests.component.gateway.peers import Done, FakeJobDirectory, Lab, Running, Sshd, finish, gateway


async def own_ssh(running: Running, key: asyncssh.SSHKey, pinned: asyncssh.SSHKey, host: str, folder: Path) -> Done:
    """`ssh HOST` with these files, no other configuration, and no questions about host keys."""
    home = folder / ".ssh"
    home.mkdir(mode=0o700)
    key.write_private_key(home / "id")
    (home / "id").chmod(0o600)
    access = SshAccessConfig("alice", "127.0.0.1", running.port, ("train",), (pinned.export_public_key().decode(),))
    # OpenSSH takes ~ from the account, not from $HOME.
    (home / "config").write_text(
        config(access).replace("~/.ssh/", f"{home}/") + f"\nHost *\n    IdentityFile {home}/id\n    BatchMode yes\n"
    )
    (home / "dlspawner_known_hosts").write_text(known_hosts(access))
    process = await asyncio.create_subprocess_exec(
        *("ssh", "-F", str(home / "config"), host, "echo in"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SSH_AUTH_SOCK": ""},
    )
    return await finish(process)


@pytest.fixture
def job_directory(sshd: Sshd) -> FakeJobDirectory:
    return FakeJobDirectory({("alice", server): sshd.target(server) for server in ("train", "newer", "")})


@pytest.mark.parametrize("host", ["train.dl", "newer.dl", "dl"])
async def test_every_host_of_the_configuration_reaches_its_server(lab: Lab, host: str, running: Running) -> None:
    """`newer` is not in the file: OpenSSH goes there through the gateway as a jump host, with the name it was given."""
    done = await own_ssh(running, lab.alices_key, lab.keys.host, host, lab.folder)
    assert (done.status, done.text) == (0, "in\n"), done.err


async def test_changed_host_key_is_refused(running: Running, alices_key: asyncssh.SSHKey, tmp_path: Path) -> None:
    done = await own_ssh(running, alices_key, asyncssh.generate_private_key("ssh-ed25519"), "newer.dl", tmp_path)
    assert (done.status, done.out) == (255, b"")
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.err


@pytest.mark.parametrize("host", ["train.dl", "newer.dl"])
async def test_next_host_key_is_learned_in_its_own_file(lab: Lab, host: str) -> None:
    following = asyncssh.generate_private_key("ssh-ed25519")
    async with gateway(replace(lab.keys, next_host=following), lab.auth_backend, lab.job_directory) as running:
        done = await own_ssh(running, lab.alices_key, lab.keys.host, host, lab.folder)
        assert (done.status, done.text) == (0, "in\n"), done.err
    pinned = (lab.folder / ".ssh" / "dlspawner_known_hosts").read_text()
    assert {line.split()[2] for line in pinned.splitlines()} == {
        key.export_public_key().decode().split()[1] for key in (lab.keys.host, following)
    }
