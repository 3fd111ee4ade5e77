"""Telling the Manager which jobs have SSH sessions, and how long ago something last went through one.

Every report is all of it: a job that is not in it has no session here. A job whose last session has ended is told of
until the Manager has heard it. A job that nothing was said about within the interval is told of at once, everything
else once per interval; without sessions as well, so that the Manager knows that somebody is looking.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ssh_gateway.directory import BackendUnavailable
from ssh_gateway.logs import say

_KEPT_SECONDS = 86400.0  # of a job whose end nobody wants to hear
_BETWEEN_SECONDS = 1.0
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SshSessionState:
    """The sessions on one server: seconds since the last byte (None: there was none yet), whether one is open."""

    user: str
    server: str
    seconds: float | None
    open: bool


class SessionSink(Protocol):
    """Who is told."""

    async def report_sessions(self, gateway: str, sessions: Sequence[SshSessionState]) -> None:
        """Raise Unavailable when it cannot be told."""


@dataclass(slots=True)
class _Job:
    open: int = 0
    used: float | None = None  # on the loop's clock, as all times here
    changed: float = 0.0
    told: float = float("-inf")


@dataclass(slots=True)
class SessionReporter:
    """The jobs that people are in; `run` is the one task that tells."""

    hears: SessionSink
    interval: float
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    gateway: str = field(default_factory=lambda: secrets.token_hex(8))
    _jobs: dict[Key, _Job] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _silent: bool = False

    def opened(self, user: str, server: str) -> None:
        """A connection to this server has begun."""
        self._job(user, server).open += 1

    def closed(self, user: str, server: str) -> None:
        """One has ended."""
        self._job(user, server).open -= 1

    def touch(self, user: str, server: str) -> None:
        """A byte went through one."""
        self._job(user, server).used = self.clock()

    def _job(self, user: str, server: str) -> _Job:
        now = self.clock()
        job = self._jobs.setdefault((user, server), _Job())
        job.changed = now
        if now - job.told >= self.interval:
            self._news.set()
        return job

    async def run(self) -> None:
        """Tell for ever."""
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
