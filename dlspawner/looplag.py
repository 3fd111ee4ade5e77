"""Measures the lag of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOK_SECONDS = 0.5


async def watch_loop(observe: Callable[[float], object]) -> None:
    """Passes the lag of the running loop in seconds to ``observe``, twice a second, until cancelled."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + _LOOK_SECONDS
        await asyncio.sleep(_LOOK_SECONDS)
        observe(max(0.0, clock() - due))
