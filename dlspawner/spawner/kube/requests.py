"""The spawner's requests to Kubernetes: a deadline per try, repetition of transient failures, sentences for refusals.

Rules:

* Transient failures are repeated with growing pauses, or after the server's Retry-After: no answer, a broken
  connection, 429, 500, 502, 503, 504, and the 409 of two requests at once. Other failures (a quota, a policy, a missing
  right) end the request at once. Both end as ``StartRefused``: one sentence for the user, one line for the operator.
* A request may have been carried out although its answer was lost. So every request is idempotent, and the exception
  of a request that gave up says if any of its tries may have succeeded (``StartRefused.outcome_unknown``).
* Answers are read here, as plain dictionaries: kubernetes_asyncio would log them whole at level DEBUG (Secrets too),
  put headers and body into the text of exceptions, and fail at the HTML of a load balancer.
* `explain` turns the ``Status`` of a refusal (quotas, limits, Pod Security, policies, webhooks) into a sentence with
  the facts that the user needs. Only the text of an administrator's own rule is quoted, shortened and without anything
  that looks like a token.

Refused: aiohttp-retry inside KubeSpawner's client. It retries by method and status alone, for watches as well, and
knows neither our sentences nor if a request may have succeeded.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientConnectorError, ClientError
from kubernetes_asyncio.client.rest import ApiException

from dlspawner.backoff import RETRIED, delays
from dlspawner.core import text as core_text
from dlspawner.core.text import ASK
from dlspawner.spawner.kube.errors import StartRefused

Tree = Mapping[str, Any]
Method = Callable[..., Awaitable[Any]]

NO_END = math.inf  # seconds of repetition
_LONGEST_PAUSE = 5.0
_LONGEST_AFTER = 30.0  # of Retry-After: Kubernetes sends 1, a load balancer may send days
# Refusals with this reason do not depend on the request. A webhook that is down may be back soon as well, but is
# reported at once, because only an administrator can repair it.
_PASSING = frozenset({"cluster-error"})


class ApiError(Exception):
    """The failure of a request. Its text is for the log: no header, no manifest, no token.

    ``status`` is ``None`` without an answer; ``said`` is the whole message, to read facts in it, never to show it.
    """

    def __init__(self, status: int | None, said: str, after: float = 0.0, *, sent: bool = True) -> None:
        super().__init__(status, said)
        self.status, self.said, self.after, self.sent = status, said, after, sent

    def __str__(self) -> str:
        return f"status={self.status} {for_log(self.said)}" if self.status else f"no answer ({self.said})"

    @property
    def is_transient(self) -> bool:
        """True if the same request may be answered otherwise a moment later."""
        if self.status is None:
            return True
        if self.status == 409:  # of two requests at once, such as about one quota; not of a name that is taken
            return "the object has been modified" in self.said
        return self.status in RETRIED and explain(self.status, self.said).reason in _PASSING

    @property
    def outcome_unknown(self) -> bool:
        """True if the request may have been carried out all the same."""
        return self.sent if self.status is None else self.status >= 500


class GaveUp(StartRefused):
    """A request was given up after a transient failure, or because the pod of an earlier job is still ending."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests about one server: ``about`` names it in the log, seconds are for one try and for all of them."""

    about: str
    log: Any
    try_seconds: float
    all_seconds: float
    gpus: frozenset[str] = frozenset()  # resources that are GPUs, for sentences about a lack of them

    async def once(self, method: Method, *arguments: Any, **more: Any) -> Tree:
        """Returns the answer to one request of KubeSpawner's client; raises `ApiError`."""
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
        """Returns the answer to a request that is repeated; `ApiError` for an ``expected`` status, else `StartRefused`.

        ``what`` names the request in the log. It is repeated for ``seconds``, by default for ``all_seconds``.
        """
        now = asyncio.get_running_loop().time
        until = now() + (self.all_seconds if seconds is None else seconds)
        told_of, outcome_unknown = False, False
        for delay in delays(most=_LONGEST_PAUSE):
            try:
                return await self.once(method, *arguments, **more)
            except ApiError as problem:
                if problem.status in expected and not problem.is_transient:
                    raise
                outcome_unknown = outcome_unknown or problem.outcome_unknown
                pause = max(delay, problem.after)
                if not problem.is_transient or now() + pause >= until:
                    raise self.refused(what, problem, outcome_unknown=outcome_unknown) from None
                if not told_of:
                    self.log.warning(
                        "pod=%s kubernetes does not take the %s, asking again: %s", self.about, what, problem
                    )
                told_of = True
            await asyncio.sleep(pause)
        raise AssertionError("delays never end")

    def refused(self, what: str, problem: ApiError, *, outcome_unknown: bool = False) -> StartRefused:
        """Returns the refusal with the sentence for the user, and logs the line for the operator."""
        self.log.error("pod=%s kubernetes refused the %s: %s", self.about, what, problem)
        rejection = explain(problem.status or 503, problem.said if problem.status else "", self.gpus)
        kind = GaveUp if problem.is_transient else StartRefused
        refused = kind(rejection.sentence, reason=rejection.reason, status=rejection.status)
        refused.outcome_unknown = outcome_unknown
        return refused


