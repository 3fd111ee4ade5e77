"""The one place of the client that speaks HTTP: the Manager's resources, with a token.

No redirect is followed: the token is for this address and no other. What was not answered may be asked again; a
submission carries a key of its own, so that asking twice starts one job.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.parse import quote, urlencode

TIMEOUT_SECONDS = 60.0
_NOT_TAKEN = "The token is not taken. Make another one on the Hub's token page, and run: dlspawner login"
_TRIES, _PAUSE_SECONDS = 3, 1.0
_MOST = 16 * 1024 * 1024  # of JSON
_NO_ANSWER = (urllib.error.URLError, OSError, http.client.HTTPException)

Query = Mapping[str, str | list[str]]


class ClientProblem(Exception):
    """Why a command cannot go on, in a sentence, and the exit code that says so to scripts."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Refused(ClientProblem):
    """The service said no; 404 is exit code 3, a token that it does not take 4, any other no 1."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence, {404: 3, 401: 4}.get(status, 1))
        self.status = status


class Unreachable(ClientProblem):
    """Nobody answered, or it was not the service: exit code 5."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, 5)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Service:
    """The Manager behind a Hub's public address, such as ``https://hub.example.org``."""

    url: str
    token: str = field(repr=False)
    sleep: Callable[[float], None] = time.sleep

    def get(self, path: str, query: Query | None = None) -> Any:
        """The JSON at a path below ``/services/jobs/api/``."""
        return self._json("GET", _with(path, query))

    def post(self, path: str, body: object = None, *, key: str = "") -> Any:
        """Ask for something to be done. With a ``key`` it is tried again when nobody answers."""
        return self._json("POST", path, {} if body is None else body, key)

    def delete(self, path: str) -> Any:
        return self._json("DELETE", path, key="again")  # to end what has ended is no error

    def items(self, path: str, query: Query | None = None) -> Iterator[dict[str, Any]]:
        """All items of a list, page by page."""
        asked = dict(query or {})
        while True:
            page = self.get(path, asked)
            if not isinstance(page.get("items"), list):
                raise _strange(self.url)
            yield from page["items"]
            if page.get("next") is None:
                return
            asked["cursor"] = str(page["next"])

    def me(self) -> str:
        """The name of whoever the token belongs to, as the Hub says."""
        try:
            name = self._json("GET", f"{self.url}/hub/api/user").get("name")
        except Refused as no:
            # JupyterHub answers 403 to a token that it does not know.
            raise Refused(401, _NOT_TAKEN) if no.status == 403 else no from None
        if not isinstance(name, str):
            raise _strange(self.url)
        return name

    def stream(self, path: str, query: Query | None = None) -> IO[bytes]:
        """The body at a path, to be read as it comes; the caller closes it."""
        return self._open("GET", _with(path, query), None, {})

    def _json(self, method: str, path: str, body: object = None, key: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Idempotency-Key": key} if key and method == "POST" else {}
        for left in reversed(range(_TRIES)):
            try:
                with self._open(method, path, data, headers) as answer:
                    return _read(answer.read(_MOST), self.url)
            except _NO_ANSWER as problem:
                if not left or (method == "POST" and not key):
                    raise Unreachable(f"{self.url} does not answer ({_why(problem)}).") from problem
            except Refused as no:
                if no.status != 503 or not left or (method == "POST" and not key):
                    raise
            self.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _open(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> IO[bytes]:
        url = path if path.startswith(self.url) else f"{self.url}/services/jobs/api/{path}"
        request = urllib.request.Request(url, data=data, method=method)  # noqa: S310 - `login` takes only http(s)
        for name, value in {"Authorization": f"token {self.token}", **headers}.items():
            request.add_header(name, value)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            opened: IO[bytes] = urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as answer:
            with answer:
                raise _refused(answer, self.url) from None
        return opened


def part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _with(path: str, query: Query | None) -> str:
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


def _read(body: bytes, url: str) -> dict[str, Any]:
    try:
        content = json.loads(body) if body.strip() else {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _strange(url)
    return content


def _refused(answer: urllib.error.HTTPError, url: str) -> ClientProblem:
    if answer.code < 400:
        return _strange(url)
    try:
        content = json.loads(answer.read(_MOST))
        sentence = content.get("detail") or content.get("message")
    except (ValueError, AttributeError, *_NO_ANSWER):
        sentence = None
    if answer.code == 401:
        sentence = _NOT_TAKEN
    return Refused(answer.code, str(sentence or f"{url} answered {answer.code} {answer.reason}."))


def _strange(url: str) -> Unreachable:
    return Unreachable(f"{url} does not answer as a Hub with dlspawner does. Is the address right?")


def _why(problem: Exception) -> str:
    return str(getattr(problem, "reason", "") or problem or type(problem).__name__)
