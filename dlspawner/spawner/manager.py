"""What the Hub asks the Manager: the one client of that link, with its deadline, its token and its sentences.

The Manager is asked while somebody waits for a start, so every question has one deadline over all its tries, and one
that is not answered ends in ``Refused``: deny by default. Jobs that run are not touched by it. Questions can be asked
again without harm; only those may be added here.

A session per question: they are few, and a spawner has no moment at which it could close one that it keeps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from dlspawner.backoff import FIRST_DELAY, LONGEST_DELAY, RETRIED, delays
from dlspawner.core.accounts import Numbers, UidRange
from dlspawner.core.link import link_token
from dlspawner.spawner.refusal import Refused

SECONDS = 10.0

SILENT = "The part of this Hub that keeps accounts does not answer. Running jobs go on. Try again soon."
BROKEN = "The Hub cannot tell your account in jobs. Ask an administrator."
FULL = "There is no account number left for you. Ask an administrator."


@dataclass(frozen=True, slots=True)
class Manager:
    """The Manager at ``url``, which ends in its service's prefix, asked as the Hub."""

    url: str
    service_token: str = field(repr=False)
    log: logging.Logger | logging.LoggerAdapter[logging.Logger]
    seconds: float = SECONDS

    async def account(self, user: str, uids: UidRange) -> Numbers:
        """The uid and gid that this user has for ever."""
        body = {"first_uid": uids.first, "last_uid": uids.last}
        status, answer = await self._ask("PUT", f"/api/users/{quote(user, safe='')}/account", body)
        if status == 409:
            raise self._refused(FULL, f"user={user} every uid of accounts: in the cluster file is taken")
        try:
            return Numbers(int(answer["uid"]), int(answer["gid"]))
        except (KeyError, TypeError, ValueError):
            raise self._refused(BROKEN, f"user={user} the Manager answered {status} to the account") from None

    async def _ask(self, method: str, path: str, body: Mapping[str, object]) -> tuple[int, Any]:
        """Status and JSON of the answer; ``None`` for what is no JSON."""
        headers = {"Authorization": f"token {link_token(self.service_token)}"}
        url = URL(self.url.rstrip("/") + path, encoded=True)
        last = "no connection"
        try:
            async with asyncio.timeout(self.seconds), aiohttp.ClientSession() as session:
                for delay in delays(FIRST_DELAY, LONGEST_DELAY):
                    try:
                        async with session.request(
                            method, url, json=body, headers=headers, allow_redirects=False
                        ) as answer:
                            if answer.status not in RETRIED:
                                return answer.status, await _json(answer)
                            last = f"status {answer.status}"
                    except aiohttp.ClientError as problem:
                        last = type(problem).__name__
                    await asyncio.sleep(delay)
        except TimeoutError:
            pass
        raise self._refused(SILENT, f"no answer within {self.seconds:g} s ({last})")

    def _refused(self, sentence: str, line: str) -> Refused:
        self.log.error("manager=%s %s", self.url, line)
        return Refused(sentence, reason="manager", status=429 if sentence is SILENT else 403)


async def _json(answer: aiohttp.ClientResponse) -> Any:
    try:
        return await answer.json(content_type=None) if answer.status < 300 else None
    except ValueError:
        return None
