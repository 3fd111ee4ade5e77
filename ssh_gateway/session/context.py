"""State shared by the connections of one gateway: its collaborators, limits, counters, and common checks.

`server.GatewayServer` extends the context by the listener and the shutdown. Sessions and logins know the context only,
so nothing in `session` imports the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import asyncssh

from ssh_gateway.auth.rate_limit import (
    Penalties,
    PenaltyRules,
    SessionLimit,
    UnauthenticatedConnection,
    UnauthenticatedLimit,
)
from ssh_gateway.auth.revalidation import BLOCKED, UNTOLD, RevalidatedSession, Revalidator
from ssh_gateway.auth.trust import TrustedCas
from ssh_gateway.backends.activity import ActivityReporter
from ssh_gateway.backends.cluster import ClusterJobDirectory
from ssh_gateway.backends.directory import BackendUnavailable, HubAndManager
from ssh_gateway.core.addresses import Network
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.core.proof import Identity
from ssh_gateway.log import LogBudget, log, say
from ssh_gateway.metrics import GatewayMetrics
from ssh_gateway.session.autostart import AutoStarter
from ssh_gateway.session.terminals import NoticeFollower, TerminalLine
from ssh_gateway.transport import Upstream
from ssh_gateway.transport.keys import GatewayKeys
from ssh_gateway.transport.server import Downstream

STOPPING = "the gateway is stopping: connect again in a moment"


class SessionRefused(Exception):
    """The request of a known user is refused; the message is for the user."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of one gateway; the traits of `app.Gateway` explain the ones that can be set."""

    attempts: int = 6
    login_seconds: float = 120.0
    failure_seconds: float = 0.5  # after which a wrong token is answered, whatever was wrong; slows guessing as well
    connect_seconds: float = 10.0  # for which a job's sshd is tried before the user is told
    waiting: int = 200
    waiting_per_source: int = 100
    connections_per_user: int = 200
    drain_seconds: float = 5.0
    start_seconds: float = 300.0
    rules: PenaltyRules = field(default_factory=PenaltyRules)
    balancers: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class JumpStream:
    """The stream of ``ssh -J`` that carries a connection: its user, its server, and the outer connection."""

    user: str
    server: str
    outer: Client


@dataclass(frozen=True, slots=True)
class Client:
    """One client connection, as the steps of its login and its session use it.

    ``source`` is the address that limits and penalties count, through ``ssh -J`` as well; ``since`` is a time of the
    monotonic clock.
    """

    gateway: GatewayContext
    leg: Downstream
    source: str
    jump: JumpStream | None
    number: str  # its name in the log
    budget: LogBudget = field(default_factory=LogBudget)
    since: float = field(default_factory=time.monotonic)

    def note(self, event: str, **fields: Any) -> None:
        """Logs an event that clients can cause at will, within the connection's budget."""
        if self.budget.take(self.gateway.now()):
            say(event, conn=self.number, **fields)

    def show(self, sentence: str) -> None:
        with contextlib.suppress(OSError):  # raised after SUCCESS, when no banner is possible
            self.leg.send_auth_banner(f"{sentence}\r\n")

    def disconnect(self, user: str, refusal: SessionRefused) -> None:
        """Sends the reason twice: some clients show the banner, some the reason of the disconnect."""
        self.gateway.counters.refused("session")
        say("refused", conn=self.number, user=user, what="session", why=refusal)
        self.show(str(refusal))
        self.leg.end(asyncssh.DISC_SERVICE_NOT_AVAILABLE, str(refusal))


class LiveSession(Protocol):
    """A session as the server sees it."""

    @property
    def job(self) -> str | None: ...

    @property
    def bytes_up(self) -> int: ...

    @property
    def bytes_down(self) -> int: ...

    @property
    def user(self) -> str: ...

    @property
    def listens(self) -> bool:
        """True once a ``-R`` was asked for."""

    def tell(self) -> None:
        """Shows the lines that the session's terminals have not shown yet."""


class LiveConnection(RevalidatedSession, UnauthenticatedConnection, Protocol):
    """A client connection as the server sees it: waiting for its job, in a session, or neither."""

    @property
    def client(self) -> Client: ...

    @property
    def identity(self) -> Identity | None: ...

    @property
    def session(self) -> LiveSession | None: ...

    async def end_if_lost(self) -> None:
        """Ends the connection, and the one to its job, if its client's computer does not answer in seconds."""


