"""``dlspawner logs``: what a job has printed, and what it prints from now on.

The service ends every log that it follows after ten minutes, and begins the next one with the last lines. A log that is
followed is searched here, line by line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dlspawner.client import text
from dlspawner.client.commands import find
from dlspawner.client.service import ClientProblem, Refused, Service, part

_LAST = 10  # lines that the service begins with when it follows
_ITS_SECONDS = 590.0  # what has gone on for so long has ended because of its time
_LOOK_SECONDS, _LOOKS = 2.0, 15  # for the end of a job whose log has ended

AGAIN = "The service ends what it follows after ten minutes. Asking again; lines may come twice."
GOES_ON = "The log has ended and the job has not: a container starts again, or the service did. Ask again to go on."
NO_TAIL = "A log that is followed begins with its last lines: --tail is for a log that is only read."


def print_log(given: argparse.Namespace, service: Service) -> int:
    if given.follow and given.tail is not None:
        raise ClientProblem(NO_TAIL, 2)
    job = find(service, given.job)
    try:
        if given.follow:
            _follow(given, service, job)
        else:
            query = {"search": given.search, "tail": None if given.tail is None else str(given.tail)}
            _print(given, _lines(given, service, job, {name: value for name, value in query.items() if value}))
    except Refused as no:
        if no.status != 404:
            raise
        raise ClientProblem(_why_none(job) or str(no), 1) from None  # there is the job, and no log of it
    return 0


def _why_none(job: dict[str, Any]) -> str:
    if job.get("started") or job["state"] == "ended":
        return ""
    why = job.get("why") or ""
    return f"{text.title(job)} has not started, so it has printed nothing: it is {text.standing(job)}. {why}".strip()


def _lines(given: argparse.Namespace, service: Service, job: dict[str, Any], query: dict[str, str]) -> Iterator[bytes]:
    query = query | ({"previous": "true"} if given.previous else {})
    query = query | ({"container": given.container} if given.container else {})
    return service.lines(f"jobs/{part(job['id'])}/log", query, follow="follow" in query)


def _follow(given: argparse.Namespace, service: Service, job: dict[str, Any]) -> None:
    """Until the job has ended; ClientProblem when only its log has."""
    last = deque[bytes](maxlen=_LAST)
    while True:
        began = time.monotonic()
        lines = not_yet(_lines(given, service, job, {"follow": "true"}), list(last))
        _print(given, _kept(lines, last))
        in_time = time.monotonic() - began < _ITS_SECONDS
        if _has_ended(service, job, _LOOKS if in_time else 1):
            return
        if in_time:
            raise ClientProblem(GOES_ON, 5)
        print(f"dlspawner: {AGAIN}", file=sys.stderr)


def _kept(lines: Iterable[bytes], last: deque[bytes]) -> Iterator[bytes]:
    for line in lines:
        last.append(line)
        yield line


def not_yet(lines: Iterator[bytes], last: Sequence[bytes]) -> Iterator[bytes]:
    """The lines without those at their beginning that are the last ones of before, as many as may be."""
    held: list[bytes] = []
    known: list[int] = []
    for line in lines if last else ():
        held.append(line)
        # How many of them may be known: so many of the last ones begin as what has come.
        known = [many for many in range(len(last), 0, -1) if held[:many] == [*last[-many:]][: len(held)]]
        if not known or known[0] <= len(held):
            break
    yield from held[next((many for many in known if many <= len(held)), 0) :]
    yield from lines


def _has_ended(service: Service, job: dict[str, Any], looks: int) -> bool:
    for left in reversed(range(looks)):
        if service.get(f"jobs/{part(job['id'])}")["state"] == "ended":
            return True
        if left:
            service.sleep(_LOOK_SECONDS)
    return False


def _print(given: argparse.Namespace, lines: Iterable[bytes]) -> None:
    wanted = (given.search or "").casefold() if given.follow else ""
    for line in lines:
        shown = line.decode("utf-8", "replace")
        if wanted not in shown.casefold():
            continue
        if given.json:
            shown = json.dumps({"line": shown.removesuffix("\n")}) + "\n"
        # To a file everything as it is; to a terminal nothing that moves its cursor.
        sys.stdout.write(text.printable(shown, besides="\n\t") if sys.stdout.isatty() else shown)
        if given.follow:
            sys.stdout.flush()
