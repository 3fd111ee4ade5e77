"""What every page of the portal shares: who looks, what they may reach, and the way back with a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from tornado.httputil import url_concat

from dlspawner.hubapi import HubError, HubUser, Identity, Kind
from dlspawner.manager.access import Right
from dlspawner.manager.acting import Acting
from dlspawner.manager.book import Book
from dlspawner.manager.desk import Desk
from dlspawner.manager.jobs_api import NOT_YET
from dlspawner.manager.kept import Kept
from dlspawner.manager.ledger import Fenced
from dlspawner.manager.notices_shown import told_to
from dlspawner.manager.pages import STALE_PAGE
from dlspawner.manager.records import OF_POD, Record
from dlspawner.manager.web import NOTHING_HERE, PageHandler, Problem

T = TypeVar("T")

EVERY_SECONDS = 5  # between two looks of a page that is open
NO_JOB = "There is no such job, or it has ended."
_AGAIN_SECONDS = "5"
JOB_ID = re.compile(r"j-[a-z2-7]{12}")


class Page(PageHandler):
    """A page of the portal, for people; a service or a job has none."""

    def person(self) -> Identity:
        """Who looks, if they may see anything at all."""
        if self.identity is None:
            raise Problem(403, STALE_PAGE)
        if self.identity.kind is not Kind.USER:
            raise Problem(404, NOTHING_HERE)
        self.viewer(Right.SEE)
        return self.identity

    def acting(self) -> Acting:
        if self.manager.acting is None:
            raise Problem(404, NOTHING_HERE)
        return self.manager.acting

    def desk(self) -> Desk:
        """Where it is decided; while that is not here the page says so and looks again by itself."""
        desk = self.acting().desk
        if desk is None:
            raise Problem(503, NOT_YET, {"Refresh": _AGAIN_SECONDS})
        return desk

    async def on_disk(self, read: Callable[[Book], T]) -> T:
        """What the book says, once all of it is in the database, which is asked afterwards."""
        try:
            return await self.desk().book.turn(lambda turn: read(turn.book))
        except Fenced:
            raise Problem(503, NOT_YET, {"Refresh": _AGAIN_SECONDS}) from None

    def record(self, job: str, right: Right) -> Record:
        """A job that has not ended and that this reader may see, and act on where that is wanted."""
        self.person()
        sees, record = self.viewer(Right.SEE), self.desk().book.records.get(job)
        if record is None or job.startswith(OF_POD) or not sees.reaches(record.job.user, record.job.team):
            raise Problem(404, NO_JOB)
        if not self.viewer(right).reaches(record.job.user, record.job.team):
            raise Problem(403, "You may see this job, and not do that to it.")
        return record

    async def kept(self, job: str) -> Kept:
        """A job that this reader may see, ended ones too; 404 for any other, whether there is one or not."""
        found = await self.acting().ledger.seen(self.viewer(Right.SEE), job)
        if found is None:
            raise Problem(404, NO_JOB)
        return found

    async def hub_user(self, name: str) -> HubUser | None:
        """What the Hub says of somebody; ``None`` when it does not answer, so that pages show the rest."""
        if self.acting().presence.away:
            return None
        try:
            return await self.acting().hub.user(name)
        except HubError:
            return None

    def hub(self, path: str, user: str, server: str) -> str:
        """The Hub's page of that kind about a server."""
        return self._of_server(f"hub/{path}", user, server)

    def server_page(self, user: str, server: str) -> str:
        """The server itself, which is there also while the Hub is not."""
        return f"{self._of_server('user', user, server)}/"

    def _of_server(self, path: str, user: str, server: str) -> str:
        service = self.manager.service
        parts = (path, quote(user, safe="@"), *((quote(server, safe=""),) if server else ()))
        return f"{service.hub_host}{service.base_url}{'/'.join(parts)}"

    def back(self, to: str = "", **said: str) -> None:
        """Redirect to a page of the portal, which says what has happened."""
        self.redirect(url_concat(f"{self.manager.service.prefix}{to}", said), status=303)

    def show_page(self, template: str, status: int = 200, **values: object) -> None:
        """Render a page with what every page of the portal has.

        ``path``: where to look again, when this is the answer to a button and its own address is none of a page.
        """
        usual = {"told": told_to(self), "now": self.desk().book.now(), "every": EVERY_SECONDS}
        self.show(template, status, **{**usual, **values})
