"""Clients that mean harm: asyncssh's, taken by its private names to send what no client would."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import asyncssh

from tests.gateway.peers import Running

Attack = Callable[[asyncssh.SSHClientConnection], Awaitable[str | None]]

IGNORE, UNKNOWN = 2, 15
TAKES_NO_MORE_SECONDS = 1.0


class Attacker(asyncssh.SSHClient):
    """Attacks when it is asked for a password; what the attack returns is the password then."""

    def __init__(self, attack: Attack) -> None:
        self._attack: Attack | None = attack

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._conn = conn

    async def password_auth_requested(self) -> str | None:
        attack, self._attack = self._attack, None
        return await attack(self._conn) if attack is not None else None


async def before_login(running: Running, attack: Attack, name: str = "alice+train") -> asyncssh.SSHClientConnection:
    """Connect as a stranger, and attack once the keys are exchanged; asyncssh's errors are the caller's."""
    return await asyncssh.connect(
        username=name, known_hosts=None, config=None, agent_path=None, client_keys=None, preferred_auth="password",
        client_factory=lambda: Attacker(attack), sock=deaf(running.port),
    )  # fmt: skip


class Listener(asyncssh.SSHClient):
    """Remembers why its connection ended."""

    why = ""

    def connection_lost(self, exc: Exception | None) -> None:
        self.why = str(exc)


async def logged_in(
    running: Running, key: asyncssh.SSHKey, name: str = "alice+train", listener: asyncssh.SSHClient | None = None
) -> asyncssh.SSHClientConnection:
    """Somebody who may in, with a small buffer for what is sent to them."""
    return await asyncssh.connect(
        username=name, known_hosts=None, config=None, agent_path=None, client_keys=[key],
        client_factory=lambda: listener or asyncssh.SSHClient(), sock=deaf(running.port),
    )  # fmt: skip


def deaf(port: int) -> socket.socket:
    """A connection whose kernel keeps little of what nobody reads."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", port))
    made.setblocking(False)
    return made


async def pour(conn: asyncssh.SSHClientConnection, kind: int, content: bytes, most: int) -> int:
    """Send packets of one kind until so many bytes are sent, or the other end takes no more or has gone; how many."""
    sent = 0
    while sent < most and conn._transport is not None:
        for _ in range(64):
            conn.send_packet(kind, content)
        sent += 64 * len(content)
        if not await _taken(conn):
            break
    return sent


async def _taken(conn: asyncssh.SSHClientConnection) -> bool:
    """Whether what was sent leaves this process, given some time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + TAKES_NO_MORE_SECONDS
    await asyncio.sleep(0)
    while conn._transport is not None and conn._transport.get_write_buffer_size() > 0:
        if loop.time() > until:
            return False
        await asyncio.sleep(0)
    return True


def drop(conn: asyncssh.SSHClientConnection) -> None:
    """End it at once, whoever waits for it; asyncssh's own abort waits until everything is sent."""
    if conn._transport is not None:
        conn._transport.abort()
