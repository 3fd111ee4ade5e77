"""What the API server says when it refuses to make something, in one sentence. Pure.

Quotas, limits, Pod Security, policies and webhooks all answer with a sentence of their own inside a ``Status`` object.
The facts in it that the person can use are said again here. Only what an administrator's own rule explains (a webhook,
a ValidatingAdmissionPolicy) is quoted, shortened: it was written for whoever asks. Facts are read in the whole answer;
what looks like a token in it, or makes it long, is left out of quotations alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dlspawner.core import text as core_text
from dlspawner.core.text import ASK

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
            return Rejection(f"{cause}: choose another template, or {ASK}.", "cluster-refused")
    if "being terminated" in said:
        return Rejection(f"The jobs' namespace is being deleted: {ASK}.", "cluster-refused")
    return None


def _rights(said: str, _gpus: Collection[str]) -> Rejection | None:
    found = re.search(r"cannot (\w+) resource \"([^\"]+)\"", said)
    if found is None:
        return None
    return Rejection(
        f"The Hub has no right to {found[1]} {found[2]} in this cluster: tell an administrator.", "no-right"
    )
