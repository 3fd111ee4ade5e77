"""Telling the Hub that a job is used: at most once per interval and job, whatever goes on in its sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from ssh_gateway.directory import Unavailable
from ssh_gateway.logs import say


class Reporter(Protocol):
    """Who passes it on."""

    async def report_activity(self, user: str, servers: Mapping[str, datetime]) -> None:
        """Raise Unavailable when it cannot be told."""


class Activity:
    """Collects what sessions saw; `run` is the one task that reports it."""

    def __init__(
        self, reporter: Reporter, interval_seconds: float, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._reporter = reporter
        self._interval = interval_seconds
        self._now = now
        self._seen: dict[str, dict[str, datetime]] = {}
        self._news = asyncio.Event()

    def touch(self, user: str, server: str) -> None:
        """Somebody used this server just now."""
        self._seen.setdefault(user, {})[server] = self._now()
        self._news.set()

    async def run(self) -> None:
        """Report for ever. What cannot be told is dropped: whoever is still active says so again."""
        while True:
            await self._news.wait()
            self._news.clear()
            seen, self._seen = self._seen, {}
            for user, servers in seen.items():
                try:
                    await self._reporter.report_activity(user, servers)
                except Unavailable as problem:
                    say("activity", level=logging.WARNING, user=user, result="failed", why=problem)
            await asyncio.sleep(self._interval)
