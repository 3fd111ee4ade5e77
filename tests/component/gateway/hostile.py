"""Hostile clients: asyncssh's, by its private names, to send packets that no client sends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import asyncssh
from asyncssh.packet import Boolean, SSHPacket, String

from tests.component.gateway.peers import DEADLINE, Running, connect

Attack = Callable[[asyncssh.SSHClientConnection], Awaitable[str | None]]

DISCONNECT, IGNORE, USERAUTH_REQUEST, USERAUTH_FAILURE, USERAUTH_BANNER = 1, 2, 50, 51, 53
UNKNOWN = 15
DENIED = b"\x33" + String(b"publickey,keyboard-interactive,password") + b"\0"
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
    client = {"preferred_auth": "password", "client_factory": lambda: Attacker(attack)}
    return await connect(running.port, username=name, sock=deaf(running.port), **client)


class Caller(asyncssh.SSHClientConnection):
    """Asks to be let in under names that are bytes, and keeps each answer as it came.

    asyncssh's own client would fold a name, or refuse it before anything is sent.
    """

    def __init__(self, options: asyncssh.SSHClientConnectionOptions) -> None:
        super().__init__(asyncio.get_running_loop(), options, wait="auth_methods")
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    def process_packet(self, pkttype: int, pktid: int, packet: SSHPacket) -> bool | Awaitable[None]:
        answers = self._wait is None and pkttype in {DISCONNECT, *range(USERAUTH_FAILURE, USERAUTH_BANNER + 1)}
        if answers:
            self._answers.put_nowait(packet.get_full_payload())
        return (answers and pkttype != DISCONNECT) or super().process_packet(pkttype, pktid, packet)

    async def with_password(self, name: bytes) -> bytes:
        """The answer to a wrong password."""
        return await self._ask(name, String("password"), Boolean(False), String("wrong"))

    async def with_key(self, name: bytes, key: asyncssh.SSHKey) -> bytes:
        """The answer to the question whether a key would do."""
        return await self._ask(
            name, String("publickey"), Boolean(False), String(key.algorithm), String(key.public_data)
        )

    async def with_any(self, name: bytes, kind: str, data: bytes, *signature: bytes) -> bytes:
        """The answer to what says that it is a key, signed or not."""
        asked = (String("publickey"), Boolean(bool(signature)), String(kind), String(data))
        return await self._ask(name, *asked, *signature)

    async def _ask(self, name: bytes, *method: bytes) -> bytes:
        self.send_packet(USERAUTH_REQUEST, String(name), String("ssh-connection"), *method)
        return await asyncio.wait_for(self._answers.get(), DEADLINE)


async def call(running: Running) -> Caller:
    """A connection after the key exchange and before the login."""
    loop = asyncio.get_running_loop()
    options = asyncssh.SSHClientConnectionOptions(
        config=None, host="127.0.0.1", username="somebody", known_hosts=None, client_keys=None, agent_path=None
    )
    options.waiter = loop.create_future()
    _, caller = await loop.create_connection(lambda: Caller(options), "127.0.0.1", running.port)
    await asyncio.wait_for(options.waiter, DEADLINE)
    return caller


class Listener(asyncssh.SSHClient):
    """Remembers why its connection ended."""

    why = ""

    def connection_lost(self, exc: Exception | None) -> None:
        self.why = str(exc)


async def logged_in(
    running: Running,
    key: asyncssh.SSHKey,
    name: str = "alice+train",
    listener: asyncssh.SSHClient | None = None,
    **options: Any,
) -> asyncssh.SSHClientConnection:
    """A logged-in client with a small receive buffer."""
    client = {"client_keys": [key], "client_factory": lambda: listener or asyncssh.SSHClient(), **options}
    return await connect(running.port, username=name, sock=deaf(running.port), **client)


def deaf(port: int) -> socket.socket:
    """A connection with a small receive buffer in the kernel."""
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
    """End it at once; asyncssh's own abort waits until everything is sent."""
    if conn._transport is not None:
        conn._transport.abort()


async def disconnect(conn: asyncssh.SSHClientConnection) -> None:
    drop(conn)
    await conn.wait_closed()
