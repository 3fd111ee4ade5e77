"""How late an event loop is: what no task of it can see of itself, because it is late as well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOK_SECONDS = 0.5


async def watch_loop(observe: Callable[[float], object]) -> None:
    """Tell ``observe`` twice a second, until cancelled, by how many seconds the running loop was late."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + _LOOK_SECONDS
        await asyncio.sleep(_LOOK_SECONDS)
        observe(max(0.0, clock() - due))
