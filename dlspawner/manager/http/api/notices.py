"""REST resources of notices, under /services/jobs/api/.

An answer is always the whole list, with its version. With the version of the list that the client has, the answer waits
until the list is another one, at most ``wait`` seconds (300 at most): nothing is missed, also if a process was
restarted between two requests. Waiting costs an event and no question to the Hub; the right to read was checked when
the request came, so a token that is revoked meanwhile learns of its own job's notices until then.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from dlspawner.clients.hub import own_server
from dlspawner.core.text import with_time
from dlspawner.manager.http.api.models.requests import NoticesQuery
from dlspawner.manager.http.api.models.responses import KeptByNoticeModel, NoticeModel, NoticesModel
from dlspawner.manager.http.auth import may_read_notices, recipient_of
from dlspawner.manager.http.handlers import (
    NOT_LEADER,
    NOT_YET,
    ApiHandler,
    HttpProblem,
    IdentityHandler,
    ManagerContext,
)
from dlspawner.manager.model.access import AccessRight
from dlspawner.manager.model.notice import CannotKeep, Notice, NoticeKind, Recipient, version
from dlspawner.manager.state.job_store import JobStore, NoticeStore, NoticeStoreClosed, withdraw
from dlspawner.manager.state.notify import mark_read

GONE = "There is no such notice of yours; what it was about is over, or it was replaced by another one."
NO_KEEPING = "This job cannot be kept alive."
_LEVELS = {
    NoticeKind.APPROVALS: "info",
    NoticeKind.APPROVED: "info",
    NoticeKind.PREEMPTION_CANCELLED: "info",
    NoticeKind.CONFIG_INVALID: "error",
    NoticeKind.HUB_FORBIDS: "error",
}
_PAGES = {NoticeKind.APPROVALS: "approvals", NoticeKind.DENIED: "approvals"}  # of ours, that says more


def leader_store(manager: ManagerContext) -> JobStore:
    """Returns the job store of the leader; 503 when another Manager leads."""
    if manager.leader is None:
        raise HttpProblem(503, NOT_LEADER)
    if manager.leader.admission is None:
        raise HttpProblem(503, NOT_YET)
    return manager.leader.admission.store


def level_of(notice: Notice) -> str:
    return _LEVELS.get(notice.kind, "warning")


def page(notice: Notice) -> str | None:
    """The page of ours that says more."""
    return _PAGES.get(notice.kind)


def notice_view(notice: Notice, now: datetime) -> NoticeModel:
    """A notice as its reader gets it ``now``."""
    return NoticeModel(
        id=notice.id,
        kind=notice.kind,
        level=level_of(notice),
        sentence=with_time(notice.text, notice.until, now),
        text=notice.text,
        job=notice.job,
        user=notice.user,
        server=notice.server,
        posted=notice.posted,
        until=notice.until,
        ends=notice.ends,
        keep=notice.keep,
        seen=notice.seen is not None,
        page=page(notice),
    )


class NoticeApiHandler(ApiHandler):
    def reader(self) -> Recipient:
        identity = self.caller
        self.refuse(may_read_notices(identity))
        reader = recipient_of(identity, by_token=self.by_token)
        if not reader.everything and own_server(identity) is None:
            self.viewer(AccessRight.SEE)  # notices name servers and say what becomes of them
        return reader

    def own(self, id_: str) -> Notice:
        """Returns the caller's notice with this id; the gateway passes notices on and answers for no user."""
        reader = self.reader()
        if not reader.everything:
            for notice in leader_store(self.manager).notices.read(reader, self.manager.now()):
                if notice.id == id_:
                    return notice
        raise HttpProblem(404, GONE)


class NoticesHandler(NoticeApiHandler):
    _waiting: asyncio.Task[None] | None = None

    async def get(self) -> None:
        reader, board = self.reader(), leader_store(self.manager).notices
        query, clock = self.read_query(NoticesQuery), asyncio.get_running_loop().time
        until = clock() + query.wait
        while True:
            found = board.read(reader, self.manager.now())
            left = until - clock()
            if left <= 0 or version(found) != query.after:
                break
            if not await self._changed(board, reader, left):
                return  # the client has gone
        now = self.manager.now()
        self.reply(NoticesModel(version=version(found), notices=[notice_view(notice, now) for notice in found]))

    async def _changed(self, board: NoticeStore, reader: Recipient, seconds: float) -> bool:
        """Wait, without holding up a stop of this process; False when the client has gone."""
        self._waiting = asyncio.create_task(board.changed(reader, seconds), name="a reader of notices")
        self.manager.running.end()
        try:
            await asyncio.wait({self._waiting})
        finally:
            self.manager.running.begin()
            self._waiting.cancel()
        if self._waiting.cancelled():
            return False
        try:
            self._waiting.result()
        except NoticeStoreClosed:
            raise HttpProblem(503, NOT_YET) from None
        return True

    def on_connection_close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


class NoticeReadHandler(NoticeApiHandler):
    """One of their notices was read."""

    async def post(self, id_: str) -> None:
        notice = self.own(id_)
        check_may_answer(self)
        await leader_store(self.manager).transact(lambda transaction: mark_read(transaction, notice))
        self.set_status(204)


class NoticeKeepAliveHandler(NoticeApiHandler):
    async def post(self, id_: str) -> None:
        notice = self.own(id_)
        check_may_answer(self)
        self.reply(KeptByNoticeModel(said=await keep_alive(self.manager, notice)))


def check_may_answer(handler: IdentityHandler) -> None:
    """The job's own token is enough for its job; any other has to be one that may act on jobs."""
    if own_server(handler.caller) is None:
        handler.viewer(AccessRight.ACT)


async def keep_alive(manager: ManagerContext, notice: Notice) -> str:
    """Keeps the job of a notice alive; returns the sentence for its owner, 409 with one when that is not possible."""
    store, culler = leader_store(manager), manager.leader.culler if manager.leader is not None else None
    if culler is None or not notice.keep:
        raise HttpProblem(409, NO_KEEPING)
    try:
        said = await culler.keep_alive(notice.job)
        await store.transact(lambda transaction: withdraw(transaction, notice.job, notice.kind))
    except CannotKeep as problem:
        raise HttpProblem(409, str(problem)) from None
    return said
