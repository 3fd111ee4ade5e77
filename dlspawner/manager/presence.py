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
HEADER, HUB_UNREACHABLE = "Dlspawner-Hub", "away"  # of answers that are given meanwhile
log = logging.getLogger("dlspawner.manager")


@dataclass(slots=True)
class HubHealth:
    """``told`` is called when the Hub has gone, and when it is back."""

    told: Callable[[], None]
    unreachable: bool = False
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def on_answer(self, answers: bool) -> None:
        """The Hub was asked something, and has answered or not."""
        if answers is not self.unreachable:
            return
        self.unreachable = not answers
        log.warning("the Hub %s", "does not answer" if self.unreachable else "answers again")
        self._gone.set() if self.unreachable else self._gone.clear()
        self.told()

    async def run(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Look for a Hub that is away; never ends by itself."""
        while True:
            await self._gone.wait()
            await asyncio.sleep(PROBE_SECONDS)
            with contextlib.suppress(HubError):
                await ask()
