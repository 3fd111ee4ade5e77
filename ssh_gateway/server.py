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

from ssh_gateway import algorithms, buffers, listening, wire
from ssh_gateway.access import Crowd, Doorkeeper
from ssh_gateway.activity import Activity
from ssh_gateway.authorities import Authorities
from ssh_gateway.directory import People, Places
from ssh_gateway.drain import STOPPING, farewell
from ssh_gateway.gate import Gate, Lobby
from ssh_gateway.keys import Keys
from ssh_gateway.logs import log, say
from ssh_gateway.meters import Inside, Meters
from ssh_gateway.notices import Line, Notices
from ssh_gateway.packets import Policy
from ssh_gateway.penalties import Network, Penalties, Rules
from ssh_gateway.rechecks import Rechecks
from ssh_gateway.revocations import Revocations
from ssh_gateway.standing import BLOCKED, UNTOLD, Held
from ssh_gateway.starts import Starts
from ssh_gateway.visit import Jump, Visit
from ssh_gateway.visitor import Visitor


@dataclass(frozen=True, slots=True)
class Limits:
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
    rules: Rules = field(default_factory=Rules)
    balancers: tuple[Network, ...] = ()


class Server:
    """`start` listens, `stop` sends everybody home."""

    def __init__(  # noqa: PLR0913  (a server is made of its parts, once)
        self,
        *,
        keys: Keys,
        people: People,
        places: Places,
        activity: Activity,
        hub_public_url: str,
        limits: Limits | None = None,
        policy: Policy | None = None,
        notices: Notices | None = None,
        rechecks: Rechecks | None = None,
        authorities: Authorities | None = None,
        meters: Meters | None = None,
        log_commands: bool = False,
    ) -> None:
        self.keys = keys
        self.people = people
        self.places = places
        self.activity = activity
        self.hub_public_url = hub_public_url
        self.limits = limits or Limits()
        self.policy = policy or Policy()
        self.notices = notices
        if notices is not None:
            notices.changed = self._tell
        self.doorkeeper = Doorkeeper(self.limits.waiting, self.limits.waiting_per_source)
        self.authorities = authorities or Authorities()
        self.starts = Starts(people, hub_public_url, self.limits.start_seconds)
        self.rechecks = rechecks
        self.revocations = rechecks.revocations if rechecks is not None else Revocations()
        if rechecks is not None:
            rechecks.visits = self._watched
        self.crowd = Crowd(self.limits.connections_per_user)
        self.penalties = Penalties(self.limits.rules)
        self.meters = meters or Meters()
        self.meters.inside = self._inside
        self.visitors: set[Visitor] = set()
        self._bytes_of_gone = (0, 0)
        self.stopping = False
        self.farewell: tuple[Line, ...] = ()
        self._lobby = Lobby(
            self._admit, lambda source: self.make_leg(source=source), self._say_refused, self.limits.balancers
        )
        self.pods: set[wire.ClientLeg] = set()
        self.log_commands = log_commands
        self.name = secrets.token_hex(4)
        self._numbers = count(1)
        self._options = algorithms.server_options(keys.hosts, self.limits.login_seconds)
        self._listener: asyncio.Server | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()

    async def start(self, ip: str, port: int, *, shared: bool = False) -> tuple[str, int]:
        """Listen, and say where; OSError when the port is taken, unless everybody who has it shares it."""
        loop, found = asyncio.get_running_loop(), listening.listen(ip, port, shared=shared)
        buffers.shared().relayed = self.meters.relay.observe
        self._listener = await loop.create_server(lambda: Gate(self._lobby), sock=found, backlog=listening.BACKLOG)
        return listening.written(found)

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Accept nobody any more, tell every terminal, let sessions end by themselves until the deadline, or until
        ``hurry`` is set; then end them with words.
        """
        self.stopping = True
        if self._listener is not None:
            self._listener.close()
        self._lobby.clear()
        self._end([visitor for visitor in self.visitors if visitor.visit is None])
        if self.limits.drain_seconds:
            self.farewell = (farewell(self.limits.drain_seconds, datetime.now(UTC)),)
            self._tell()
        await self._all_gone(self.limits.drain_seconds, hurry)
        if self.visitors:
            say("drain", level=logging.WARNING, result="deadline", sessions=len(self.visitors))
        self._end(self.visitors)
        await self._all_gone(2 * wire.FAREWELL_SECONDS)
        self._lobby.clear()
        for errand in list(self._errands):
            errand.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)

    def _end(self, visitors: Iterable[Visitor]) -> None:
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
        why = self.penalties.arrives(source, now) or self.doorkeeper.enter(self.penalties.place(source))
        if why is not None:
            self._say_refused(source, why)
        return why

    def _say_refused(self, source: str, why: str) -> None:
        self.meters.refused("connection")
        if self.penalties.worth_a_line(source, self.now()):
            say("refused", level=logging.WARNING, source=source, what="connection", why=why)

    def make_leg(self, jump: Jump | None = None, source: str = "") -> wire.ServerLeg:
        """A connection to be, of somebody at ``source``; also what a stream of ``ssh -J`` is handed to."""
        return wire.ServerLeg(asyncio.get_running_loop(), self._options, lambda: Visitor(self, jump, source))

    def send_on_errand(self, name: str, errand: Coroutine[Any, Any, None]) -> None:
        """Do something on the side that no session waits for; `stop` cancels what is not done."""
        task = asyncio.create_task(_finish(name, errand), name=name)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def learn_blocked(self) -> None:
        """Ask who is blocked, for a login that comes before anybody has told."""
        if self.rechecks is not None:
            await self.rechecks.learn_blocked()

    def obstacle(self, user: str) -> str | None:
        """Why this person is not let in, whatever they have proven; who is blocked must be known to let anybody in."""
        if self.rechecks is None:
            return None
        if self.rechecks.blocked is None:
            return UNTOLD
        return BLOCKED if user in self.rechecks.blocked else None

    async def obstacle_now(self, held: Held) -> str | None:
        """Why somebody is not let in any more who has proven a while ago what is ``held``."""
        why = await self.rechecks.judge(held) if self.rechecks is not None else None
        return why or self.obstacle(held.proof.user)

    def _watched(self) -> list[Visit]:
        """Those whose access is checked again: who is in, and who waits for a job to be let in."""
        return [one for visitor in self.visitors if (one := visitor.visit or visitor.waits) is not None]

    def _visits(self) -> list[Visit]:
        return [visitor.visit for visitor in self.visitors if visitor.visit is not None]

    def _inside(self) -> Inside:
        visits, (up, down) = self._visits(), self._bytes_of_gone
        addresses, names = self.penalties.owing(self.now())
        return Inside(
            at_door=len(self.visitors) - len(visits),
            proven=len(visits),
            sessions=sum(visit.job is not None for visit in visits),
            up=up + sum(visit.bytes_up for visit in visits),
            down=down + sum(visit.bytes_down for visit in visits),
            addresses_owing=addresses,
            names_owing=names,
            stopping=self.stopping,
        )

    async def metrics(self) -> bytes:
        """What a Prometheus reads."""
        return self.meters.text()

    def _tell(self) -> None:
        """What is to be said on terminals has changed."""
        for visit in self._visits():
            visit.tell()

    def gone(self, visitor: Visitor) -> None:
        """Called by every visitor who left."""
        self.visitors.discard(visitor)
        if visitor.visit is not None:
            up, down = self._bytes_of_gone
            self._bytes_of_gone = (up + visitor.visit.bytes_up, down + visitor.visit.bytes_down)
        self._note_emptiness()

    def pod_gone(self, leg: wire.ClientLeg) -> None:
        """Called when the connection to a pod is over."""
        self.pods.discard(leg)
        self._note_emptiness()

    def _note_emptiness(self) -> None:
        if not self.visitors and not self.pods:
            self._empty.set()

    async def _all_gone(self, seconds: float, hurry: asyncio.Event | None = None) -> None:
        self._empty.clear()
        if not self.visitors and not self.pods:
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
