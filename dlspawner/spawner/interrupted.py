"""A stop that the Hub is asked for while it starts a server: who hears of it.

JupyterHub (5.5 to 6.1) cancels the start's task, waits for a second and stops the server; it tells a spawner nothing.
A Hub that ends cancels the same tasks, and a start that fails is stopped by its own task. So what tells a person's stop
from both is a stop outside the start's task, of a start that was neither over nor has failed. JupyterHub polls first,
and that is where it is noticed: what is not running is never told to stop.

Whoever had asked for the start may still wait for an answer. A cancelled task has none, and JupyterHub would say 500.
So they are told here, before its handler looks: callbacks of the start's task come before all that wakes by it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from tornado import web

from dlspawner.spawner.base import LifecycleSpawner
from dlspawner.spawner.refusal import StartRefused

STOPPED = "The server was stopped before it had started."


class CancellableSpawner(LifecycleSpawner):
    """A spawner that knows a start that was interrupted by a stop."""

    _under_way = False  # whether a start was begun, hooks and all, that is neither over nor has failed

    def clear_state(self) -> None:
        """What JupyterHub calls first in every start, and last in every stop."""
        super().clear_state()
        self._under_way = not self._stop_pending
        if self._under_way and self._spawn_future is not None and self.handler is not None:
            self._spawn_future.add_done_callback(partial(_tell, self.handler))

    async def _start(self) -> str:
        url = await super()._start()
        self._under_way = False
        return url

    async def poll(self) -> int | None:
        if self._under_way and self._stop_pending and self._is_undisturbed():
            self._under_way = False
            await self._interrupted()
        return await super().poll()

    def _is_undisturbed(self) -> bool:
        """Whether no start is still busy; one that has failed is, until what it left is stopped."""
        start: Any = self._spawn_future
        return start is None or start.done()

    async def _interrupted(self) -> None:
        """Somebody has stopped the server before its start was over; the pod, if there is any, is stopped next."""


def _tell(handler: web.RequestHandler, start: asyncio.Future[Any]) -> None:
    """Answer whoever asked for a start that was cancelled and was not answered yet."""
    if start.cancelled() and not handler._finished:
        stopped = StartRefused(STOPPED, reason="stopped", status=500)  # as JupyterHub, with words
        handler.send_error(stopped.status_code, exc_info=(StartRefused, stopped, None))
