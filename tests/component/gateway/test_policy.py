"""Agent forwarding is the one everyday feature that is off until an administrator allows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.transport.keys import GatewayKeys
from tests.component.gateway.peers import Client, FakePeople, FakePlaces, finish, gateway, listens, until


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Path]:
    """An empty ssh-agent."""
    path = tmp_path / "agent"
    process = await asyncio.create_subprocess_exec(
        "ssh-agent", "-D", "-a", str(path), stdout=asyncio.subprocess.DEVNULL
    )
    await until(lambda: listens(path))
    yield path
    process.kill()
    await process.wait()


@pytest.mark.parametrize(("allowed", "seen"), [(False, "no agent"), (True, "The agent has no identities.")])
async def test_an_agent_is_forwarded_only_where_it_is_allowed(  # noqa: PLR0917  (fixtures)
    agent: Path,
    keys: GatewayKeys,
    people: FakePeople,
    places: FakePlaces,
    alices_key: asyncssh.SSHKey,
    tmp_path: Path,
    allowed: bool,
    seen: str,
) -> None:
    async with gateway(keys, people, places, policy=RelayPolicy(agent_forwarding=allowed)) as running:
        client = Client(tmp_path / "alice", running.port, alices_key, keys.host)
        command = 'test -n "$SSH_AUTH_SOCK" || { echo no agent; exit; }; ssh-add -l'
        process = await asyncio.create_subprocess_exec(
            "ssh", "-F", str(client.config), "-o", f"IdentityAgent={agent}", "-A", "alice+train@gateway", command,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert (await finish(process)).text.strip() == seen
