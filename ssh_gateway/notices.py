"""What people are told on their terminals: the Manager's open notices, kept up to date, as lines.

One request at a time waits at the Manager for a change. While it cannot be reached what was known stays known, sessions
go on, and it is asked again at growing intervals; a gateway without a Manager says nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from dlspawner.core.text import with_time
from ssh_gateway.directory import BackendUnavailable, JobNotice, JobNotices
from ssh_gateway.logs import say

WAIT_SECONDS = 240.0
PAUSE_SECONDS = 1.0  # between two lists: a hundred changes in a moment are one
LONGEST_PAUSE = 60.0
LONGEST_LINE = 800
STALE = timedelta(minutes=10)  # after its time a notice says nothing any more
_TYPOGRAPHY = str.maketrans({"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "ß": "ss"})


class Source(Protocol):
    """Who has the notices."""

    async def open_notices(self, version: str, seconds: float) -> JobNotices:
        """All that are open, once that is another list than ``version``, or after so many seconds."""


@dataclass(frozen=True, slots=True)
class TerminalLine:
    """A notice as a terminal shows it; one with the same ``id`` is not shown twice."""

    id: str
    content: bytes


class NoticeFollower:
    """The open notices of all jobs; `run` is the one task that asks for them."""

    def __init__(self, source: Source, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._source = source
        self._now = now
        self._open: dict[tuple[str, str], list[JobNotice]] = {}
        self.changed: Callable[[], None] = lambda: None

    def lines(self, user: str, server: str, job: str | None = None) -> list[TerminalLine]:
        """What is to be said on the terminals of a server's job; what is about another job of it is not."""
        now = self._now()
        found = [one for one in self._open.get((user, server), ()) if not _over(one, now)]
        return [TerminalLine(one.id, line(one, now)) for one in found if not (job and one.job) or one.job == job]

    async def run(self) -> None:
        """Follow the Manager for ever."""
        version, pause = "", PAUSE_SECONDS
        while True:
            try:
                found = await self._source.open_notices(version, WAIT_SECONDS)
            except BackendUnavailable as problem:
                if pause == PAUSE_SECONDS:  # once, not at every try
                    say("notices", level=logging.WARNING, result="failed", why=problem)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                pause = PAUSE_SECONDS
                if found.version != version:
                    version = found.version
                    self._take(found.notices)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def _take(self, notices: Sequence[JobNotice]) -> None:
        self._open = {}
        for notice in notices:
            if not notice.seen:
                self._open.setdefault((notice.user, notice.server), []).append(notice)
        self.changed()


def line(notice: JobNotice, now: datetime) -> bytes:
    """A notice as a terminal shows it."""
    return as_line(notice.text, notice.until, now)


def as_line(sentence: str, until: datetime | None, now: datetime) -> bytes:
    """A line of its own, whatever stands on the screen; nothing in it but visible ASCII, cut where it is too long."""
    text = escaped(with_time(sentence, until, now))
    shown = text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 3]}..."
    return f"\r\n*** {shown} ***\r\n".encode("ascii")


def escaped(text: str) -> str:
    """Text for any terminal: what none can be trusted to show is a question mark, an umlaut its letter."""
    plain = unicodedata.normalize("NFKD", text.translate(_TYPOGRAPHY))
    return "".join(char if " " <= char <= "~" else "?" for char in plain if not unicodedata.combining(char))


def _over(notice: JobNotice, now: datetime) -> bool:
    late = notice.until is not None and now > notice.until + STALE
    return late or (notice.ends is not None and now >= notice.ends)
