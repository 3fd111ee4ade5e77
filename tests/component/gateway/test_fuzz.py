"""Random and mutated input, before and after a login: it ends its own connection, and others continue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncssh
import pytest

from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.core import packets
from ssh_gateway.session.context import GatewayLimits
from tests.component.gateway.hostile import disconnect, logged_in
from tests.component.gateway.peers import Client, Lab, Running, connect, resident, until

HARM = "\x1b[2J\u202eevil\nevent=open"
MOST_MEMORY = 48 * 2**20
LOGIN_KINDS = frozenset([*range(20, 32), *range(50, 67)])  # of key exchanges and of logins
ROUNDS = [pytest.param(5, id="5 rounds"), pytest.param(300, id="300 rounds", marks=pytest.mark.slow)]


@pytest.fixture
async def running(lab: Lab) -> AsyncIterator[Running]:
    """A gateway that takes any number of connections from one address: all of ours come from one."""
    limits = GatewayLimits(
        failure_seconds=0.0, drain_seconds=0.0, rules=PenaltyRules(penalty_seconds=0.0, connections_per_second=0.0)
    )
    async with lab.gateway(limits=limits) as found:
        yield found


@pytest.fixture(autouse=True)
def bounded_and_clean(running: Running, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a test sends: memory stays where it was, and the log has short lines of plain text, and no traceback."""
    caplog.set_level(logging.INFO)
    before = resident()
    yield
    assert resident() - before < MOST_MEMORY
    records = caplog.get_records("call")
    lines = [record.getMessage() for record in records if record.name == "ssh_gateway"]
    assert lines
    assert all(text.isascii() and text.isprintable() and len(text) < 1000 for text in lines)
    assert [record.getMessage() for record in records if record.exc_info] == []
    assert [text for text in lines if text.startswith("event=failed")] == []


async def serves_on(running: Running, alice: Client) -> None:
    """Others can log in, and no earlier connection is left."""
    assert (await alice.ssh("alice+train@gateway", "echo still here")).text == "still here\n"
    await until(lambda: not running.server.connections and not running.server.upstreams)
    assert not running.server.unauthenticated.waiting


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
    """A login that is followed by random packets."""
    login = chance.choice(["alice", "alice+train"])
    conn = await connect(running.port, username=login, client_keys=[key])
    stream = packets.text(b"direct-tcpip") + bytes(12) + packets.text(HARM.encode()) + bytes(4)
    conn.send_packet(packets.CHANNEL_OPEN, stream)
    for _ in range(chance.randrange(1, 30)):
        kind = chance.choice([80, 81, 82, 90, 91, 92, 93, 94, 96, 97, 98, 100, chance.randrange(256)])
        conn.send_packet(kind, chance.randbytes(chance.randrange(60)))
    conn.abort()
    await conn.wait_closed()


@pytest.mark.parametrize("rounds", ROUNDS)
async def test_random_input_does_not_affect_others(
    running: Running, alice: Client, alices_key: asyncssh.SSHKey, rounds: int
) -> None:
    chance = random.Random(rounds)
    for _ in range(rounds):
        await asyncio.gather(raw_nonsense(running, chance), packets_of_nonsense(running, chance, alices_key))
    await serves_on(running, alice)


async def test_oversized_packet_ends_the_connection(running: Running, alices_key: asyncssh.SSHKey) -> None:
    conn = await connect(running.port, client_keys=[alices_key])  # fmt: skip
    conn.send_packet(94, bytes(2**20))
    await asyncio.wait_for(conn.wait_closed(), 15)
    await until(lambda: not running.server.connections)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """With some bits turned, cut, grown, or with a length that lies."""
    at = chance.randrange(len(content) + 1)
    found = bytearray(content)
    match chance.randrange(4):
        case 0:
            for _ in range(chance.randrange(1, 9) if content else 0):
                found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
        case 1:
            del found[at:]
        case 2:
            found[at:at] = chance.randbytes(chance.choice([1, 100, 30_000]))
        case _:
            found[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)])
    return bytes(found)


class Spoiler(asyncssh.SSHClient):
    """A client that logs in as others do, and spoils one packet of it, encrypted or not."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._in = chance.randrange(9)  # so many packets later

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        send = conn.send_packet

        def spoil(kind: int, *parts: bytes, handler: Any = None) -> None:
            if kind not in LOGIN_KINDS:
                send(kind, *parts, handler=handler)
                return
            self._in -= 1
            if self._in == -1:
                parts = (mutated(b"".join(parts), self._chance),)
                kind = self._chance.choice([kind] * 7 + sorted(LOGIN_KINDS))
            send(kind, *parts, handler=handler)

        conn.send_packet = spoil  # type: ignore[method-assign]

    def password_auth_requested(self) -> str | None:
        return self._chance.choice(["wrong", None])

    def kbdint_auth_requested(self) -> str:
        return ""

    def kbdint_challenge_received(self, *_: object) -> list[str]:
        return ["wrong"]


async def spoilt_login(running: Running, chance: random.Random, key: asyncssh.SSHKey) -> None:
    methods = chance.choice(["publickey", "password", "keyboard-interactive", "publickey,password"])
    with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):
        async with asyncio.timeout(2):
            conn = await connect(
                running.port, client_keys=[key], preferred_auth=methods, client_factory=lambda: Spoiler(chance)
            )
            await disconnect(conn)


async def nonsense_in_a_re_key(running: Running, chance: random.Random, key: asyncssh.SSHKey) -> None:
    """A session that begins a re-key and sends other packets before its end."""
    conn = await logged_in(running, key)
    conn._send_kexinit()
    for _ in range(chance.randrange(1, 20)):
        conn._kex_complete = True  # nothing is kept back
        conn.send_packet(chance.choice([*LOGIN_KINDS, *range(80, 101)]), chance.randbytes(chance.randrange(60)))
        conn._kex_complete = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await conn.wait_closed()
    await disconnect(conn)


@pytest.mark.parametrize("rounds", ROUNDS)
async def test_mutated_logins_do_not_affect_others(
    running: Running, alice: Client, alices_key: asyncssh.SSHKey, rounds: int
) -> None:
    for seed in range(0, rounds, 30):
        chances = [random.Random(one) for one in range(seed, min(seed + 30, rounds))]
        await asyncio.gather(*(spoilt_login(running, chance, alices_key) for chance in chances))
    await serves_on(running, alice)


async def test_random_packets_in_a_re_key_do_not_affect_others(
    running: Running, alice: Client, alices_key: asyncssh.SSHKey
) -> None:
    await asyncio.gather(*(nonsense_in_a_re_key(running, random.Random(seed), alices_key) for seed in range(10)))
    await serves_on(running, alice)
