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

What the API server says when it refuses to make something, in one sentence. Pure.

Quotas, limits, Pod Security, policies and webhooks all answer with a sentence of their own inside a ``Status`` object.
The facts in it that the person can use are said again here. Only what an administrator's own rule explains (a webhook,
a ValidatingAdmissionPolicy) is quoted, shortened: it was written for whoever asks. Facts are read in the whole answer;
what looks like a token in it, or makes it long, is left out of quotations alone.
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

NO_END = math.inf  # of seconds to try for
_LONGEST_PAUSE = 5.0
_LONGEST_AFTER = (
    30.0  # that is waited because a server wants it; Kubernetes' own say 1, a balancer in front may say days
)
# A refusal with this reason says nothing about the request. A webhook that is down may be back soon as well; the person
# hears of it at once instead, because only an administrator can do something about one that stays down.
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
        rejection = explain(problem.status or 503, problem.said if problem.status else "", self.gpus)
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
    if not isinstance(tree, dict):  # a proxy before the API server has answered
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
    """Why the API server did not make what was asked for, from its answer's code and whole message."""
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
    """The answer itself, for the operator; of a rule's or webhook's own words no more than a person would read.

    Such a rule has the whole pod before it, and may say anything of it. What else there is was written by Kubernetes.
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
