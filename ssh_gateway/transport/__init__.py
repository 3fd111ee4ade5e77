"""The packet layer: every private name of asyncssh that the gateway leans on is in this package.

asyncssh does key exchange, authentication and re-keying on both legs. What it lacks for a relay is added here, by
subclassing its connections: a way to take over packets of type 80 and above (`Leg.receive`), to send them
(`Leg.send_payload`), to know when a leg cannot take more (`Leg.blocked`), a close that first writes what is buffered,
bounds on what a peer makes it keep, words for errors of our own (`Leg.internal_error`), and the moment between a proven
credential and SUCCESS (`Door.proven`). All this is in `leg`, and what only the person's has in `server`; a shorter way
for data is in `bulk`, what holds the streams of `ssh -J` back in `streams`, and what a peer's bytes say in `reading`.

Rules: nothing outside imports asyncssh's modules or underscored names; test_wire.py fails loudly when a
name moved or changed its meaning; asyncssh is pinned to one minor version.

Refused: asyncssh's channels on both legs (they lose exit statuses, agent and unix-socket forwards, and everything that
is not implemented twice), and its keepalives (a leg that is paused on purpose would look dead; TCP's own do it).

There is no fallback to asyncssh's public API alone, because it would cost more than it saves: redirected processes
failed 12, and spliced channels 7, of 35 things that clients do (agents, X11, `-R`, sockets, failed subsystems among
them), at 1.9 seconds of a processor for each GiB in place of 0.7, and all of it would have to be tested a second time.
"""

from __future__ import annotations

import asyncio
import socket

import asyncssh

from ssh_gateway.transport.connection import RelayConnection


class Upstream(RelayConnection, asyncssh.SSHClientConnection):
    """The leg to a job's sshd."""


async def connect(options: asyncssh.SSHClientConnectionOptions) -> Upstream:
    """Connect and log in; OSError or asyncssh.Error when that fails. The caller sets the deadline."""
    loop = asyncio.get_running_loop()
    options.waiter = loop.create_future()
    _, leg = await loop.create_connection(
        lambda: Upstream(loop, options, wait="auth"), options.host, options.port, flags=socket.AI_NUMERICHOST
    )
    try:
        await options.waiter
    except BaseException:
        leg.drop()
        raise
    return leg