class GatewayContext(ABC):
    """Shared by all connections of one gateway."""

    def __init__(  # noqa: PLR0913  (a gateway is made of its parts, once)
        self,
        *,
        keys: GatewayKeys,
        auth_backend: HubAndManager,
        job_directory: ClusterJobDirectory,
        activity: ActivityReporter,
        hub_public_url: str,
        limits: GatewayLimits | None = None,
        policy: RelayPolicy | None = None,
        revalidator: Revalidator,
        notices: NoticeFollower | None = None,
        authorities: TrustedCas | None = None,
        log_commands: bool = False,
    ) -> None:
        self.keys = keys
        self.auth_backend = auth_backend
        self.job_directory = job_directory
        self.activity = activity
        self.hub_public_url = hub_public_url
        self.limits = limits or GatewayLimits()
        self.policy = policy or RelayPolicy()
        self.notices = notices
        self.authorities = authorities or TrustedCas()
        self.autostart = AutoStarter(auth_backend, hub_public_url, self.limits.start_seconds)
        self.revalidator = revalidator
        self.unauthenticated = UnauthenticatedLimit(self.limits.waiting, self.limits.waiting_per_source)
        self.session_limit = SessionLimit(self.limits.connections_per_user)
        self.penalties = Penalties(self.limits.rules)
        self.counters = GatewayMetrics()
        self.log_commands = log_commands
        self.connections: set[LiveConnection] = set()
        self.upstreams: set[Upstream] = set()
        self.bytes_of_gone = (0, 0)
        self.empty = asyncio.Event()  # set when the last connection is gone
        self.stopping = False
        self.shutdown_lines: tuple[TerminalLine, ...] = ()
        self.name = secrets.token_hex(4)
        self._numbers = count(1)
        self._background: set[asyncio.Task[None]] = set()

    @abstractmethod
    def make_leg(self, source: str, jump: JumpStream | None = None) -> Downstream:
        """Returns a new client connection from ``source``; a stream of ``ssh -J`` is served by one as well."""

    def gone(self, connection: LiveConnection) -> None:
        """Removes a closed connection; every connection calls this at its end."""
        self.connections.discard(connection)
        if connection.session is not None:
            up, down = self.bytes_of_gone
            self.bytes_of_gone = (up + connection.session.bytes_up, down + connection.session.bytes_down)
        self._note_emptiness()

    def upstream_gone(self, leg: Upstream) -> None:
        """Removes a closed connection to a pod."""
        self.upstreams.discard(leg)
        self._note_emptiness()

    def _note_emptiness(self) -> None:
        if not self.connections and not self.upstreams:
            self.empty.set()

    def next_number(self) -> str:
        """Returns the name of the next connection in the log, unique among processes and restarts."""
        return f"{self.name}-{next(self._numbers)}"

    def now(self) -> float:
        """Returns the time of the clock used for all limits."""
        return asyncio.get_running_loop().time()

    async def end_lost(self, user: str, job: str) -> None:
        """Ends the user's connections that hold ports in a job (``-R``), and whose network has vanished."""
        holds = [
            one
            for one in self.connections
            if one.session is not None and one.session.listens and (one.session.user, one.session.job) == (user, job)
        ]
        await asyncio.gather(*(one.end_if_lost() for one in holds))

    def run_in_background(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs work that no session waits for, if its backend is available; the shutdown cancels what is left of it."""
        task = asyncio.create_task(_finish(name, work), name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def refusal(self, user: str) -> str | None:
        """Returns why this user is refused with any credential; while the blocked users are unknown, all are."""
        await self.revalidator.fetch_blocked()  # for a login that comes before the first round
        if self.revalidator.blocked is None:
            return UNTOLD
        return BLOCKED if user in self.revalidator.blocked else None


async def _finish(name: str, work: Coroutine[Any, Any, None]) -> None:
    """The root of a background task."""
    try:
        await work
    except BackendUnavailable:
        pass
    except Exception:  # noqa: BLE001  (the root of a task)
        log.exception("%s failed", name)
