"""Reports to the Hub that jobs are used: at most once per interval and job, however many bytes their sessions send.

The Manager receives more, through `sessions`, because the idle culler takes silent sessions into account, too.

Reports to the Manager which jobs have SSH sessions, and the time since each last sent a byte.

Every report is complete: a job that is not in it has no session here. The end of a job's last session is reported until
the Manager has accepted a report with it. A job without a report within the interval is reported at once, everything
else once per interval; also without sessions, so that the Manager knows that this gateway reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ssh_gateway.backends.directory import BackendUnavailable, HubAndManager
from ssh_gateway.core.proof import SshSessionState
from ssh_gateway.log import say


class ActivityReporter:
    """Collects the use of servers; `run` is the one task that reports it, the first use of a job at once."""

    def __init__(
        self,
        reporter: HubAndManager,
        interval_seconds: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sessions: SessionReporter | None = None,
    ) -> None:
        self._reporter = reporter
        self._interval = interval_seconds
        self._now = now
        self.sessions = sessions
        self._seen: dict[tuple[str, str], datetime] = {}
        self._told: dict[tuple[str, str], float] = {}  # time of the report on the loop's clock, kept for one interval
        self._news = asyncio.Event()

    def touch(self, user: str, server: str) -> None:
        """Notes use of this server."""
        if (user, server) not in self._seen:
            self._news.set()
        self._seen[user, server] = self._now()
        if self.sessions is not None:
            self.sessions.touch(user, server)

    def opened(self, user: str, server: str) -> None:
        if self.sessions is not None:
            self.sessions.opened(user, server)

    def closed(self, user: str, server: str) -> None:
        if self.sessions is not None:
            self.sessions.closed(user, server)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_hub(), name="tell the Hub")
            if self.sessions is not None:
                group.create_task(self.sessions.run(), name="tell the Manager")

    async def _tell_hub(self) -> None:
        """Reports to the Hub; a failed report is dropped, because active sessions report again."""
        while True:
            for user, servers in self._due().items():
                try:
                    await self._reporter.report_activity(user, servers)
                except BackendUnavailable as problem:
                    say("activity", level=logging.WARNING, user=user, result="failed", why=problem)
            await self._wait()

    def _due(self) -> dict[str, dict[str, datetime]]:
        """Takes the noted uses of jobs without a report within the interval."""
        clock = asyncio.get_running_loop().time()
        self._told = {key: at for key, at in self._told.items() if clock - at < self._interval}
        due: dict[str, dict[str, datetime]] = {}
        for user, server in [key for key in self._seen if key not in self._told]:
            due.setdefault(user, {})[server] = self._seen.pop((user, server))
            self._told[user, server] = clock
        return due

    async def _wait(self) -> None:
        """Waits until a job is used for the first time, or until a job used again is due."""
        next_due = [self._told[key] + self._interval for key in self._seen if key in self._told]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(next_due, default=None)):
                await self._news.wait()
        self._news.clear()


_KEPT_SECONDS = 86400.0  # for a job, if no receiver accepts its end
_BETWEEN_SECONDS = 1.0
Key = tuple[str, str]


@dataclass(slots=True)
class _Job:
    open: int = 0
    used: float | None = None  # on the loop's clock, as all times here
    changed: float = 0.0
    told: float = float("-inf")


@dataclass(slots=True)
class SessionReporter:
    """Tracks the jobs with sessions; `run` is the one task that reports them."""

    hears: HubAndManager
    interval: float
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    gateway: str = field(default_factory=lambda: secrets.token_hex(8))
    _jobs: dict[Key, _Job] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _silent: bool = False

    def opened(self, user: str, server: str) -> None:
        self._job(user, server).open += 1

    def closed(self, user: str, server: str) -> None:
        self._job(user, server).open -= 1

    def touch(self, user: str, server: str) -> None:
        self._job(user, server).used = self.clock()

    def _job(self, user: str, server: str) -> _Job:
        now = self.clock()
        job = self._jobs.setdefault((user, server), _Job())
        job.changed = now
        if now - job.told >= self.interval:
            self._news.set()
        return job

    async def run(self) -> None:
        while True:
            await self._tell()
            await asyncio.sleep(min(_BETWEEN_SECONDS, self.interval))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self.interval)
            self._news.clear()

    async def _tell(self) -> None:
        now = self.clock()
        told = dict(self._jobs)
        sessions = [
            SshSessionState(user, server, None if job.used is None else now - job.used, job.open > 0)
            for (user, server), job in told.items()
        ]
        try:
            await self.hears.report_sessions(self.gateway, sessions)
        except BackendUnavailable as problem:
            if not self._silent:
                say("sessions", level=logging.WARNING, result="failed", why=problem)
            self._silent = True
            self._forget(lambda job: now - job.changed > _KEPT_SECONDS)
            for job in told.values():
                job.told = now
            return
        self._silent = False
        for job in told.values():
            job.told = now
        self._forget(lambda job: job.changed <= now)

    def _forget(self, heard: Callable[[_Job], bool]) -> None:
        self._jobs = {key: job for key, job in self._jobs.items() if job.open > 0 or not heard(job)}
