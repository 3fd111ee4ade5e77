"""The Manager's page of what a person is told, with the buttons that belong to it.

GET   notices              the page
POST  notices/{id}/keep    *keep alive*, answered by the page with what became of it
"""

from __future__ import annotations

from dlspawner.hubapi import Identity, Kind, own_server
from dlspawner.manager.access import Right
from dlspawner.manager.identity import audience
from dlspawner.manager.notices_api import GONE, check_may_answer, keep
from dlspawner.manager.notices_shown import told_to
from dlspawner.manager.pages import STALE_PAGE
from dlspawner.manager.web import NOTHING_HERE, PageHandler, Problem


class Told(PageHandler):
    """What the page and its buttons share."""

    def person(self) -> Identity:
        if self.identity is None:
            raise Problem(403, STALE_PAGE)
        if self.identity.kind is not Kind.USER or own_server(self.identity) is not None:
            raise Problem(404, NOTHING_HERE)
        self.viewer(Right.SEE)
        return self.identity

    def show_notices(self, status: int = 200, **values: object) -> None:
        self.person()
        self.show("told.html", status, told=told_to(self), **values)


class Notices(Told):
    """The page."""

    def get(self) -> None:
        self.show_notices()


class Keep(Told):
    """The button of one of them."""

    def get(self, id_: str) -> None:
        self.redirect(f"{self.manager.service.prefix}notices")

    async def post(self, id_: str) -> None:
        person, desk = self.person(), self.manager.acting.desk if self.manager.acting else None
        open_ = desk.book.board.read(audience(person, by_token=self.by_token), self.manager.now()) if desk else ()
        notice = next((one for one in open_ if one.id == id_), None)
        if notice is None:
            self.show_notices(404, problem=GONE)
            return
        check_may_answer(self)
        try:
            self.show_notices(said=await keep(self.manager, notice))
        except Problem as problem:
            self.show_notices(problem.status_code, problem=problem.detail)
