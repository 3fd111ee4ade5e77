"""Jobs that a login starts, or finds starting: requested from the Manager, with progress lines while the login waits.

Rules:

* A waiting login has proven, on this very connection, a credential that opens the server. The Manager decides about the
  start: by the user's preference, the template's, quota and approval.
* All logins that wait for one server share one request a second, answered or not. A refusal is kept for ten seconds
  without another request: an editor that reconnects for ever causes no flood of starts.
* Clients choose the names of servers, so the status of one is dropped ten seconds after its last request.
* Lines go to the banner of the login, which clients show on standard error; nothing is ever written to standard output.
* A client that disconnects ends its own waiting only: the requested job keeps its place in the queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urljoin

from dlspawner.clients.manager import StartStatus
from ssh_gateway.backends.directory import BackendUnavailable, HubAndManager
from ssh_gateway.session.terminals import escaped

POLL_SECONDS = 1.0
KEPT_SECONDS = 10.0
OFF, STARTING, RUNNING, STOPPING, QUEUED, REFUSED = "off", "starting", "running", "stopping", "queued", "refused"
# A start that needs a decision or a browser is reported at once, instead of being waited for.
FOR_PEOPLE = frozenset({"pending-approval", "login-required"})


class StartFailed(Exception):
    """The reason, for the user, why the job does not run."""


@dataclass(frozen=True, slots=True)
class WaitingLogin:
    """A login that waits for its job.

    ``ready`` tells if the job can be entered, ``gone`` if the client has disconnected; ``tell`` shows a line.
    """

    user: str
    server: str
    ready: Callable[[], Awaitable[bool]]
    gone: Callable[[], bool]
    tell: Callable[[str], None]


@dataclass(slots=True)
class _Server:
    """The last known status of a server; ``at`` is the time of the last request, ``silent`` if that had no answer."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    start: StartStatus = field(default_factory=lambda: StartStatus(OFF))
    at: float = -math.inf
    silent: bool = False
    job: str = ""

    def keep(self, start: StartStatus, now: float) -> None:
        self.start, self.at, self.silent, self.job = start, now, False, start.job or self.job

    def miss(self, now: float) -> None:
        self.at, self.silent = now, True


class AutoStarter:
    """Starts jobs for all connections; a login waits for ``seconds`` at most, 0 switches starts and waiting off."""

    def __init__(
        self, auth_backend: HubAndManager, url: str, seconds: float, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._auth_backend = auth_backend
        self._url = url
        self._poll = poll_seconds
        self._servers: dict[tuple[str, str], _Server] = {}
        self.seconds = seconds

    async def begin(self, user: str, server: str) -> bool:
        """True if the server is starting, by this login or already; False if logins start nothing; else StartFailed."""
        start = await self._asked(user, server)
        if start.state in {OFF, STOPPING}:
            return False
        self._judge(server, start)
        return True

    async def pending_message(self, user: str, server: str) -> str:
        """Returns a line about a waiting server; empty for any other server. Starts nothing."""
        if not self.seconds:
            return ""
        start = await self._auth_backend.start_status(user, server, "")
        if start.state in FOR_PEOPLE:
            return start_refusal(server, start, self._page(start)) or ""
        return f"{progress_line(server, start)} (nothing is shown until it runs)" if start.state == QUEUED else ""

    async def start_and_wait(self, waiter: WaitingLogin) -> bool:
        """True once the job can be entered; False if logins start nothing; StartFailed with the reason."""
        user, server = waiter.user, waiter.server
        if not await self._begin_with_words(waiter):
            return False
        start, said, until = self._of(user, server).start, "", _now() + self.seconds
        while not (start.state == RUNNING and await waiter.ready()):
            if waiter.gone():
                raise StartFailed("the client is gone")
            self._judge(server, start)
            line = progress_line(server, start)
            if line != said:
                waiter.tell(said := line)
            if _now() >= until:
                raise StartFailed(too_long(server, start, self._page(start)))
            await asyncio.sleep(self._poll)
            start = await self._looked(user, server)
        return True

    async def _begin_with_words(self, waiter: WaitingLogin) -> bool:
        """Begins the start, with a line if that takes longer than one poll.

        The Hub answers when the job runs, or after ten seconds; clients give up on a server that is silent for so long.
        """
        words = asyncio.get_running_loop().call_later(self._poll, _say_that_it_is_asked, waiter)
        try:
            return await self.begin(waiter.user, waiter.server)
        finally:
            words.cancel()

    def _judge(self, server: str, start: StartStatus) -> None:
        refusal = start_refusal(server, start, self._page(start))
        if refusal is not None:
            raise StartFailed(refusal)

    def _page(self, start: StartStatus) -> str:
        return urljoin(self._url, start.page) if start.page else self._url

    async def _asked(self, user: str, server: str) -> StartStatus:
        """Requests the start and returns the Manager's answer; while the Manager is unreachable nothing starts."""
        one = self._of(user, server)
        async with one.lock:
            if _now() - one.at >= (KEPT_SECONDS if one.start.state == REFUSED and not one.silent else self._poll):
                try:
                    one.keep(await self._auth_backend.start(user, server), _now())
                except BackendUnavailable:
                    one.miss(_now())
            return StartStatus(OFF) if one.silent else one.start

    async def _looked(self, user: str, server: str) -> StartStatus:
        """Returns the present status; while the Manager is unreachable, the last known one."""
        one = self._of(user, server)
        async with one.lock:
            if _now() - one.at >= self._poll:
                try:
                    one.keep(await self._auth_backend.start_status(user, server, one.job), _now())
                except BackendUnavailable:
                    one.miss(_now())
            return one.start

    def _of(self, user: str, server: str) -> _Server:
        now = _now()
        for key, one in list(self._servers.items()):
            if now - one.at > KEPT_SECONDS and not one.lock.locked():
                del self._servers[key]
        return self._servers.setdefault((user, server), _Server())


def progress_line(server: str, start: StartStatus) -> str:
    """Returns the line that is shown while a login waits."""
    name = server or "your default server"
    if start.state == RUNNING:
        return f"{name} runs, and no pod of it that SSH can enter is found yet"
    return f"{name} is queued: {escaped(start.sentence)}" if start.state == QUEUED else f"{name} is starting"


def start_refusal(server: str, start: StartStatus, page: str) -> str | None:
    """Returns the reason why waiting is of no use; None if it is of use."""
    name, said = server or "your default server", escaped(start.sentence).rstrip(". ")
    if start.state == REFUSED:
        return f"{name} does not start: {said}"
    if start.state in FOR_PEOPLE:
        return f"{name} does not start yet: {said} ({page})"
    if start.state in {"ended", STOPPING, OFF}:
        return f"{name} has not started: {said or 'it was stopped'}"
    return None


def too_long(server: str, start: StartStatus, page: str) -> str:
    """Returns the last line of a login that has waited long enough."""
    name = server or "your default server"
    if start.state == RUNNING:  # such as one whose labels were changed
        return f"{name} runs, but no pod of it that SSH can enter is found: tell your administrator"
    where = f" ({escaped(start.sentence).rstrip('. ')})" if start.sentence else ""
    return f"{name} does not run yet{where}; it goes on by itself: watch {page} and connect again when it runs"


def _say_that_it_is_asked(waiter: WaitingLogin) -> None:
    if not waiter.gone():
        waiter.tell(f"{waiter.server or 'your default server'} does not run: asking for it to be started")


def _now() -> float:
    return asyncio.get_running_loop().time()
