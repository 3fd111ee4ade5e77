"""Reports which jobs are used, to the Hub and to the Manager, each at most once per interval and job.

The Hub hears when a job was used last. The Manager hears of the sessions of all jobs, and of the time since each last
sent a byte, because the idle culler takes silent sessions into account, too.

Every report to the Manager is complete: a job that is not in it has no session here. The end of a job's last session is
reported until the Manager has accepted a report with it. A job without a report within the interval is reported at
once, everything else once per interval; also without sessions, so that the Manager knows that this gateway reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ssh_gateway.backends.directory import BackendUnavailable, HubAndManager
from ssh_gateway.core.proof import SshSessionState
from ssh_gateway.log import say

_KEPT_SECONDS = 86400.0  # for a job, if no receiver accepts its end
_BETWEEN_SECONDS = 1.0  # between two reports to the Manager, at least
_NEVER = float("-inf")


@dataclass(slots=True)
class _Job:
    """The use of a job; times are the loop's."""

    open: int = 0
    used: float = _NEVER
    changed: float = _NEVER
    hub_knows: float = _NEVER  # the use that was reported to the Hub last
    told_hub: float = _NEVER
    told_manager: float = _NEVER


@dataclass(slots=True)
class ActivityReporter:
    """Collects the use of jobs; `run` is the one task that reports it, the first use of a job at once."""

    auth_backend: HubAndManager
    interval: float
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    gateway: str = field(default_factory=lambda: secrets.token_hex(8))
    _jobs: dict[tuple[str, str], _Job] = field(default_factory=dict)
    _for_hub: asyncio.Event = field(default_factory=asyncio.Event)
    _for_manager: asyncio.Event = field(default_factory=asyncio.Event)
    _silent: bool = False  # the Manager has not accepted the last report

    def opened(self, user: str, server: str) -> None:
        self._changed(user, server).open += 1

    def closed(self, user: str, server: str) -> None:
        self._changed(user, server).open -= 1

    def touch(self, user: str, server: str) -> None:
        """Notes use of this server."""
        job = self._changed(user, server)
        if job.used <= job.hub_knows:
            self._for_hub.set()
        job.used = job.changed

    def _changed(self, user: str, server: str) -> _Job:
        job = self._jobs.setdefault((user, server), _Job())
        job.changed = self.clock()
        if job.changed - job.told_manager >= self.interval:
            self._for_manager.set()
        return job

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_hub(), name="tell the Hub")
            group.create_task(self._tell_manager(), name="tell the Manager")

    async def _tell_hub(self) -> None:
        """Reports to the Hub; a failed report is dropped, because active sessions report again."""
        while True:
            for user, servers in self._due().items():
                try:
                    await self.auth_backend.report_activity(user, servers)
                except BackendUnavailable as problem:
                    say("activity", level=logging.WARNING, user=user, result="failed", why=problem)
            due = [job.told_hub + self.interval for job in self._jobs.values() if job.used > job.hub_knows]
            await _wait(self._for_hub, max(0.0, min(due) - self.clock()) if due else None)

    def _due(self) -> dict[str, dict[str, datetime]]:
        """Returns the uses to report to the Hub now, and notes them as reported."""
        now, due = self.clock(), dict[str, dict[str, datetime]]()
        for (user, server), job in self._jobs.items():
            if job.used > job.hub_knows and now - job.told_hub >= self.interval:
                due.setdefault(user, {})[server] = datetime.now(UTC) - timedelta(seconds=now - job.used)
                job.hub_knows, job.told_hub = job.used, now
        return due

    async def _tell_manager(self) -> None:
        while True:
            await self._report_sessions()
            await asyncio.sleep(min(_BETWEEN_SECONDS, self.interval))
            await _wait(self._for_manager, self.interval)

    async def _report_sessions(self) -> None:
        now, told = self.clock(), dict(self._jobs)
        sessions = [
            SshSessionState(user, server, None if job.used == _NEVER else now - job.used, job.open > 0)
            for (user, server), job in told.items()
        ]
        for job in told.values():
            job.told_manager = now
        try:
            await self.auth_backend.report_sessions(self.gateway, sessions)
        except BackendUnavailable as problem:
            if not self._silent:
                say("sessions", level=logging.WARNING, result="failed", why=problem)
            self._silent = True
            self._forget(now - _KEPT_SECONDS)
        else:
            self._silent = False
            self._forget(now)

    def _forget(self, since: float) -> None:
        """Drops jobs without a session that have not changed since then, once the Hub may hear of them again."""
        recently = self.clock() - self.interval
        self._jobs = {
            key: job
            for key, job in self._jobs.items()
            if job.open > 0 or job.changed > since or job.used > job.hub_knows or job.told_hub > recently
        }


async def _wait(news: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
    news.clear()
