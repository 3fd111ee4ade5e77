"""Locks by name, each of which is there for as long as somebody holds it or waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Lock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass(slots=True)
class NamedLocks:
    """One after the other, for those who name the same."""

    _locks: dict[tuple[str, ...], _Lock] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def held(self, *name: str) -> AsyncIterator[None]:
        """Alone with this name."""
        one = self._locks.setdefault(name, _Lock())
        one.users += 1
        try:
            async with one.lock:
                yield
        finally:
            one.users -= 1
            if not one.users:
                del self._locks[name]
