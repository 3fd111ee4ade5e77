"""The Manager's page of what a person is told, with the buttons that belong to it.

GET   notices              the page
POST  notices/{id}/keep    *keep alive*, answered by the page with what became of it
"""

from __future__ import annotations

from dlspawner.clients.hub import HubIdentity, IdentityKind, own_server
from dlspawner.manager.http.api.notices import GONE, check_may_answer, keep_alive
from dlspawner.manager.http.auth import recipient_of
from dlspawner.manager.http.handlers import NOTHING_HERE, STALE_PAGE, HttpProblem, PageHandler
from dlspawner.manager.http.portal.base import notices_for
from dlspawner.manager.model.access import AccessRight


class NoticesPageBase(PageHandler):
    def person(self) -> HubIdentity:
        if self.identity is None:
            raise HttpProblem(403, STALE_PAGE)
        if self.identity.kind is not IdentityKind.USER or own_server(self.identity) is not None:
            raise HttpProblem(404, NOTHING_HERE)
        self.viewer(AccessRight.SEE)
        return self.identity

    def show_notices(self, status: int = 200, **values: object) -> None:
        self.person()
        self.show("told.html", status, told=notices_for(self), **values)


class NoticesPage(NoticesPageBase):
    def get(self) -> None:
        self.show_notices()


class KeepAliveButton(NoticesPageBase):
    def get(self, id_: str) -> None:
        self.redirect(f"{self.manager.service.prefix}notices")

    async def post(self, id_: str) -> None:
        person, desk = self.person(), self.manager.leader.admission if self.manager.leader else None
        open_ = (
            desk.store.notices.read(recipient_of(person, by_token=self.by_token), self.manager.now()) if desk else ()
        )
        notice = next((one for one in open_ if one.id == id_), None)
        if notice is None:
            self.show_notices(404, problem=GONE)
            return
        check_may_answer(self)
        try:
            self.show_notices(said=await keep_alive(self.manager, notice))
        except HttpProblem as problem:
            self.show_notices(problem.status_code, problem=problem.detail)
