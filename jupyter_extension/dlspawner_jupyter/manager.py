"""The Manager's REST API, asked with the job's own token. Neither token nor body is ever logged."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

DEADLINE_SECONDS = 10.0


class Away(Exception):
    """The Manager gave no answer that can be used."""


class Manager:
    """The Manager at ``url``, which ends in its service's prefix."""

    def __init__(self, url: str, token: str, log: logging.Logger) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self.log = log

    async def ask(
        self, method: str, path: str, body: dict[str, object] | None = None, waits: float = 0.0
    ) -> tuple[int, Any]:
        """Status and JSON of the answer, ``None`` where there is none; ``waits`` is how long the Manager may take."""
        request = HTTPRequest(
            f"{self._url}/api/{path}",
            method=method,
            headers={"Authorization": f"token {self._token}", "Content-Type": "application/json"},
            body=json.dumps(body or {}) if method != "GET" else None,
            connect_timeout=DEADLINE_SECONDS,
            request_timeout=DEADLINE_SECONDS + waits,
            follow_redirects=False,
        )
        # A client of its own: tornado shares one among everybody in the process, and lets ten requests wait in it.
        client = AsyncHTTPClient(force_instance=True)
        try:
            answer = await client.fetch(request, raise_error=False)
            if answer.code in {502, 503, 504, 599}:
                raise Away(f"status {answer.code}")
            return answer.code, json.loads(answer.body) if answer.body else None
        except (OSError, HTTPClientError, ValueError) as problem:
            raise Away(type(problem).__name__) from problem
        finally:
            client.close()


def delays() -> Iterator[float]:
    """Seconds before each next try. The first are drawn from a wide range: after a restart everybody asks again."""
    longest = 10.0
    while True:
        yield random.uniform(0.5, longest)  # noqa: S311 - no secret
        longest = min(2 * longest, 120.0)
