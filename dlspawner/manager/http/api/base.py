"""The base of resources for users and programs: the leader's services, the query, the jobs that a viewer may see.

A long answer outlives no right: while it is sent, its reader is checked again and again.

A check without an answer ends nothing: as with sessions of the SSH gateway, an answer that did not come is no answer.

What a list was asked for: filters, a page's size and a cursor, read from a query. PURE.

A cursor says where a page ends. It is an opaque text without a secret or a right: the
right of the viewer is checked again for every page.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from dlspawner.clients.hub import HubError, HubIdentity, IdentityKind, own_server
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionService
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.http.handlers import (
    NOT_LEADER,
    NOTHING_HERE,
    ApiHandler,
    HttpProblem,
    IdentityHandler,
    ManagerContext,
    admission_of,
    log,
)
from dlspawner.manager.model.access import AccessRight, Viewer
from dlspawner.manager.model.job_history import JobCursor, JobFilter, JobHistory

NO_JOB = "There is no such job of yours."
ONLY_SEEN = "You may see this job, and not do that to it."


def leader_of(manager: ManagerContext) -> LeaderElector:
    """The part that decides; 501 where there is none."""
    if manager.leader is None:
        raise HttpProblem(501, NOT_LEADER)
    return manager.leader


class JobApiHandler(ApiHandler):
    """A resource for viewers of jobs."""

    @property
    def leader(self) -> LeaderElector:
        """The part that decides; 501 where there is none."""
        return leader_of(self.manager)

    @property
    def admission(self) -> AdmissionService:
        """Returns the admission service; 503 on a Manager that does not lead."""
        return admission_of(self.manager)

    def sees(self) -> Viewer:
        """The viewer, by the right to see."""
        self.check_parameters()
        return self.viewer(AccessRight.SEE)

    def acts(self) -> Viewer:
        """The viewer, by the right to act."""
        self.check_parameters()
        return self.viewer(AccessRight.ACT)

    async def seen(self, job: str, viewer: Viewer) -> JobHistory:
        """Returns a job that the viewer may see; 404 for any other, existing or not."""
        kept = await self.leader.ledger.visible_job(viewer, job)
        if kept is None:
            raise HttpProblem(404, NO_JOB)
        return kept

    async def acted(self, job: str) -> JobHistory:
        """Returns a job that the viewer may act on; 403 for one that is only visible, 404 for any other."""
        kept = await self.seen(job, self.sees())
        if not self.acts().reaches(kept.user, kept.team):
            raise HttpProblem(403, ONLY_SEEN)
        return kept

    def given(self) -> Given:
        """The query; 422 for what is no text."""
        try:
            return {name: [value.decode() for value in values] for name, values in self.request.query_arguments.items()}
        except UnicodeDecodeError:
            raise HttpProblem(422, "The query is not UTF-8.") from None

    def searched(self) -> str:
        """The words that are searched for, where that is all that may be asked; 422 for anything else."""
        given = self.given()
        try:
            check_parameters(given, "search")
            return read_search(given)
        except InvalidQuery as problem:
            raise HttpProblem(422, str(problem)) from None


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
            handler.check_parameters()
            await allowed()
        except HttpProblem as problem:
            if problem.status_code < _CANNOT_BE_ASKED:
                return ENDED.format(problem.detail)
        except (HubError, DatabaseUnavailable):
            continue


DEFAULT_LIMIT, MOST = 50, 500
LIVE = "live"
FILTERS = ("user", "team", "state", "template", "gpu_type", "server", "preemptible", "since", "until")
_TEXTS = ("user", "server", "team", "template", "gpu_type")
_LIVE = frozenset(JobState) - {JobState.ENDED}
_LONGEST = 255
LONGEST_SEARCH = 200
_ID = re.compile(r"[a-z0-9-]{1,64}")  # of what lists hold
Given = Mapping[str, Sequence[str]]


class InvalidQuery(ValueError):
    """An invalid parameter; the message is for the caller."""


def check_parameters(given: Given, *names: str) -> None:
    """Wrong for a parameter of another name, so that a typing error filters nothing unseen."""
    for name in given:
        if name not in names:
            raise InvalidQuery(f"There is no parameter {name[:100]!r}; known are {', '.join(sorted(names))}.")


def read_filter(given: Given) -> JobFilter:
    """Which jobs are wanted."""
    texts = {name: _one(given, name) for name in _TEXTS}
    if any(value is not None and ("\0" in value or len(value) > _LONGEST) for value in texts.values()):
        raise InvalidQuery("A name of that kind belongs to nothing.")
    return JobFilter(
        **texts,
        preemptible=_boolean(given),
        states=_states(given.get("state", ())),
        since=_time(given, "since"),
        until=_time(given, "until"),
    )


def read_search(given: Given) -> str:
    """The words that are searched for; empty for none."""
    words = _one(given, "search") or ""
    if "\0" in words or len(words) > LONGEST_SEARCH:
        raise InvalidQuery(f"What is searched for has at most {LONGEST_SEARCH} letters.")
    return words


def matches_search(words: str, *texts: str) -> bool:
    """True if one of the texts contains these words, in any case."""
    needle = words.casefold()
    return any(needle in text.casefold() for text in texts)


def read_limit(given: Given) -> int:
    """Returns the number of entries of a page."""
    text = _one(given, "limit")
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= MOST):
        raise InvalidQuery(f"limit is a whole number from 1 to {MOST}.")
    return int(text)


def read_after(given: Given) -> JobCursor | None:
    """The place after which the page begins."""
    text = _one(given, "cursor")
    if not text:
        return None
    try:
        at, job = json.loads(base64.b64decode(text, altchars=b"-_", validate=True))
        place = JobCursor(datetime.fromisoformat(at), job)
        if place.submitted.tzinfo is None or not _ID.fullmatch(job):
            raise ValueError
        place.submitted.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidQuery("This cursor is none of ours: take the one that the page before gave as next.") from None
    return place


def cursor(place: JobCursor) -> str:
    """The text that ``read_after`` reads."""
    content = json.dumps([place.submitted.astimezone(UTC).isoformat(), place.job])
    return base64.b64encode(content.encode(), altchars=b"-_").decode()


def read_index(given: Given) -> int:
    """Returns the number of entries on the earlier pages of a list without keys."""
    text = _one(given, "cursor")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise InvalidQuery("This cursor is none of ours: take the one that the page before gave as next.")
    return int(text)


def _one(given: Given, name: str) -> str | None:
    values = given.get(name, ())
    if len(values) > 1:
        raise InvalidQuery(f"{name} can be given once.")
    return values[0] if values else None


def _states(words: Sequence[str]) -> frozenset[JobState]:
    found: set[JobState] = set()
    for word in words:
        if word == LIVE:
            found |= _LIVE
        elif word in {state.value for state in JobState}:
            found.add(JobState(word))
        else:
            names = ", ".join(state.value for state in JobState)
            raise InvalidQuery(f"There is no state {word[:100]!r}; known are {LIVE} (all but ended), {names}.")
    return frozenset(found)


def _boolean(given: Given) -> bool | None:
    text = _one(given, "preemptible")
    if text not in {None, "true", "false"}:
        raise InvalidQuery("preemptible is true or false.")
    return None if text is None else text == "true"


def _time(given: Given, name: str) -> datetime | None:
    text = _one(given, name)
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidQuery(f"{name} is a time such as 2031-12-24T18:00:00Z.") from None


def owner(handler: IdentityHandler, user: str, right: AccessRight) -> HubIdentity:
    """Returns the caller if the job is theirs: owners, and administrators of the Hub. Never a job with its token.

    403 for a token of theirs without the scope.
    """
    who = handler.identity
    if (
        who is None
        or who.kind is not IdentityKind.USER
        or own_server(who) is not None
        or not (who.name == user or who.admin)
    ):
        raise HttpProblem(404, NOTHING_HERE)
    found = handler.viewer(right)
    if not (found.all or found.name == user):
        raise HttpProblem(404, NOTHING_HERE)
    return who


def page_path(prefix: str, user: str, server: str) -> str:
    """Returns the path of the page of this server's pending job."""
    return f"{prefix}wait/{quote(user, safe='@')}/{quote(server, safe='')}"
