"""Whose turn it is to read a log: nobody keeps others from reading, however many they ask for at one time.

A reading costs a stream from Kubernetes and memory for what is kept of a log. One person has a few at one time, some
more wait for those, and whatever comes beyond is refused at once, so that a line is never long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

AT_ONCE, WAITING = 4, 4  # of one person


class TooManyReads(Exception):
    """This person reads enough logs already, and others of theirs wait."""


@dataclass(slots=True)
class _Person:
    seats: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    asked: int = 0


class ReadLimiter:
    """The readings of everybody; remembers nobody who reads nothing."""

    def __init__(self) -> None:
        self._people: dict[str, _Person] = {}

    @contextlib.asynccontextmanager
    async def wait_for_slot(self, who: str) -> AsyncIterator[None]:
        """Wait for this person's turn; `TooMany` at once where their line is full."""
        person = self._people.setdefault(who, _Person())
        if person.asked >= AT_ONCE + WAITING:
            raise TooManyReads(f"You are reading {AT_ONCE} logs, and {WAITING} more wait: ask again when one has come.")
        person.asked += 1
        try:
            async with person.seats:
                yield
        finally:
            person.asked -= 1
            if not person.asked:
                del self._people[who]
