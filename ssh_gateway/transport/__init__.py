"""The packet layer: every private name of asyncssh that the gateway uses is in this package.

asyncssh does key exchange, authentication and re-keying on both legs. Subclasses of its connections add the parts that
a relay needs: taking over packets of type 80 and above (`RelayConnection.receive`), sending them (`send_payload`), flow
control (`blocked`), a close that first writes the buffered bytes, bounds on buffered data, reasons for internal errors
(`internal_error`), and the moment between a proven credential and SUCCESS (`LoginHandler.proven`). These are in
`connection`; the parts of the client's leg in `server`, the fast path for data in `fastpath`, the flow control of `ssh
-J` streams in `streams`, and the decoding of a peer's bytes in `reading`.

Rules: nothing outside imports asyncssh's modules or underscored names; test_asyncssh_contract.py fails when a name
moved or changed its meaning; asyncssh is pinned to one minor version.

Refused: asyncssh's channels on both legs (they lose exit statuses, agent and unix-socket forwards, and everything that
is not implemented twice), and its keepalives (a leg that is paused on purpose would look dead; TCP's own keepalives
replace them).

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
    """Connects and logs in; raises OSError or asyncssh.Error. The caller sets the deadline."""
    loop = asyncio.get_running_loop()
    options.waiter = loop.create_future()
    try:
        _, leg = await loop.create_connection(
            lambda: Upstream(loop, options, wait="auth"), options.host, options.port, flags=socket.AI_NUMERICHOST
        )
    except BaseException:
        options.waiter.cancel()  # else the end of a connection made meanwhile is logged as an exception never retrieved
        raise
    try:
        await options.waiter
    except BaseException:
        leg.drop()
        raise
    return leg
