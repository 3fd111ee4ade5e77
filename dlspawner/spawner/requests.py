"""The one way to send a request to Kubernetes: with a deadline per try, again while its trouble may pass, and an end.

Rules:

* What may pass is tried again, with pauses that grow and the server's own Retry-After: no answer, a broken connection,
  429, 500, 502, 503, 504, and the 409 of two requests at once. What will not (a quota, a policy, a missing right) ends
  it at once. Either way the end is a ``Refused``: one sentence for the person, one line for the operator.
* A request may have been carried out although its answer was lost. So every caller's request is idempotent, and one
  that gives up says whether something may have come of any of its tries (``Refused.unsure``).
* Answers are read here, as plain trees: kubernetes_asyncio would log them whole at level DEBUG (Secrets too), put
  headers and body into its exceptions' text, and stumble over a load balancer's HTML.

Refused: aiohttp-retry inside KubeSpawner's client. It retries by method and status alone, for watches as well, and
knows neither our sentences nor what was lost.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientConnectorError, ClientError
from kubernetes_asyncio.client.rest import ApiException

from dlspawner.backoff import RETRIED, delays
from dlspawner.spawner import admission
from dlspawner.spawner.refusal import StartRefused

Tree = Mapping[str, Any]
Method = Callable[..., Awaitable[Any]]

NO_END = math.inf  # of seconds to try for
_LONGEST_PAUSE = 5.0
_LONGEST_AFTER = (
    30.0  # that is waited because a server wants it; Kubernetes' own say 1, a balancer in front may say days
)
# A refusal with this reason says nothing about the request. A webhook that is down may be back soon as well; the person
# hears of it at once instead, because only an administrator can do something about one that stays down.
_PASSING = frozenset({"cluster-error"})


class ApiError(Exception):
    """What came of a request instead of its answer. Its text is for the log: no header, no manifest, no token.

    ``status`` is ``None`` when nobody answered; ``said`` is the whole message, to read facts in it, never to show it.
    """

    def __init__(self, status: int | None, said: str, after: float = 0.0, *, sent: bool = True) -> None:
        super().__init__(status, said)
        self.status, self.said, self.after, self.sent = status, said, after, sent

    def __str__(self) -> str:
        return f"status={self.status} {admission.for_log(self.said)}" if self.status else f"no answer ({self.said})"

    @property
    def is_transient(self) -> bool:
        """Whether the same request may be answered otherwise a moment later."""
        if self.status is None:
            return True
        if self.status == 409:  # of two requests at once, such as about one quota; not of a name that is taken
            return "the object has been modified" in self.said
        return self.status in RETRIED and admission.explain(self.status, self.said).reason in _PASSING

    @property
    def outcome_unknown(self) -> bool:
        """Whether the request may have been carried out all the same."""
        return self.sent if self.status is None else self.status >= 500


class GaveUp(StartRefused):
    """Given up on what passes by itself: an API server that does not answer or cannot, or an earlier pod's end."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests about one server: ``about`` names it in the log, seconds are for one try and for all of them."""

    about: str
    log: Any
    try_seconds: float
    all_seconds: float
    gpus: frozenset[str] = frozenset()  # resources that are GPUs, for sentences about a lack of them

    async def once(self, method: Method, *arguments: Any, **more: Any) -> Tree:
        """The answer to one request of KubeSpawner's client, or `Problem`."""
        try:
            async with asyncio.timeout(self.try_seconds):
                answer = await method(*arguments, _preload_content=False, **more)
                try:
                    body = await answer.read()
                finally:
                    answer.release()
        except (ApiException, ClientError, OSError, TimeoutError) as problem:
            raise without_secrets(problem) from None
        return _tree(answer.status, answer.headers, body)

    async def send(
        self,
        what: str,
        method: Method,
        *arguments: Any,
        expected: Collection[int] = (),
        seconds: float | None = None,
        **more: Any,
    ) -> Tree:
        """The answer, however often it takes to ask; `Problem` with an expected status, else `Refused`.

        ``what`` is asked for, in the operator's words. It is tried for ``seconds``, without them for ``all_seconds``.
        """
        now = asyncio.get_running_loop().time
        until = now() + (self.all_seconds if seconds is None else seconds)
        told_of, unsure = False, False
        for delay in delays(most=_LONGEST_PAUSE):
            try:
                return await self.once(method, *arguments, **more)
            except ApiError as problem:
                if problem.status in expected and not problem.is_transient:
                    raise
                unsure = unsure or problem.outcome_unknown
                pause = max(delay, problem.after)
                if not problem.is_transient or now() + pause >= until:
                    raise self.refused(what, problem, unsure=unsure) from None
                if not told_of:
                    self.log.warning(
                        "pod=%s kubernetes does not take the %s, asking again: %s", self.about, what, problem
                    )
                told_of = True
            await asyncio.sleep(pause)
        raise AssertionError("delays never end")

    def refused(self, what: str, problem: ApiError, *, unsure: bool = False) -> StartRefused:
        """The sentence for the person; the line for the operator is logged."""
        self.log.error("pod=%s kubernetes refused the %s: %s", self.about, what, problem)
        rejection = admission.explain(problem.status or 503, problem.said if problem.status else "", self.gpus)
        kind = GaveUp if problem.is_transient else StartRefused
        refused = kind(rejection.sentence, reason=rejection.reason, status=rejection.status)
        refused.unsure = unsure
        return refused


def without_secrets(problem: BaseException) -> ApiError:
    """A client's exception without what must not be seen."""
    if isinstance(problem, ApiException):
        return ApiError(problem.status or None, _message(problem.body) or str(problem.reason or "no reason was given"))
    return ApiError(None, type(problem).__name__, sent=not isinstance(problem, ClientConnectorError))


def _tree(status: int, headers: Mapping[str, str], body: bytes) -> Tree:
    if not 200 <= status <= 299:
        raise ApiError(status, _message(body) or "no reason was given", _after(headers))
    try:
        tree = json.loads(body)
    except ValueError:
        tree = None
    if not isinstance(tree, dict):  # somebody between us and the API server has answered
        raise ApiError(None, "it is no JSON")
    return tree


def _message(body: object) -> str:
    try:
        return str(json.loads(body)["message"])  # type: ignore[arg-type]  # what it is, is found out here
    except (TypeError, ValueError, KeyError):
        return ""


def _after(headers: Mapping[str, str]) -> float:
    """Seconds that the server wants us to wait, within reason; as a date, which Kubernetes never sends, it is none."""
    given = headers.get("Retry-After", "")
    return min(float(given), _LONGEST_AFTER) if given.isascii() and given.isdecimal() else 0.0
