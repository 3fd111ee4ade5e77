"""The HTTP client of the Manager's REST API, with a token.

No redirect is followed: the token is for this address and no other. A request without an answer may be repeated: the
service answers a repeated submission with the existing job. Only JSON is an answer of the service: while it is down,
the Hub and its proxy answer in its place, with pages for browsers and any status.
"""

from __future__ import annotations

import http
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from dlspawner.client.text import printable

# Time-outs between two bytes. A query is answered at once or not at all; the Hub may need a while for an action; a
# followed log is as silent as its job (the service ends it after ten minutes).
ASK_SECONDS, DO_SECONDS, FOLLOW_SECONDS = 15.0, 60.0, 660.0
PAGE = 500  # items of a list, at most
_NOT_TAKEN = "The token is not taken. Make another one on the Hub's token page, and run: dlspawner login"
_TRIES, _PAUSE_SECONDS = 3, 1.0
_MOST = 16 * 1024 * 1024  # bytes of JSON
# UnicodeError: an invalid host name.
_NO_ANSWER = (urllib.error.URLError, OSError, http.client.HTTPException, UnicodeError)
_ITS_OWN = {"application/json", "application/problem+json"}
_ITS_LOG = "text/plain"
_HUB = "Dlspawner-Hub"  # set by the service while the Hub does not answer
_NO_HUB = "The Hub does not answer at the moment: nothing starts until it does. Jobs that run go on."

_Answer = TypeVar("_Answer")
Query = Mapping[str, str | list[str]]


class ClientProblem(Exception):
    """The reason why a command cannot continue, as a sentence, and its exit code for scripts."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Refused(ClientProblem):
    """The service refused; exit code 3 for 404, 4 for a refused token, 5 for a service not yet ready, else 1."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence, {404: 3, 401: 4, 503: 5}.get(status, 1))
        self.status = status


