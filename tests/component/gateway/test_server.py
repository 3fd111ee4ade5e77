"""The client's leg within a key exchange."""

from __future__ import annotations

import asyncssh
import pytest

from ssh_gateway import transport
from ssh_gateway.core import packets
from tests.component.gateway.hostile import Listener, logged_in
from tests.component.gateway.peers import Running, until

KEXINIT = 20


async def test_flood_within_an_exchange_ends_the_connection(
    running: Running, alices_key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport.connection, "MOST_DEFERRED", 100)
    listener = Listener()
    conn = await logged_in(running, alices_key, "alice", listener)
    process = conn.process_packet
    # The client makes nothing of the answer, so the exchange never ends.
    monkeypatch.setattr(
        conn, "process_packet", lambda kind, number, packet: kind == KEXINIT or process(kind, number, packet)
    )
    conn._send_kexinit()
    conn._kex_complete = True
    for _ in range(200):
        conn.send_packet(packets.GLOBAL_REQUEST, packets.text(b"keepalive@openssh.com") + b"\1")
    await until(lambda: listener.why)
    assert listener.why == "a key exchange was not finished"
