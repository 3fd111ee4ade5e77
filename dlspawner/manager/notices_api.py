"""REST resources of notices, under /services/jobs/api/.

    GET   notices?after=VERSION&wait=SECONDS    what is open for whoever asks
    POST  notices/{id}/seen                     its reader has read it
    POST  notices/{id}/keep                     *keep alive*: the job goes on although it is not used
    GET   users/{name}/notices                  for the Hub's own pages

An answer is always the whole list, with its version. With the version of the list that the client has, the answer waits
until the list is another one, at most ``wait`` seconds (300 at most): nothing is missed, whatever was restarted between
two requests. Waiting costs an event and no question to the Hub; who may read was settled when the request came, so a
token that is revoked meanwhile learns of its own job's notices until then.
"""

from __future__ import annotations

import asyncio
import math
from datetime import datetime

from dlspawner.core.json_values import time
from dlspawner.core.telling import told
from dlspawner.hubapi import own_server
from dlspawner.manager.access import Right
from dlspawner.manager.api import as_name
from dlspawner.manager.approval.told import waiting_for
from dlspawner.manager.book import Book
from dlspawner.manager.identity import audience, may_read_notices
from dlspawner.manager.jobs_api import NOT_HERE, NOT_YET
from dlspawner.manager.ledger import Fenced
from dlspawner.manager.notices import (
    Audience,
    Board,
    BoardClosed,
    CannotKeep,
    Kind,
    Notice,
    see,
    version,
    withdraw,
)
from dlspawner.manager.web import ApiHandler, Asking, ForHub, Manager, Problem

LONGEST_WAIT = 300.0
GONE = "There is no such notice of yours; what it was about is over, or it was replaced by another one."
NO_KEEPING = "This job cannot be kept alive."
_LEVELS = {
    Kind.APPROVALS: "info",
    Kind.APPROVED: "info",
    Kind.GOES_ON: "info",
    Kind.FILE_BROKEN: "error",
    Kind.HUB_REFUSES: "error",
}
_PAGES = {Kind.APPROVALS: "approvals", Kind.DENIED: "approvals"}  # of ours, that says more


def acting_book(manager: Manager) -> Book:
    """The book of the Manager that acts; 503 when that is not this one."""
    if manager.acting is None:
        raise Problem(503, NOT_HERE)
    if manager.acting.desk is None:
        raise Problem(503, NOT_YET)
    return manager.acting.desk.book


def level(notice: Notice) -> str:
    """How serious it is: info, warning or error."""
    return _LEVELS.get(notice.kind, "warning")


def page(notice: Notice) -> str | None:
    """The page of ours that says more."""
    return _PAGES.get(notice.kind)


def as_json(notice: Notice, now: datetime) -> dict[str, object]:
    """A notice as its reader gets it.

    ``sentence`` is all of it, as it is read at ``now``; in ``text`` the time is left open, ``{when}``, for those who
    tell ``until`` in their reader's own time zone. After ``ends`` it says nothing any more.
    """
    return {
        "id": notice.id,
        "kind": notice.kind.value,
        "level": level(notice),
        "sentence": told(notice.text, notice.until, now),
        "text": notice.text,
        "job": notice.job,
        "user": notice.user,
        "server": notice.server,
        "posted": time(notice.posted),
        "until": time(notice.until),
        "ends": time(notice.ends),
        "keep": notice.keep,
        "seen": notice.seen is not None,
        "page": page(notice),
    }


class ForReaders(ApiHandler):
    """A resource of somebody who may read notices."""

    def reader(self) -> Audience:
        identity = self.known()
        self.refuse(may_read_notices(identity))
        reader = audience(identity, by_token=self.by_token)
        if not reader.everything and own_server(identity) is None:
            self.viewer(Right.SEE)  # notices name servers and say what becomes of them
        return reader

    def own(self, id_: str) -> Notice:
        """The notice with this id, when it is for whoever asks; the gateway passes on and answers for nobody."""
        reader = self.reader()
        if not reader.everything:
            for notice in acting_book(self.manager).board.read(reader, self.manager.now()):
                if notice.id == id_:
                    return notice
        raise Problem(404, GONE)


class Notices(ForReaders):
    """What is open."""

    _waiting: asyncio.Task[None] | None = None

    async def get(self) -> None:
        reader, board = self.reader(), acting_book(self.manager).board
        known, clock = self.get_query_argument("after", ""), asyncio.get_running_loop().time
        until = clock() + _seconds(self.get_query_argument("wait", "0"))
        while True:
            found = board.read(reader, self.manager.now())
            left = until - clock()
            if left <= 0 or version(found) != known:
                break
            if not await self._changed(board, reader, left):
                return  # nobody listens any more
        now = self.manager.now()
        self.reply({"version": version(found), "notices": [as_json(notice, now) for notice in found]})

    async def _changed(self, board: Board, reader: Audience, seconds: float) -> bool:
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
        except BoardClosed:
            raise Problem(503, NOT_YET) from None
        return True

    def on_connection_close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


class Seen(ForReaders):
    """One of their notices was read."""

    async def post(self, id_: str) -> None:
        notice = self.own(id_)
        check_may_answer(self)
        await mark_seen(self.manager, notice)
        self.set_status(204)


class Keep(ForReaders):
    """The button of one of their notices."""

    async def post(self, id_: str) -> None:
        notice = self.own(id_)
        check_may_answer(self)
        self.reply({"said": await keep(self.manager, notice)})


class UserNotices(ForHub):
    """A person's notices for the Hub's home page; the Hub says whether they are an administrator."""

    def get(self, user: str) -> None:
        reader = Audience(as_name(user), admin=self.get_query_argument("admin", "") == "1")
        if self.manager.acting is None:  # of a Manager that decides nothing there are none
            self.reply({"notices": []})
            return
        book = acting_book(self.manager)
        asked = waiting_for(book, reader.user, admin=reader.admin)
        now = self.manager.now()
        found = (*book.board.read(reader, now), *asked)
        self.reply({"notices": [as_json(notice, now) for notice in found]})


def check_may_answer(handler: Asking) -> None:
    """The job's own token is enough for its job; any other has to be one that may act on jobs."""
    if handler.identity is not None and own_server(handler.identity) is None:
        handler.viewer(Right.ACT)


async def mark_seen(manager: Manager, notice: Notice) -> None:
    """Note it, durably."""
    try:
        await acting_book(manager).turn(lambda turn: see(turn, notice))
    except Fenced:
        raise Problem(503, NOT_YET) from None


async def keep(manager: Manager, notice: Notice) -> str:
    """Keep the job of a notice alive, and what its owner is told; 409 with a sentence when that is not possible."""
    book = acting_book(manager)
    if not notice.keep or book.keep_alive is None:
        raise Problem(409, NO_KEEPING)
    try:
        said = await book.keep_alive(notice.job)
        await book.turn(lambda turn: withdraw(turn, notice.job, notice.kind))
    except CannotKeep as problem:
        raise Problem(409, str(problem)) from None
    except Fenced:
        raise Problem(503, NOT_YET) from None
    return said


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_WAIT:
        raise Problem(422, f"wait is a number of seconds from 0 to {LONGEST_WAIT:g}.")
    return seconds
