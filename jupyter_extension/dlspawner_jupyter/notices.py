"""Notices on their way from the Manager to JupyterLab.

One request at a time waits at the Manager, however many browser windows are open; the windows wait here. They ask only
while they can be seen, and their asking is no activity of the notebook server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from typing import Any
from urllib.parse import quote

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.web import HTTPError, authenticated

from dlspawner_jupyter.manager import Away, Manager, delays

WAIT_SECONDS = 240.0  # at the Manager
WINDOW_SECONDS = 50.0  # here; proxies on the way may end what is silent for a minute


class Follower:
    """What the Manager has for this job, as far as it is known; `run` keeps it up to date."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.version = ""
        self.notices: list[Any] = []
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the Manager for ever."""
        tries = delays()
        while True:
            try:
                await self.look(WAIT_SECONDS)
            except Away as problem:
                self.manager.log.debug("no notices: %s", problem)
                await asyncio.sleep(next(tries))
            else:
                tries = delays()

    async def look(self, waits: float) -> None:
        """Take over the next list."""
        path = f"notices?after={quote(self.version, safe='')}&wait={waits:g}"
        status, content = await self.manager.ask("GET", path, waits=waits)
        if status != 200 or not isinstance(content, dict):
            raise Away(f"status {status}")
        version, notices = content.get("version"), content.get("notices")
        if not isinstance(version, str) or not isinstance(notices, list):
            raise Away("no list")
        if version != self.version:
            self.version, self.notices = version, notices
            self._changed.set()
            self._changed = asyncio.Event()

    async def newer(self, version: str, seconds: float) -> None:
        """Until there is another list than `version`, or so many seconds."""
        if self.version == version:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)


class _Handler(APIHandler):
    _track_activity = False  # a window that asks by itself is no use of the job

    def initialize(self, follower: Follower) -> None:
        self.follower = follower


class List(_Handler):
    """What there is to show."""

    _waiting: asyncio.Task[None] | None = None

    @authenticated
    async def get(self) -> None:
        waiting = self.follower.newer(self.get_query_argument("after", ""), WINDOW_SECONDS)
        self._waiting = asyncio.create_task(waiting, name="a window waits for notices")
        await asyncio.wait({self._waiting})
        if not self._waiting.cancelled():
            self.finish(json.dumps({"version": self.follower.version, "notices": self.follower.notices}))

    def on_connection_close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super().on_connection_close()


class Answer(_Handler):
    """One of them was read, or its button pressed; what the Manager says of that."""

    @authenticated
    async def post(self, id_: str, action: str) -> None:
        try:
            status, content = await self.follower.manager.ask("POST", f"notices/{id_}/{action}")
        except Away:
            raise HTTPError(503, "The Hub's Manager does not answer. Try again soon.") from None
        said = content if isinstance(content, dict) else {}
        if status >= 400:
            raise HTTPError(status, str(said.get("detail", "It was refused.")), reason="Refused")
        self.finish(json.dumps({"said": str(said.get("said", ""))}))


def start(app: Any, manager: Manager) -> Coroutine[Any, Any, None]:
    """Add the handlers; what is returned runs as long as the server does."""
    follower = Follower(manager)
    base = url_path_join(app.web_app.settings["base_url"], "dlspawner", "notices")
    own = {"follower": follower}
    app.web_app.add_handlers(
        ".*$", [(base, List, own), (url_path_join(base, "([0-9a-f]{16})", "(seen|keep)"), Answer, own)]
    )
    return follower.run()
