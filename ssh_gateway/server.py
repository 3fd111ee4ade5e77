"""The server: what its visitors share, who may stand at the door, and how everybody is sent home.

Nothing here knows SSH beyond `wire`; a visitor's life is in `visitor` (until proven) and `visit` (afterwards).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

import asyncssh

from ssh_gateway import transport
from ssh_gateway.accept import Admission, ConnectionGuard
from ssh_gateway.auth.rate_limit import Penalties, PenaltyRules, SessionLimit, UnauthenticatedLimit
from ssh_gateway.auth.revalidation import BLOCKED, UNTOLD, Revalidator
from ssh_gateway.auth.trust import RevocationList, TrustedCas
from ssh_gateway.backends.activity import ActivityReporter
from ssh_gateway.backends.directory import AuthBackend, JobDirectory
from ssh_gateway.core.addresses import Network
from ssh_gateway.core.log import log, say
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.core.proof import OpenSession
from ssh_gateway.metrics import GatewayMetrics, GatewayState
from ssh_gateway.session.autostart import AutoStarter
from ssh_gateway.session.login import AuthHandler
from ssh_gateway.session.session import JumpStream, Session
from ssh_gateway.session.shutdown import STOPPING, shutdown_message
from ssh_gateway.session.terminals import NoticeFollower, TerminalLine
from ssh_gateway.transport import connection, fastpath, server, sockets
from ssh_gateway.transport import keys as transport_keys
from ssh_gateway.transport.keys import GatewayKeys


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """See the traits of `app.Gateway`, which explain them."""

    attempts: int = 6
    login_seconds: float = 120.0
    failure_seconds: float = 0.5
    connect_seconds: float = 10.0
    waiting: int = 200
    waiting_per_source: int = 100
    connections_per_user: int = 200
    drain_seconds: float = 5.0
    start_seconds: float = 300.0
    rules: PenaltyRules = field(default_factory=PenaltyRules)
    balancers: tuple[Network, ...] = ()


class GatewayServer:
    """`start` listens, `stop` sends everybody home."""

    def __init__(  # noqa: PLR0913  (a server is made of its parts, once)
        self,
        *,
        keys: GatewayKeys,
        people: AuthBackend,
        places: JobDirectory,
        activity: ActivityReporter,
        hub_public_url: str,
        limits: GatewayLimits | None = None,
        policy: RelayPolicy | None = None,
        notices: NoticeFollower | None = None,
        rechecks: Revalidator | None = None,
        authorities: TrustedCas | None = None,
        meters: GatewayMetrics | None = None,
        log_commands: bool = False,
    ) -> None:
        self.keys = keys
        self.auth_backend = people
        self.job_directory = places
        self.activity = activity
        self.hub_public_url = hub_public_url
        self.limits = limits or GatewayLimits()
        self.policy = policy or RelayPolicy()
        self.notices = notices
        if notices is not None:
            notices.changed = self._tell
        self.unauthenticated = UnauthenticatedLimit(self.limits.waiting, self.limits.waiting_per_source)
        self.authorities = authorities or TrustedCas()
        self.autostart = AutoStarter(people, hub_public_url, self.limits.start_seconds)
        self.revalidator = rechecks
        self.revocations = rechecks.revocations if rechecks is not None else RevocationList()
        if rechecks is not None:
            rechecks.visits = self._watched
        self.session_limit = SessionLimit(self.limits.connections_per_user)
        self.penalties = Penalties(self.limits.rules)
        self.counters = meters or GatewayMetrics()
        self.counters.inside = self._inside
        self.connections: set[AuthHandler] = set()
        self._bytes_of_gone = (0, 0)
        self.stopping = False
        self.shutdown_lines: tuple[TerminalLine, ...] = ()
        self._lobby = Admission(
            self._admit, lambda source: self.make_leg(source=source), self._say_refused, self.limits.balancers
        )
        self.upstreams: set[transport.Upstream] = set()
        self.log_commands = log_commands
        self.name = secrets.token_hex(4)
        self._numbers = count(1)
        self._options = transport_keys.server_options(keys.hosts, self.limits.login_seconds)
        self._listener: asyncio.Server | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()

    async def start(self, ip: str, port: int, *, shared: bool = False) -> tuple[str, int]:
        """Listen, and say where; OSError when the port is taken, unless everybody who has it shares it."""
        loop, found = asyncio.get_running_loop(), sockets.listen(ip, port, shared=shared)
        fastpath.shared_buffers().relayed = self.counters.relay.observe
        self._listener = await loop.create_server(
            lambda: ConnectionGuard(self._lobby), sock=found, backlog=sockets.BACKLOG
        )
        return sockets.written(found)

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Accept nobody any more, tell every terminal, let sessions end by themselves until the deadline, or until
        ``hurry`` is set; then end them with words.
        """
        self.stopping = True
        if self._listener is not None:
            self._listener.close()
        self._lobby.clear()
        self._end([visitor for visitor in self.connections if visitor.session is None])
        if self.limits.drain_seconds:
            self.shutdown_lines = (shutdown_message(self.limits.drain_seconds, datetime.now(UTC)),)
            self._tell()
        await self._all_gone(self.limits.drain_seconds, hurry)
        if self.connections:
            say("drain", level=logging.WARNING, result="deadline", sessions=len(self.connections))
        self._end(self.connections)
        await self._all_gone(2 * connection.FAREWELL_SECONDS)
        self._lobby.clear()
        for errand in list(self._background):
            errand.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _end(self, visitors: Iterable[AuthHandler]) -> None:
        for visitor in list(visitors):
            visitor.leg.end(asyncssh.DISC_BY_APPLICATION, STOPPING)

    def next_number(self) -> str:
        """What the next connection is called in the log; no other process, before or beside, calls one so."""
        return f"{self.name}-{next(self._numbers)}"

    def now(self) -> float:
        """The clock of everything that is counted."""
        return asyncio.get_running_loop().time()

    def _admit(self, source: str) -> str | None:
        """Count somebody new at the door, or say why not."""
        if self.stopping:
            return STOPPING
        now = self.now()
        why = self.penalties.arrives(source, now) or self.unauthenticated.enter(self.penalties.source_of(source))
        if why is not None:
            self._say_refused(source, why)
        return why

    def _say_refused(self, source: str, why: str) -> None:
        self.counters.refused("connection")
        if self.penalties.worth_a_line(source, self.now()):
            say("refused", level=logging.WARNING, source=source, what="connection", why=why)

    def make_leg(self, jump: JumpStream | None = None, source: str = "") -> server.Downstream:
        """A connection to be, of somebody at ``source``; also what a stream of ``ssh -J`` is handed to."""
        return server.Downstream(asyncio.get_running_loop(), self._options, lambda: AuthHandler(self, jump, source))

    def run_in_background(self, name: str, errand: Coroutine[Any, Any, None]) -> None:
        """Do something on the side that no session waits for; `stop` cancels what is not done."""
        task = asyncio.create_task(_finish(name, errand), name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def fetch_blocked(self) -> None:
        """Ask who is blocked, for a login that comes before anybody has told."""
        if self.revalidator is not None:
            await self.revalidator.fetch_blocked()

    def refusal(self, user: str) -> str | None:
        """Why this person is not let in, whatever they have proven; who is blocked must be known to let anybody in."""
        if self.revalidator is None:
            return None
        if self.revalidator.blocked is None:
            return UNTOLD
        return BLOCKED if user in self.revalidator.blocked else None

    async def refusal_now(self, held: OpenSession) -> str | None:
        """Why somebody is not let in any more who has proven a while ago what is ``held``."""
        why = await self.revalidator.revalidate(held) if self.revalidator is not None else None
        return why or self.refusal(held.proof.user)

    def _watched(self) -> list[Session]:
        """Those whose access is checked again: who is in, and who waits for a job to be let in."""
        return [one for visitor in self.connections if (one := visitor.session or visitor.waiting) is not None]

    def _visits(self) -> list[Session]:
        return [visitor.session for visitor in self.connections if visitor.session is not None]

    def _inside(self) -> GatewayState:
        visits, (up, down) = self._visits(), self._bytes_of_gone
        addresses, names = self.penalties.penalised(self.now())
        return GatewayState(
            unauthenticated=len(self.connections) - len(visits),
            authenticated=len(visits),
            sessions=sum(visit.job is not None for visit in visits),
            up=up + sum(visit.bytes_up for visit in visits),
            down=down + sum(visit.bytes_down for visit in visits),
            penalised_addresses=addresses,
            penalised_names=names,
            stopping=self.stopping,
        )

    async def metrics(self) -> bytes:
        """What a Prometheus reads."""
        return self.counters.text()

    def _tell(self) -> None:
        """What is to be said on terminals has changed."""
        for visit in self._visits():
            visit.tell()

    def gone(self, visitor: AuthHandler) -> None:
        """Called by every visitor who left."""
        self.connections.discard(visitor)
        if visitor.session is not None:
            up, down = self._bytes_of_gone
            self._bytes_of_gone = (up + visitor.session.bytes_up, down + visitor.session.bytes_down)
        self._note_emptiness()

    def upstream_gone(self, leg: transport.Upstream) -> None:
        """Called when the connection to a pod is over."""
        self.upstreams.discard(leg)
        self._note_emptiness()

    def _note_emptiness(self) -> None:
        if not self.connections and not self.upstreams:
            self._empty.set()

    async def _all_gone(self, seconds: float, hurry: asyncio.Event | None = None) -> None:
        self._empty.clear()
        if not self.connections and not self.upstreams:
            return
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._empty, hurry) if event is not None]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _finish(name: str, errand: Coroutine[Any, Any, None]) -> None:
    """The root of an errand's task."""
    try:
        await errand
    except Exception:  # noqa: BLE001  (the root of a task)
        log.exception("%s failed", name)
