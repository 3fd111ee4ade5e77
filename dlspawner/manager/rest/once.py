"""Requests that are carried out once, however often they come: by the key that their sender gave them.

``Idempotency-Key``: whoever sends the same request with the same key again within a day is answered as before, also
after a restart; the same key for another request is refused. Two at the same moment wait for each other.

A key is written down before the request is carried out and its answer after. A Manager that is killed in between leaves
a key without an answer: whoever sends the request again is answered by what it has brought about, and only if that is
nothing it is carried out. So it is when nobody knows what came of it, because the Hub or the database was away. What
was refused has made nothing and frees its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from dlspawner.manager import claimrows
from dlspawner.manager.claimrows import Claim
from dlspawner.manager.locks import NamedLocks
from dlspawner.manager.store import Database
from dlspawner.manager.web import HttpProblem

LONGEST = 255
OTHER_REQUEST = "This Idempotency-Key was used for another request. Use a new one for this."
NO_KEY = f"An Idempotency-Key is 1 to {LONGEST} visible ASCII characters."


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body and where what was made is found."""

    status: int
    content: Mapping[str, object]
    location: str = ""


class OtherRequest(Exception):
    """The key stands for another request."""


def is_key(text: str) -> bool:
    return 0 < len(text) <= LONGEST and all("!" <= char <= "~" for char in text)


def fingerprint(content: object) -> str:
    """The same for requests that ask for the same."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Once:
    """The requests of one sender; ``now`` is the time of the book."""

    store: Database
    locks: NamedLocks
    owner: str
    now: Callable[[], datetime]

    async def carry_out(
        self,
        key: str,
        request: str,
        work: Callable[[], Awaitable[Answer]],
        found: Callable[[datetime], Awaitable[Answer | None]],
    ) -> Answer:
        """The answer of ``work``, or of an earlier one; ``found``: what a request since then has brought about."""
        async with self.locks.held(self.owner, key):
            known = await self._claim(key, request)
            if known is not None and known.request != request:
                raise OtherRequest
            if known is not None and known.status is not None:
                return _read(known)
            async with self._released_if_refused(key):
                answer = await found(known.made) if known is not None else None
                answer = answer or await work()
                await self._settle(key, answer)
            return answer

    async def _claim(self, key: str, request: str) -> Claim | None:
        return await self.store.write(
            lambda connection: claimrows.claim(connection, self.owner, key, request, self.now())
        )

    async def _settle(self, key: str, answer: Answer) -> None:
        text = json.dumps({"content": answer.content, "location": answer.location})
        await self.store.write(lambda connection: claimrows.settle(connection, self.owner, key, answer.status, text))

    @contextlib.asynccontextmanager
    async def _released_if_refused(self, key: str) -> AsyncIterator[None]:
        """Only a no has made nothing for certain: the key of anything else stays, and is looked after when it comes."""
        try:
            yield
        except HttpProblem as no:
            if no.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                await self.store.write(lambda connection: claimrows.release(connection, self.owner, key))
            raise


def _read(known: Claim) -> Answer:
    told = json.loads(known.answer)
    return Answer(known.status or 200, told["content"], told["location"])
