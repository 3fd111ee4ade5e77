"""State shared by the connections of one gateway: its collaborators, limits, counters, and common checks.

`server.GatewayServer` extends the context by the listener and the shutdown. Sessions and logins know the context only,
so nothing in `session` imports the server.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from ssh_gateway.auth.rate_limit import Penalties, PenaltyRules, SessionLimit, UnauthenticatedLimit
from ssh_gateway.auth.revalidation import BLOCKED, UNTOLD, RevalidatedSession, Revalidator
from ssh_gateway.auth.trust import RevocationList, TrustedCas
from ssh_gateway.backends.activity import ActivityReporter
from ssh_gateway.backends.directory import AuthBackend, JobDirectory
from ssh_gateway.core.addresses import Network
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.core.proof import OpenSession
from ssh_gateway.log import LogBudget, log
from ssh_gateway.metrics import GatewayMetrics
from ssh_gateway.session.autostart import AutoStarter
from ssh_gateway.session.terminals import NoticeFollower, TerminalLine
from ssh_gateway.transport import Upstream
from ssh_gateway.transport.keys import GatewayKeys
from ssh_gateway.transport.server import Downstream


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of one gateway; the traits of `app.Gateway` explain each."""

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


@dataclass(frozen=True, slots=True)
class JumpStream:
    """The stream of ``ssh -J`` that carries a connection: its user, its server, and the address of the outer client."""

    user: str
    server: str
    source: str
    outer: str
    budget: LogBudget  # of the outer connection, which logs the streams without a login attempt


class LiveSession(RevalidatedSession, Protocol):
    """A session as the server sees it."""

    job: str | None

    @property
    def bytes_up(self) -> int: ...

    @property
    def bytes_down(self) -> int: ...

    def tell(self) -> None:
        """Shows the lines that the session's terminals have not shown yet."""


class LiveConnection(Protocol):
    """A client connection as the server sees it: waiting for its job, in a session, or neither."""

    leg: Downstream

    @property
    def session(self) -> LiveSession | None: ...

    @property
    def waiting(self) -> LiveSession | None: ...


class GatewayContext(ABC):
    """Shared by all connections of one gateway."""

    def __init__(  # noqa: PLR0913  (a gateway is made of its parts, once)
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
        self.authorities = authorities or TrustedCas()
        self.autostart = AutoStarter(people, hub_public_url, self.limits.start_seconds)
        self.revalidator = rechecks
        self.revocations = rechecks.revocations if rechecks is not None else RevocationList()
        self.unauthenticated = UnauthenticatedLimit(self.limits.waiting, self.limits.waiting_per_source)
        self.session_limit = SessionLimit(self.limits.connections_per_user)
        self.penalties = Penalties(self.limits.rules)
        self.counters = meters or GatewayMetrics()
        self.log_commands = log_commands
        self.connections: set[LiveConnection] = set()
        self.upstreams: set[Upstream] = set()
        self.stopping = False
        self.shutdown_lines: tuple[TerminalLine, ...] = ()
        self.name = secrets.token_hex(4)
        self._numbers = count(1)
        self._background: set[asyncio.Task[None]] = set()

    @abstractmethod
    def make_leg(self, jump: JumpStream | None = None, source: str = "") -> Downstream:
        """Returns a new client connection from ``source``; a stream of ``ssh -J`` is served by one as well."""

    @abstractmethod
    def gone(self, connection: LiveConnection) -> None:
        """Forgets a client connection that has ended."""

    @abstractmethod
    def upstream_gone(self, leg: Upstream) -> None:
        """Forgets a connection to a job that has ended."""

    def next_number(self) -> str:
        """Returns the name of the next connection in the log, unique among processes and restarts."""
        return f"{self.name}-{next(self._numbers)}"

    def now(self) -> float:
        """Returns the time of the clock used for all limits."""
        return asyncio.get_running_loop().time()

    def run_in_background(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs work that no session waits for; the shutdown cancels what is left of it."""
        task = asyncio.create_task(_finish(name, work), name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def fetch_blocked(self) -> None:
        """Fetches the blocked users, for a login that comes before the first round of `Revalidator`."""
        if self.revalidator is not None:
            await self.revalidator.fetch_blocked()

    def refusal(self, user: str) -> str | None:
        """Returns why this user is refused with any credential; before the blocked users are known, all are."""
        if self.revalidator is None:
            return None
        if self.revalidator.blocked is None:
            return UNTOLD
        return BLOCKED if user in self.revalidator.blocked else None

    async def refusal_now(self, held: OpenSession) -> str | None:
        """Returns why a user that authenticated earlier is refused now, or None."""
        why = await self.revalidator.revalidate(held) if self.revalidator is not None else None
        return why or self.refusal(held.proof.user)


async def _finish(name: str, work: Coroutine[Any, Any, None]) -> None:
    """The root of a background task."""
    try:
        await work
    except Exception:  # noqa: BLE001  (the root of a task)
        log.exception("%s failed", name)
