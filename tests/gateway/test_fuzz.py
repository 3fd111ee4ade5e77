"""Nonsense, before and after a login: the gateway drops whoever sends it and goes on serving the others."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import asyncssh
import pytest

from ssh_gateway.keys import Keys
from ssh_gateway.penalties import Rules
from ssh_gateway.server import Limits
from tests.gateway.peers import Client, FakePeople, FakePlaces, Running, gateway, until

ROUNDS = [pytest.param(5, id="5 rounds"), pytest.param(300, id="300 rounds", marks=pytest.mark.slow)]


@pytest.fixture
async def running(keys: Keys, people: FakePeople, places: FakePlaces) -> AsyncIterator[Running]:
    """A gateway that takes any number of connections from one address: all of ours come from one."""
    limits = Limits(drain_seconds=0.0, rules=Rules(penalty_seconds=0.0, connections_per_second=0.0))
    async with gateway(keys, people, places, limits=limits) as found:
        yield found


async def raw_nonsense(running: Running, chance: random.Random) -> None:
    """Bytes that are no SSH, or begin like it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    start = chance.choice([b"", b"SSH-2.0-x\r\n", b"GET / HTTP/1.0\r\n\r\n", b"SSH-1.5-old\r\n", b"\0" * 9000])
    writer.write(start + chance.randbytes(chance.randrange(4000)))
    with contextlib.suppress(OSError):
        writer.write_eof()
        await asyncio.wait_for(reader.read(-1), 15)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def packets_of_nonsense(running: Running, chance: random.Random, key: asyncssh.SSHKey) -> None:
    """A person who logs in, and whose client has gone mad."""
    login = chance.choice(["alice", "alice+train"])
    conn = await asyncssh.connect(
        "127.0.0.1", running.port, username=login, client_keys=[key], known_hosts=None, config=None, agent_path=None
    )
    for _ in range(chance.randrange(1, 30)):
        kind = chance.choice([80, 81, 82, 90, 91, 92, 93, 94, 96, 97, 98, 100, chance.randrange(256)])
        conn.send_packet(kind, chance.randbytes(chance.randrange(60)))
    conn.abort()
    await conn.wait_closed()


@pytest.mark.parametrize("rounds", ROUNDS)
async def test_nonsense_harms_nobody_else(
    running: Running, alice: Client, alices_key: asyncssh.SSHKey, rounds: int
) -> None:
    chance = random.Random(rounds)
    for _ in range(rounds):
        await asyncio.gather(raw_nonsense(running, chance), packets_of_nonsense(running, chance, alices_key))
    assert (await alice.ssh("alice+train@gateway", "echo still here")).text == "still here\n"
    await until(lambda: not running.server.visitors and not running.server.pods)
    assert running.server.doorkeeper.waiting.total() == 0


async def test_a_packet_larger_than_any_ends_the_connection(running: Running, alices_key: asyncssh.SSHKey) -> None:
    conn = await asyncssh.connect(
        "127.0.0.1", running.port, username="alice+train", client_keys=[alices_key], known_hosts=None, config=None,
        agent_path=None,
    )  # fmt: skip
    conn.send_packet(94, bytes(2**20))
    await asyncio.wait_for(conn.wait_closed(), 15)
    await until(lambda: not running.server.visitors)
