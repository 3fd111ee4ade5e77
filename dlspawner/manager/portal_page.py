"""What every page of the portal shares: who looks, what they may reach, and the way back with a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from tornado.httputil import url_concat

from dlspawner.hubapi import HubError, HubIdentity, HubUser, IdentityKind
from dlspawner.manager.access import AccessRight
from dlspawner.manager.acting import LeaderElector
from dlspawner.manager.book import JobStore
from dlspawner.manager.desk import AdmissionService
from dlspawner.manager.jobs_api import NOT_YET
from dlspawner.manager.kept import JobHistory
from dlspawner.manager.ledger import NotLeader
from dlspawner.manager.notices_shown import notices_for
from dlspawner.manager.pages import STALE_PAGE
from dlspawner.manager.records import EXTERNAL_POD_PREFIX, JobRecord
from dlspawner.manager.web import NOTHING_HERE, HttpProblem, PageHandler

T = TypeVar("T")

EVERY_SECONDS = 5  # between two looks of a page that is open
NO_JOB = "There is no such job, or it has ended."
_AGAIN_SECONDS = "5"
JOB_ID = re.compile(r"j-[a-z2-7]{12}")


class PortalPage(PageHandler):
    """A page of the portal, for people; a service or a job has none."""

    def person(self) -> HubIdentity:
        """Who looks, if they may see anything at all."""
        if self.identity is None:
            raise HttpProblem(403, STALE_PAGE)
        if self.identity.kind is not IdentityKind.USER:
            raise HttpProblem(404, NOTHING_HERE)
        self.viewer(AccessRight.SEE)
        return self.identity

    def leader(self) -> LeaderElector:
        if self.manager.leader is None:
            raise HttpProblem(404, NOTHING_HERE)
        return self.manager.leader

    def admission(self) -> AdmissionService:
        """Where it is decided; while that is not here the page says so and looks again by itself."""
        desk = self.leader().admission
        if desk is None:
            raise HttpProblem(503, NOT_YET, {"Refresh": _AGAIN_SECONDS})
        return desk

    async def on_disk(self, read: Callable[[JobStore], T]) -> T:
        """What the book says, once all of it is in the database, which is asked afterwards."""
        try:
            return await self.admission().store.transact(lambda turn: read(turn.store))
        except NotLeader:
            raise HttpProblem(503, NOT_YET, {"Refresh": _AGAIN_SECONDS}) from None

    def record(self, job: str, right: AccessRight) -> JobRecord:
        """A job that has not ended and that this reader may see, and act on where that is wanted."""
        self.person()
        sees, record = self.viewer(AccessRight.SEE), self.admission().store.records.get(job)
        if record is None or job.startswith(EXTERNAL_POD_PREFIX) or not sees.reaches(record.job.user, record.job.team):
            raise HttpProblem(404, NO_JOB)
        if not self.viewer(right).reaches(record.job.user, record.job.team):
            raise HttpProblem(403, "You may see this job, and not do that to it.")
        return record

    async def kept(self, job: str) -> JobHistory:
        """A job that this reader may see, ended ones too; 404 for any other, whether there is one or not."""
        found = await self.leader().ledger.visible_job(self.viewer(AccessRight.SEE), job)
        if found is None:
            raise HttpProblem(404, NO_JOB)
        return found

    async def hub_user(self, name: str) -> HubUser | None:
        """What the Hub says of somebody; ``None`` when it does not answer, so that pages show the rest."""
        if self.leader().hub_health.unreachable:
            return None
        try:
            return await self.leader().hub.user(name)
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
        usual = {"told": notices_for(self), "now": self.admission().store.now(), "every": EVERY_SECONDS}
        self.show(template, status, **{**usual, **values})