def without_secrets(problem: BaseException) -> ApiError:
    """Returns an exception of the client without headers, manifests and tokens."""
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
    if not isinstance(tree, dict):  # a proxy before the API server has answered
        raise ApiError(None, "it is no JSON")
    return tree


def _message(body: object) -> str:
    try:
        return str(json.loads(body)["message"])  # type: ignore[arg-type]  # what it is, is found out here
    except (TypeError, ValueError, KeyError):
        return ""


def _after(headers: Mapping[str, str]) -> float:
    """Returns the seconds of Retry-After, at most `_LONGEST_AFTER`; 0 for a date, which Kubernetes never sends."""
    given = headers.get("Retry-After", "")
    return min(float(given), _LONGEST_AFTER) if given.isascii() and given.isdecimal() else 0.0


NOT_NOW = "The cluster cannot start jobs at the moment: try again soon."

_QUOTA = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)")
_MUST = re.compile(r"must specify (.+)")
_RANGE = re.compile(
    r"(maximum|minimum) (\S+) usage per (\w+) is ([^\s,]+?)(?:, but (?:limit|request) is ([^\s,\]]+?)|\.)[,.\]]?(?= |$)"
)
_SECURITY = re.compile(r"violates PodSecurity \"([^\"]+)\": (.*)", re.DOTALL)
_RULE = re.compile(
    r"(?:admission webhook \"[^\"]+\" denied the request(?: without explanation)?|denied request):?(.*)", re.DOTALL
)
_HOOK = re.compile(r"failed calling webhook \"([^\"]+)\"")
_LACKS = (
    (re.compile(r"no PriorityClass with name (\S+) was found"), "PriorityClass"),
    (re.compile(r"serviceaccount \"([^\"]+)\" not found"), "ServiceAccount"),
    (re.compile(r"RuntimeClass \"([^\"]+)\" not found"), "RuntimeClass"),
    (re.compile(r"namespaces \"([^\"]+)\" not found"), "namespace"),
)
NO_PRIORITY_CLASS = "no-priority-class"
_LOGGED = 700  # characters; Pod Security's longest answer has 600
_FIELDS = re.compile(r"(?:^|[\s\[])((?:spec|metadata)[\w.\[\]\"/-]*): ")


@dataclass(frozen=True, slots=True)
class Rejection:
    """``reason`` is a word for metrics and logs, ``status`` the HTTP status of the Hub's answer."""

    sentence: str
    reason: str
    status: int = 403


NO_NODEPORT = Rejection(
    f"The cluster has no NodePort left for another job: stop a job that you do not need, or {ASK}.", "no-nodeport"
)


def explain(status: int, said: str, gpus: Collection[str] = ()) -> Rejection:
    """Returns the reason of a refusal from the status and the whole message of the API server's answer."""
    said = " ".join(said.split())
    if "nodePort" in said and ("range is full" in said or "already allocated" in said or "no ports" in said):
        return NO_NODEPORT
    hook = _HOOK.search(said)
    if hook is not None:
        cause = f"The cluster's check {hook[1]} of new jobs does not answer"
        return Rejection(f"{cause}: try again soon, or tell an administrator.", "webhook-down", 429)
    for judge in (_quota, _limits, _security, _rule, _lacks, _rights):
        found = judge(said, gpus)
        if found is not None:
            return found
    if status in (400, 403, 404, 422):
        fields = core_text.listed(_FIELDS.findall(said))
        where = f" ({core_text.quoted(fields)})" if fields else ""
        return Rejection(f"The cluster does not accept this job{where}: {ASK}.", "cluster-refused")
    return Rejection(NOT_NOW, "cluster-error", 429)