class Unreachable(ClientProblem):
    """No answer, or not from the service: exit code 5."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, 5)


class _Away(Unreachable):
    """Another program answered in the service's place, with this status."""

    def __init__(self, url: str, said: str) -> None:
        super().__init__(
            f"{url} answers, but the service of its jobs does not ({said}). It may be starting anew: try again in a "
            "minute. Jobs that run go on. If it stays so, is the address right?"
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request; ``kind`` is an accepted content type beside JSON, ``wait`` the time-out between two bytes."""

    method: str
    path: str
    data: bytes | None = None
    wait: float = ASK_SECONDS
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """The Manager behind a Hub's public address, such as ``https://hub.example.org``."""

    url: str
    token: str = field(repr=False)
    sleep: Callable[[float], None] = time.sleep
    _said: set[str] = field(default_factory=set, repr=False)

    def get(self, path: str, query: Query | None = None) -> Any:
        """Returns the JSON at a path below ``/services/jobs/api/``."""
        return self._json("GET", _with(path, query))

    def post(self, path: str, body: object = None, *, repeats: bool = False) -> Any:
        """Sends a request that changes something; ``repeats`` sends it again if no answer comes."""
        return self._json("POST", path, {} if body is None else body, repeats=repeats)

    def delete(self, path: str) -> Any:
        return self._json("DELETE", path)  # ending an ended job is no error

    def address(self, url: str | None) -> str | None:
        """Returns a complete address for a path from the service, such as ``/user/carla/train/``."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{url}" if url and url.startswith("/") else url

    def items(self, path: str, query: Query | None = None) -> Iterator[dict[str, Any]]:
        """Yields all items of a list, page by page."""
        asked = dict(query or {})
        while True:
            page = self.get(path, asked)
            if not isinstance(page.get("items"), list):
                raise _strange(self.url)
            yield from page["items"]
            if page.get("next") is None:
                return
            asked["cursor"] = str(page["next"])

    def first(self, path: str, query: Query, count: int) -> tuple[list[dict[str, Any]], bool]:
        """Returns at most ``count`` items of a list, and True if there are more."""
        found = list(islice(self.items(path, {**query, "limit": str(min(PAGE, count + 1))}), count + 1))
        return found[:count], len(found) > count

    def me(self) -> str:
        try:
            name = self._json("GET", f"{self.url}/hub/api/user").get("name")
        except Refused as no:
            # JupyterHub answers 403 to an unknown token.
            raise Refused(401, _NOT_TAKEN) if no.status == 403 else no from None
        if not isinstance(name, str):
            raise _strange(self.url)
        return name

    def lines(self, path: str, query: Query | None = None, *, follow: bool = False) -> Iterator[bytes]:
        asked = _Asked("GET", _with(path, query), wait=FOLLOW_SECONDS if follow else ASK_SECONDS, kind=_ITS_LOG)
        with self._again(lambda: self._open(asked)) as body:
            try:
                yield from body
                if getattr(body, "length", None):  # the answer is shorter than announced
                    raise http.client.IncompleteRead(b"")
            except _NO_ANSWER as problem:
                raise Unreachable(f"{self.url} stopped answering in the middle of it ({_why(problem)}).") from problem

    def _json(self, method: str, path: str, body: object = None, *, repeats: bool = True) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = _Asked(method, path, data, wait=ASK_SECONDS if method == "GET" else DO_SECONDS)

        def ask() -> Any:
            with self._open(asked) as answer:
                return _read(answer.read(_MOST), self.url)

        return self._again(ask, _TRIES if repeats else 1)

    def _again(self, ask: Callable[[], _Answer], tries: int = _TRIES) -> _Answer:
        """Repeats a request until the service answers; the user reads the reason of the delay."""
        for left in reversed(range(tries)):
            try:
                return ask()
            except _NO_ANSWER as problem:
                away: ClientProblem = Unreachable(f"{self.url} does not answer ({_why(problem)}).")
            except _Away as problem:
                away = problem
            except Refused as no:
                if no.status != 503:
                    raise
                away = no
            if left:
                print(f"dlspawner: {printable(str(away))} Asking again.", file=sys.stderr)
                self.sleep(_PAUSE_SECONDS)
        raise away

    def _open(self, asked: _Asked) -> IO[bytes]:
        url = asked.path if asked.path.startswith(self.url) else f"{self.url}/services/jobs/api/{asked.path}"
        request = urllib.request.Request(url, data=asked.data, method=asked.method)  # noqa: S310 - `login` takes only http(s)
        request.add_header("Authorization", f"token {self.token}")
        if asked.data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            opened: IO[bytes] = urllib.request.build_opener(_NoRedirect).open(request, timeout=asked.wait)
        except urllib.error.HTTPError as answer:
            with answer:
                raise _refused(answer, self.url) from None
        if _kind(opened) not in {*_ITS_OWN, asked.kind}:
            opened.close()
            raise _Away(self.url, "it sent a page")
        self._tell(opened)
        return opened

    def _tell(self, answer: Any) -> None:
        """Prints once that the Hub is down, while the service works without it."""
        if not answer.headers.get(_HUB):
            self._said.discard(_NO_HUB)
        elif _NO_HUB not in self._said:
            self._said.add(_NO_HUB)
            print(f"dlspawner: {_NO_HUB}", file=sys.stderr)


def part(name: str) -> str:
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


def _kind(answer: Any) -> str:
    """Returns the content type of an answer; an empty answer counts as JSON."""
    done = answer.status in {http.HTTPStatus.ACCEPTED, http.HTTPStatus.NO_CONTENT} and answer.length == 0
    return "application/json" if done else answer.headers.get_content_type()


def _refused(answer: urllib.error.HTTPError, url: str) -> ClientProblem:
    if answer.code < 400:
        leads = answer.headers.get("Location") or ""
        return _Away(url, f"the Hub shows its own pages, {answer.code}") if _is_hubs(leads, url) else _strange(url)
    if _kind(answer) not in _ITS_OWN:
        return _Away(url, f"{answer.code} {answer.reason}")
    try:
        content = json.loads(answer.read(_MOST))
        sentence = content.get("detail") or content.get("message")
    except (ValueError, AttributeError, *_NO_ANSWER):
        sentence = None
    if answer.code == 401:
        sentence = _NOT_TAKEN
    return Refused(answer.code, str(sentence or f"{url} answered {answer.code} {answer.reason}."))


def _is_hubs(location: str, url: str) -> bool:
    """True if a redirect leads to a page of the Hub: the proxy sends requests there without a route to the service."""
    try:
        return urlsplit(location).path.startswith(f"{urlsplit(url).path}/hub/")
    except ValueError:
        return False


def _strange(url: str) -> Unreachable:
    return Unreachable(f"{url} does not answer as a Hub with dlspawner does. Is the address right?")


def _why(problem: Exception) -> str:
    return str(getattr(problem, "reason", "") or problem or type(problem).__name__)
