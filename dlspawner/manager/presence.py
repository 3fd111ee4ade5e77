"""Whether the Hub answers, as far as anybody here has seen: what people are told at once, and not when they look again.

Nobody asks the Hub for this while it answers: each request that fails says that it is away. Only then it is asked every
few seconds, until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dlspawner.hubapi import HubError

PROBE_SECONDS = 3.0
HEADER, AWAY = "Dlspawner-Hub", "away"  # of answers that are given meanwhile
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class Presence:
    """``told`` is called when the Hub has gone, and when it is back."""

    told: Callable[[], None]
    away: bool = False
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def heard(self, answers: bool) -> None:
        """The Hub was asked something, and has answered or not."""
        if answers is not self.away:
            return
        self.away = not answers
        log.warning("the Hub %s", "does not answer" if self.away else "answers again")
        self._gone.set() if self.away else self._gone.clear()
        self.told()

    async def run(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Look for a Hub that is away; never ends by itself."""
        while True:
            await self._gone.wait()
            await asyncio.sleep(PROBE_SECONDS)
            with contextlib.suppress(HubError):
                await ask()
