"""``dlspawner logs``: a job's output so far, and new output as it comes.

The service ends every followed log after ten minutes, and continues with the very next line at the next request. A
followed log is searched here, line by line.
"""

from __future__ import annotations

import argparse
import http
import json
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from dlspawner.client import text
from dlspawner.client.commands import find
from dlspawner.client.service import ClientProblem, Refused, Service, part

_LOOK_SECONDS, _LOOKS = 2.0, 15  # to notice a job's end after the end of its log

GOES_ON = "The log has ended and the job has not: a container starts again, or the service did. Ask again to go on."
NO_TAIL = "A log that is followed begins with its last lines: --tail is for a log that is only read."

NOTHING_FOUND = "No line has these words."


def print_log(given: argparse.Namespace, service: Service) -> int:
    if given.follow and given.tail is not None:
        raise ClientProblem(NO_TAIL, 2)
    job = find(service, given.job)
    if given.tail == 0:  # to the service 0 means all lines
        return 0
    try:
        if given.follow:
            _follow(given, service, job)
        else:
            query = {"search": given.search, "tail": str(given.tail or 0)}
            found = _print(given, _lines(given, service, job, {name: value for name, value in query.items() if value}))
            if given.search and not found:
                print(f"dlspawner: {NOTHING_FOUND}", file=sys.stderr)
    except Refused as no:
        if no.status != 404:
            raise
        raise ClientProblem(_why_none(job) or str(no), 1) from None  # the job exists, its log does not
    return 0


def _why_none(job: dict[str, Any]) -> str:
    if job.get("started") or job["state"] == "ended":
        return ""
    why = job.get("why") or ""
    return f"{text.title(job)} has not started, so it has printed nothing: it is {text.standing(job)}. {why}".strip()


def _lines(given: argparse.Namespace, service: Service, job: dict[str, Any], query: dict[str, str]) -> Iterator[bytes]:
    named = {"previous": "true" if given.previous else "", "container": given.container, "pod": given.pod}
    query = query | {name: value for name, value in named.items() if value}
    return service.lines(f"jobs/{part(job['id'])}/log", query, follow="follow" in query)


def _follow(given: argparse.Namespace, service: Service, job: dict[str, Any]) -> None:
    """Prints until the job has ended; ClientProblem if only its log has."""
    place = uuid.uuid4().hex
    wanted, quick = {"place": place}, 0
    while quick < _LOOKS:
        began = time.monotonic()
        try:
            _print(given, _lines(given, service, job, {"follow": "true", **wanted}))
        except Refused as no:
            if no.status != http.HTTPStatus.GONE:
                raise
            break
        wanted = {"after": place}
        quick = quick + 1 if time.monotonic() - began < _LOOK_SECONDS else 0
        if quick > 1:  # the cluster is unreachable
            service.sleep(_LOOK_SECONDS)
    if not _has_ended(service, job, _LOOKS):
        raise ClientProblem(GOES_ON, 5)


def _has_ended(service: Service, job: dict[str, Any], looks: int) -> bool:
    for left in reversed(range(looks)):
        if service.get(f"jobs/{part(job['id'])}")["state"] == "ended":
            return True
        if left:
            service.sleep(_LOOK_SECONDS)
    return False


def _print(given: argparse.Namespace, lines: Iterable[bytes]) -> bool:
    """Prints the lines; True if there were any."""
    wanted, found = (given.search or "").casefold() if given.follow else "", False
    for line in lines:
        shown = line.decode("utf-8", "replace")
        if wanted not in shown.casefold():
            continue
        found = True
        if given.json:
            shown = json.dumps({"line": shown.removesuffix("\n")}) + "\n"
        # A file receives the text unchanged; a terminal receives nothing that moves its cursor.
        sys.stdout.write(text.printable(shown, besides="\n\t") if sys.stdout.isatty() else shown)
        if given.follow:
            sys.stdout.flush()
    return found
