"""The base of resources for users and programs: the leader's services, the query, the jobs that a viewer may see.

A long answer outlives no right: while it is sent, its reader is checked again and again.

A check without an answer ends nothing: as with sessions of the SSH gateway, an answer that did not come is no answer.

"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from dlspawner.clients.hub import HubError, IdentityKind, own_server
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.http.handlers import (
    NOT_LEADER,
    NOTHING_HERE,
    ApiHandler,
    HttpProblem,
    IdentityHandler,
    ManagerContext,
    log,
)
from dlspawner.manager.model.access import AccessRight, Viewer
from dlspawner.manager.model.job_history import JobHistory

NO_JOB = "There is no such job of yours."
ONLY_SEEN = "You may see this job, and not do that to it."


def leader_of(manager: ManagerContext) -> LeaderElector:
    """The part that decides; 501 where there is none."""
    if manager.leader is None:
        raise HttpProblem(501, NOT_LEADER)
    return manager.leader


class JobApiHandler(ApiHandler):
    @property
    def leader(self) -> LeaderElector:
        return leader_of(self.manager)

    def sees(self) -> Viewer:
        return self.viewer(AccessRight.SEE)

    def acts(self) -> Viewer:
        return self.viewer(AccessRight.ACT)

    async def seen(self, job: str, viewer: Viewer) -> JobHistory:
        """Returns a job that the viewer may see; 404 for any other, existing or not."""
        kept = await self.leader.repository.visible_job(viewer, job)
        if kept is None:
            raise HttpProblem(404, NO_JOB)
        return kept

    async def acted(self, job: str) -> JobHistory:
        """Returns a job that the viewer may act on; 403 for one that is only visible, 404 for any other."""
        kept = await self.seen(job, self.sees())
        if not self.acts().reaches(kept.user, kept.team):
            raise HttpProblem(403, ONLY_SEEN)
        return kept


def as_name(text: str) -> str:
    """Returns the text as a name that a database and an address can hold; else no user or server has it."""
    half = any("\ud800" <= char <= "\udfff" for char in text)  # of a letter: JSON can carry it, UTF-8 can not
    return "" if half or "\0" in text or len(text) > 255 else text


def read_host_keys(file: Path | None) -> tuple[str, ...]:
    """The keys in a file of public keys, one a line; none where there is no such file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file is not None else []
    except (OSError, UnicodeDecodeError) as problem:
        log.warning("ssh-config: host keys cannot be read: %s (Manager.ssh_host_key_file)", problem)
        return ()
    words = [line.split() for line in lines if not line.startswith("#")]
    return tuple(" ".join(line[:2]) for line in words if len(line) > 1)


RECHECK_SECONDS = 30.0
ENDED = "This stream has ended: {}"
_CANNOT_BE_ASKED = 500  # and more: not here, not now


async def until_access_ends(handler: ApiHandler, allowed: Callable[[], Awaitable[object]]) -> str:
    """Waits until this request's reader may not have it any more; returns the sentence for the reader.

    ``allowed`` raises `HttpProblem` then; the handler has the reader, identified again.
    """
    while True:
        await asyncio.sleep(RECHECK_SECONDS)
        try:
            await handler.recognise()
            await allowed()
        except HttpProblem as problem:
            if problem.status_code < _CANNOT_BE_ASKED:
                return ENDED.format(problem.detail)
        except (HubError, DatabaseUnavailable):
            continue


def matches_search(words: str, *texts: str) -> bool:
    """True if one of the texts contains these words, in any case."""
    needle = words.casefold()
    return any(needle in text.casefold() for text in texts)


def check_owner(handler: IdentityHandler, user: str, right: AccessRight) -> None:
    """404 for all callers but the owner and administrators of the Hub, a job with its token among them.

    403 for a token of theirs without the scope.
    """
    who = handler.caller
    if who.kind is not IdentityKind.USER or own_server(who) is not None or not (who.name == user or who.admin):
        raise HttpProblem(404, NOTHING_HERE)
    found = handler.viewer(right)
    if not (found.all or found.name == user):
        raise HttpProblem(404, NOTHING_HERE)


def page_path(prefix: str, user: str, server: str) -> str:
    return f"{prefix}wait/{quote(user, safe='@')}/{quote(server, safe='')}"
