"""Telling the Hub that a job is used: at most once per interval and job, whatever goes on in its sessions.

The Manager is told more, by `sessions`: what stops a job that nobody uses wants to know of silent sessions, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from ssh_gateway.directory import BackendUnavailable
from ssh_gateway.logs import say
from ssh_gateway.sessions import SessionReporter


class ActivitySink(Protocol):
    """Who passes it on."""

    async def report_activity(self, user: str, servers: Mapping[str, datetime]) -> None:
        """Raise Unavailable when it cannot be told."""


class ActivityReporter:
    """Collects what sessions saw; `run` is the one task that reports it, the first use of a job at once."""

    def __init__(
        self,
        reporter: ActivitySink,
        interval_seconds: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sessions: SessionReporter | None = None,
    ) -> None:
        self._reporter = reporter
        self._interval = interval_seconds
        self._now = now
        self.sessions = sessions
        self._seen: dict[tuple[str, str], datetime] = {}
        self._told: dict[tuple[str, str], float] = {}  # when on the loop's clock, for one interval
        self._news = asyncio.Event()

    def touch(self, user: str, server: str) -> None:
        """Somebody used this server just now."""
        if (user, server) not in self._seen:
            self._news.set()
        self._seen[user, server] = self._now()
        if self.sessions is not None:
            self.sessions.touch(user, server)

    def opened(self, user: str, server: str) -> None:
        """Somebody is connected to this server from now on."""
        if self.sessions is not None:
            self.sessions.opened(user, server)

    def closed(self, user: str, server: str) -> None:
        """One connection has ended."""
        if self.sessions is not None:
            self.sessions.closed(user, server)

    async def run(self) -> None:
        """Report for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_hub(), name="tell the Hub")
            if self.sessions is not None:
                group.create_task(self.sessions.run(), name="tell the Manager")

    async def _tell_hub(self) -> None:
        """What cannot be told is dropped: whoever is still active says so again."""
        while True:
            for user, servers in self._due().items():
                try:
                    await self._reporter.report_activity(user, servers)
                except BackendUnavailable as problem:
                    say("activity", level=logging.WARNING, user=user, result="failed", why=problem)
            await self._wait()

    def _due(self) -> dict[str, dict[str, datetime]]:
        """Take what was seen of jobs that were not reported within the interval."""
        clock = asyncio.get_running_loop().time()
        self._told = {key: at for key, at in self._told.items() if clock - at < self._interval}
        due: dict[str, dict[str, datetime]] = {}
        for user, server in [key for key in self._seen if key not in self._told]:
            due.setdefault(user, {})[server] = self._seen.pop((user, server))
            self._told[user, server] = clock
        return due

    async def _wait(self) -> None:
        """Until a job is used for the first time, or until one that was used again is due."""
        next_due = [self._told[key] + self._interval for key in self._seen if key in self._told]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(next_due, default=None)):
                await self._news.wait()
        self._news.clear()
