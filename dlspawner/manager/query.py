"""What a list was asked for: filters, a page's size and a cursor, read from a query. PURE.

A cursor says where a page ends. It is a text that nobody needs to understand, holds no secret, and opens nothing: what
somebody may see is asked anew for every page.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from dlspawner.core.jobs import JobState
from dlspawner.manager.kept import JobCursor, JobFilter

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
    """A parameter that cannot be; the message is for whoever asked."""


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
    """Whether one of the texts has these words, in capitals or not."""
    needle = words.casefold()
    return any(needle in text.casefold() for text in texts)


def read_limit(given: Given) -> int:
    """How many a page has."""
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
    """How many places of a list without keys the pages before have told."""
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
