"""A second task of an event loop, to see that nothing blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def others() -> AsyncIterator[list[int]]:
    """A list that grows with every iteration of the event loop."""
    turns = list[int]()

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    yield turns
    task.cancel()