def for_log(said: str) -> str:
    """Returns the answer for the operator; the text of a rule or webhook is shortened as for users.

    Such a rule knows the whole pod, and may repeat any part of it. Kubernetes wrote the rest of the answer.
    """
    found = _RULE.search(said) or _HOOK.search(said)
    if found is None:
        return core_text.quoted(said, _LOGGED)
    own = found.start(1) if found.re is _RULE else found.end()
    return f"{core_text.quoted(said[:own], _LOGGED)} {core_text.quoted(said[own:])}".rstrip()


def _quota(said: str, gpus: Collection[str]) -> Rejection | None:
    found = _QUOTA.search(said)
    if found is not None:
        asked, used, limited = (_amounts(found[index]) for index in (2, 3, 4))
        if any("nodeports" in name for name in asked):
            return NO_NODEPORT
        words = [
            f"{core_text.resource(name, gpus)} "
            f"({asked[name]} asked for, {used.get(name)} of {limited.get(name)} in use)"
            for name in asked
        ]
        step = f"ask for less, stop another job, or {ASK}" if "persistentvolumeclaims" not in asked else ASK
        room = core_text.listed(words) or "the job"
        return Rejection(f"The namespace's quota has no room for {room}: {step}.", "cluster-quota")
    missing = _MUST.search(said) if "failed quota" in said else None
    if missing is not None:
        names = re.findall(r"(?:limits|requests)\.[\w./-]+", missing[1])
        cause = f"The namespace's quota wants every container to say its {core_text.listed(names) or 'needs'}"
        return Rejection(f"{cause}, which the template does not: {ASK}.", "cluster-quota")
    return None


def _amounts(text: str) -> Mapping[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _limits(said: str, gpus: Collection[str]) -> Rejection | None:
    found = _RANGE.findall(said)
    if not found:
        return None
    words = [
        f"{core_text.resource(name, gpus)}: {'at most' if bound == 'maximum' else 'at least'} {amount} "
        f"per {kind.lower()}" + (f", not {asked}" if asked else "")
        for bound, name, kind, amount, asked in found
    ]
    return Rejection(f"The namespace limits what a job may ask for ({'; '.join(words)}): ask for that.", "limit-range")


def _security(said: str, _gpus: Collection[str]) -> Rejection | None:
    found = _SECURITY.search(said)
    if found is None:
        return None
    # Each violation is `name (details)`; the details name containers and fields of the manifest.
    names = [name.strip(" ,") for name in re.sub(r"\((?:[^()]|\([^()]*\))*\)", "", found[2]).split(",")]
    level = found[1].partition(":")[0]
    cause = f"The cluster's security level “{level}” forbids what the template asks for"
    named = core_text.quoted(core_text.listed(name for name in names if name), 500)  # all that there are have 350
    return Rejection(f"{cause} ({named}): choose another template, or {ASK}.", "pod-security")


def _rule(said: str, _gpus: Collection[str]) -> Rejection | None:
    found = _RULE.search(said)
    if found is None:
        return None
    text = core_text.quoted(found[1]).rstrip(".")
    return Rejection(
        f"A rule of the cluster refuses this job{f' (“{text}”)' if text else ''}: change it, or {ASK}.", "policy"
    )


def _lacks(said: str, _gpus: Collection[str]) -> Rejection | None:
    for words, kind in _LACKS:
        found = words.search(said)
        if found is not None:
            cause = f"The cluster has no {kind} {found[1]}, which this job needs"
            reason = NO_PRIORITY_CLASS if kind == "PriorityClass" else "cluster-refused"
            return Rejection(f"{cause}: choose another template, or {ASK}.", reason)
    return None


def _rights(said: str, _gpus: Collection[str]) -> Rejection | None:
    found = re.search(r"cannot (\w+) resource \"([^\"]+)\"", said)
    if found is None:
        return None
    return Rejection(
        f"The Hub has no right to {found[1]} {found[2]} in this cluster: tell an administrator.", "no-right"
    )
