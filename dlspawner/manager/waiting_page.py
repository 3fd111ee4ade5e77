"""The page of a job that waits, for its owner and for administrators: why, which place, what would start at once.

    GET   wait/{user}/{server}          the page; leads to the job when that has started
    POST  wait/{user}/{server}/cancel   end the request, wherever it is on its way
    POST  wait/{user}/{server}/go-on    after a fresh login

Whoever else asks gets what is said of an address that is not there. The page works without JavaScript, and looks again
by itself; with it, only what has changed is replaced.
"""

from __future__ import annotations

from urllib.parse import quote

from dlspawner.core.amounts import counted
from dlspawner.core.jobs import State
from dlspawner.hubapi import HubApi, HubError, Identity, Kind, own_server
from dlspawner.manager import notices
from dlspawner.manager.access import Right
from dlspawner.manager.cancelling import RUNS, Found, cancel_anywhere
from dlspawner.manager.desk import Desk
from dlspawner.manager.jobs_api import NOT_YET
from dlspawner.manager.ledger import Fenced
from dlspawner.manager.looks import Look
from dlspawner.manager.notices_shown import told_to
from dlspawner.manager.pages import STALE_PAGE
from dlspawner.manager.starts import log_in
from dlspawner.manager.web import NOTHING_HERE, Asking, PageHandler, Problem

# What became of a job, in the words of whoever waited for it; the reasons are those of its last event.
_ENDS = {
    "denied": "The request was denied",
    "cancelled": "The request was cancelled.",
    "replaced": "Another request for the same server has taken its place.",
    "start-refused": "Its turn came, and the Hub refused to start it:",
    "start-failed": "Its turn came, and the Hub could not start it: its administrator finds why in the Hub's log.",
    "no-server": "Its turn came, and the Hub has no such server any more.",
    "runs-already": "Its turn came, and the server ran already.",
    "not-started": "Its turn came many times, and the Hub could not start it. Ask an administrator.",
    "not-created": "Its turn came, and the cluster refused it:",
    "never-seen": "It was being started, and no pod of it ever came. Start it again.",
}

_SAID_HERE = frozenset({notices.Kind.WAITING_LOGIN, notices.Kind.CANNOT_START, notices.Kind.DENIED})
_WITH_DETAIL = frozenset({"start-refused", "not-created", "denied"})


def owner(handler: Asking, user: str, right: Right) -> Identity:
    """Who asks, when this is theirs: owners, and administrators of the Hub. Never a job with its token.

    403 for a token of theirs that is too small for it.
    """
    who = handler.identity
    if who is None or who.kind is not Kind.USER or own_server(who) is not None or not (who.name == user or who.admin):
        raise Problem(404, NOTHING_HERE)
    found = handler.viewer(right)
    if not (found.all or found.name == user):
        raise Problem(404, NOTHING_HERE)
    return who


def page_path(prefix: str, user: str, server: str) -> str:
    """Where the page of this server is."""
    return f"{prefix}wait/{quote(user, safe='@')}/{quote(server, safe='')}"


class Waiting(PageHandler):
    """What the page and its buttons share."""

    def look_as(self, user: str, right: Right = Right.SEE) -> Identity:
        """Who looks, or does something, if they may."""
        if self.identity is None:
            raise Problem(403, STALE_PAGE)
        return owner(self, user, right)

    def deciding(self) -> tuple[Desk, HubApi]:
        acting = self.manager.acting
        if acting is None:
            raise Problem(404, NOTHING_HERE)
        if acting.desk is None:
            self.set_header("Refresh", "5")
            raise Problem(503, NOT_YET)
        return acting.desk, acting.hub

    def desk(self) -> Desk:
        return self.deciding()[0]

    def page(self, user: str, server: str) -> str:
        return page_path(self.manager.service.prefix, user, server)

    def hub(self, path: str, user: str, server: str) -> str:
        service = self.manager.service
        parts = (path, quote(user, safe="@"), *((quote(server, safe=""),) if server else ()))
        return f"{service.hub_host}{service.base_url}hub/{'/'.join(parts)}"


class WaitPage(Waiting):
    """The page itself."""

    async def get(self, user: str, server: str) -> None:
        self.look_as(user)
        desk = self.desk()
        record = desk.coming(user, server)
        if record is not None:
            lost = not record.waits and not await self._is_going(user, server)
            if lost or record.waits:
                self._show(user, server, look=desk.looks.look(record), lost=lost)
                return
        lives = [
            one.job.state for one in desk.book.records.values() if (one.job.user, one.job.server) == (user, server)
        ]
        if State.STARTING in lives or State.RUNNING in lives:
            self.redirect(self.hub("spawn-pending", user, server))
            return
        last = await desk.last(user, server)
        if last is None:
            raise Problem(404, NOTHING_HERE)
        reason, detail = last
        sentence = _ENDS.get(reason, "It does not wait any more.")
        told = f"{sentence} {detail}" if detail and reason in _WITH_DETAIL else f"{sentence.rstrip(':.')}."
        self._show(user, server, ended=told)

    async def _is_going(self, user: str, server: str) -> bool:
        """Whether the Hub is there and starts this server, so that its page says more than ours."""
        acting = self.manager.acting
        try:
            found = await acting.hub.user(user) if acting is not None else None
        except HubError:
            return False
        known = found.servers.get(server) if found is not None else None
        return known is not None and bool(known.pending or known.ready)

    def _show(self, user: str, server: str, *, look: Look | None = None, ended: str = "", lost: bool = False) -> None:
        alternatives = [
            f"{counted(one.gpus)} of type {one.gpu_type}{', preemptible' if one.preemptible else ''}"
            for one in (look.advice if look else ())
        ]
        team = self.desk().book.world.team(look.job.team) if look else None
        self.show(
            "wait.html",
            look=look,
            team=(team.title or team.name) if team else "",
            ended=ended,
            lost=lost,
            server=server,
            title=server or "Default server",
            owner=user,
            gpus=counted(look.job.charge.gpus) if look and look.job.charge.gpus else "",
            alternatives=alternatives,
            now=self.desk().book.now(),
            page=self.page(user, server),
            form_url=self.hub("spawn", user, server),
            login_url=f"{self.manager.service.hub_host}{self.manager.service.base_url}hub/login?next="
            + quote(self.page(user, server), safe=""),
            every=4,
            told=told_to(self, besides=_SAID_HERE),
        )


class Cancel(Waiting):
    """The button that ends it."""

    async def post(self, user: str, server: str) -> None:
        who = self.look_as(user, Right.ACT)
        desk, hub = self.deciding()
        try:
            found = await cancel_anywhere(desk.book, hub, user, server, who.name)
        except Fenced:
            raise Problem(503, NOT_YET) from None
        if found is Found.RUNS:
            raise Problem(409, RUNS)
        self.redirect(self.page(user, server), status=303)


class GoOn(Waiting):
    """The button after a fresh login."""

    async def post(self, user: str, server: str) -> None:
        self.look_as(user, Right.ACT)
        try:
            await self.desk().book.turn(lambda turn: log_in(turn, user, server))
        except Fenced:
            raise Problem(503, NOT_YET) from None
        self.redirect(self.page(user, server), status=303)
