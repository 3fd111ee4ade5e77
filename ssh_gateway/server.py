"""The server: state shared by connections, admission of addresses, and the end of all sessions at a stop.

SSH itself is in `transport`; a connection's login and its session are in `session`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import asyncssh

from ssh_gateway.accept import Admission, ConnectionGuard
from ssh_gateway.log import say
from ssh_gateway.metrics import GatewayState
from ssh_gateway.session.context import STOPPING, GatewayContext, JumpStream, LiveConnection, LiveSession
from ssh_gateway.session.login import ClientConnection
from ssh_gateway.session.terminals import shutdown_message
from ssh_gateway.transport import connection, fastpath, server, sockets
from ssh_gateway.transport import keys as transport_keys


class GatewayServer(GatewayContext):
    """The listener and all connections: `start` listens; `stop` closes the listener, then ends the sessions."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        if self.notices is not None:
            self.notices.changed = self._tell
        self.revalidator.sessions = lambda: [one for one in self.connections if one.identity is not None]
        self.counters.inside = self._inside
        self._admission = Admission(self._admit, self.make_leg, self._say_refused, self.limits.balancers)
        self._options = transport_keys.server_options(self.keys.hosts, self.limits.login_seconds)
        self._listener: asyncio.Server | None = None

    async def start(self, ip: str, port: int, *, shared: bool = False) -> tuple[str, int]:
        """Listens and returns the address; OSError if the port is taken by a process that does not share it."""
        loop, found = asyncio.get_running_loop(), sockets.listen(ip, port, shared=shared)
        fastpath.shared_buffers().relayed = self.counters.relay.observe
        self._listener = await loop.create_server(
            lambda: ConnectionGuard(self._admission), sock=found, backlog=sockets.BACKLOG
        )
        return sockets.written(found)

    async def stop(self, force: asyncio.Event | None = None) -> None:
        """Stops accepting, writes the shutdown line on every terminal, and lets sessions end by themselves until the
        deadline or until ``force`` is set; then ends the rest with a reason.
        """
        self.stopping = True
        if self._listener is not None:
            self._listener.close()
        self._admission.clear()
        self._end([one for one in self.connections if one.session is None])
        if self.limits.drain_seconds:
            self.shutdown_lines = (shutdown_message(self.limits.drain_seconds, datetime.now(UTC)),)
            self._tell()
        await self._all_gone(self.limits.drain_seconds, force)
        if self.connections:
            say("drain", level=logging.WARNING, result="deadline", sessions=len(self.connections))
        self._end(self.connections)
        await self._all_gone(2 * connection.FAREWELL_SECONDS)
        self._admission.clear()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _end(self, connections: Iterable[LiveConnection]) -> None:
        for one in list(connections):
            one.client.leg.end(asyncssh.DISC_BY_APPLICATION, STOPPING)

    def _admit(self, source: str) -> str | None:
        """Returns the reason why a new connection is refused, or None."""
        if self.stopping:
            return STOPPING
        why = self.penalties.arrives(source, self.now())
        if why is not None:
            self._say_refused(source, why)
        return why

    def _say_refused(self, source: str, why: str) -> None:
        self.counters.refused("connection")
        if self.penalties.worth_a_line(source, self.now()):
            say("refused", level=logging.WARNING, source=source, what="connection", why=why)

    def make_leg(self, source: str, jump: JumpStream | None = None) -> server.Downstream:
        """Makes the client's side of a connection from ``source``, or of a stream of ``ssh -J``."""
        return server.Downstream(
            asyncio.get_running_loop(), self._options, lambda leg: ClientConnection(self, leg, source, jump)
        )

    def _sessions(self) -> list[LiveSession]:
        return [one.session for one in self.connections if one.session is not None]

    def _inside(self) -> GatewayState:
        sessions, (up, down) = self._sessions(), self.bytes_of_gone
        authenticated = sum(one.identity is not None for one in self.connections)  # also while a job starts for it
        addresses, names = self.penalties.penalised(self.now())
        return GatewayState(
            unauthenticated=len(self.connections) - authenticated,
            authenticated=authenticated,
            sessions=sum(session.job is not None for session in sessions),
            up=up + sum(session.bytes_up for session in sessions),
            down=down + sum(session.bytes_down for session in sessions),
            penalised_addresses=addresses,
            penalised_names=names,
            stopping=self.stopping,
        )

    def _tell(self) -> None:
        """Makes every session write the lines for terminals that changed."""
        for session in self._sessions():
            session.tell()

    async def _all_gone(self, seconds: float, force: asyncio.Event | None = None) -> None:
        self.empty.clear()
        if not self.connections and not self.upstreams:
            return
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.empty, force) if event is not None]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
