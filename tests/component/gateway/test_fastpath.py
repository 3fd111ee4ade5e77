"""Data on the fast path: wrong packets are noticed, and no data of other connections leaks."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import asyncssh
import pytest

from ssh_gateway.core import packets
from ssh_gateway.session.relay import Relay
from ssh_gateway.transport import fastpath
from tests.component.gateway.hostile import disconnect, logged_in
from tests.component.gateway.peers import DEADLINE, Running, the_relay, until

KIB = 1024
CIPHERS = pytest.mark.parametrize("cipher", ["aes128-gcm@openssh.com", "aes256-ctr", "chacha20-poly1305@openssh.com"])
KEEPALIVE = bytes([packets.GLOBAL_REQUEST]) + packets.text(b"keepalive@openssh.com") + b"\0"


async def connected(running: Running, key: asyncssh.SSHKey, cipher: str) -> asyncssh.SSHClientConnection:
    return await logged_in(running, key, encryption_algs=[cipher], rekey_bytes=100 * KIB)


async def echoed(conn: asyncssh.SSHClientConnection, running: Running) -> tuple[Relay, int]:
    """A `cat` has said something: the relay, and how many bytes have gone up."""
    process = await conn.create_process("cat", encoding=None)
    process.stdin.write(b"first")
    assert await process.stdout.readexactly(5) == b"first"
    relay = the_relay(running)
    return relay, relay.bytes_up


def sealed(conn: asyncssh.SSHClientConnection, plain: bytes) -> bytes:
    """The next packet of this client, with any contents."""
    packet, mac = conn._send_encryption.encrypt_packet(conn._send_seq, len(plain).to_bytes(4, "big"), plain)
    conn._send_seq += 1
    return bytes(packet + mac)


def padded(payload: bytes) -> bytes:
    padding = 4 + -(len(payload) + 5) % 16
    return bytes([padding]) + payload + bytes(padding)


@pytest.mark.parametrize("padding", [0, 27, 40, 255], ids=lambda padding: f"{padding} of 32 bytes")
async def test_invalid_padding_ends_the_connection_and_relays_nothing(
    running: Running, alices_key: asyncssh.SSHKey, padding: int
) -> None:
    conn = await connected(running, alices_key, "chacha20-poly1305@openssh.com")
    relay, before = await echoed(conn, running)
    fastpath.shared_buffers().plain[64:320] = b"somebody else's secrets".ljust(256, b"!")
    conn._send(sealed(conn, (bytes([padding]) + packets.data(0, b"x" * 10)).ljust(32, b"\0")))
    await until(lambda: not running.server.connections)
    assert relay.bytes_up == before
    await conn.wait_closed()


@pytest.mark.parametrize("size", [1, 700, 2**20], ids=["byte by byte", "in parts", "at once"])
@CIPHERS
async def test_packets_of_several_channels_keep_their_order_however_they_arrive(
    running: Running, alices_key: asyncssh.SSHKey, cipher: str, size: int
) -> None:
    conn = await connected(running, alices_key, cipher)
    cats = [await conn.create_process("cat", encoding=None) for _ in range(3)]
    (visitor,) = running.server.connections
    await until(lambda: visitor.client.leg.lane is not None)
    relay = the_relay(running)
    before, sent, packed = relay.bytes_up, [b"", b"", b""], b""
    for number in (0, 0, 1, 2, 1, 1, 0, 2, 2, 0):
        sent[number] += (part := os.urandom(1 + 800 * number + len(packed) % 97))
        packed += sealed(conn, padded(packets.data(number, part)))
        if number == 1:
            packed += sealed(conn, padded(KEEPALIVE))
    for at in range(0, len(packed), size):
        visitor.client.leg.data_received(packed[at : at + size])
    assert relay.bytes_up - before == sum(map(len, sent)) + 10 * 9
    for cat, expected in zip(cats, sent, strict=True):
        assert await asyncio.wait_for(cat.stdout.readexactly(len(expected)), DEADLINE) == expected
    await disconnect(conn)


def test_slow_input_is_read_in_smaller_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny packets, for one: all other connections of the process wait meanwhile."""
    now = [0.0]
    monkeypatch.setattr(fastpath, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def read(seconds: float, most: int = fastpath.READ) -> int:
        def take(_: memoryview) -> None:
            now[0] += seconds

        leg.take = take
        reader.buffer_updated(min(len(reader.get_buffer(-1)), most))
        return len(reader.get_buffer(-1))

    leg = SimpleNamespace(held=lambda: b"")
    reader = fastpath.BufferedReader(leg)  # type: ignore[arg-type]
    assert read(0.0) == fastpath.READ
    assert read(0.1) < fastpath.READ / 5
    assert read(0.1) == 32 * KIB, "not less either"
    assert read(0.0, most=100) == 32 * KIB, "a keystroke says nothing about it"
    assert read(0.0) == fastpath.READ
