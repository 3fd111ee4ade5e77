"""Why no node takes a pod: the scheduler's message, in words. Pure.

The message counts nodes by the reason that the scheduler met first on each of them::

    0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector,
    1 node(s) were unschedulable. …, preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling.

Its wording changes between releases of Kubernetes, so reasons are recognised by a few words. An unknown one, as of a
plugin, is shown as it is. A reason without a number was found before any node was looked at, and is that of all nodes.
That preemption would not help on *any* node means that a pod that lacks CPU, memory or GPUs is larger than every node
(Kubernetes ≥ 1.33; earlier ones call every full node "no victims").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dlspawner.core import text

_COUNTS = re.compile(r"\d+/(?P<nodes>\d+) nodes are (?:un)?available: (?P<reasons>.*)", re.DOTALL)
_REASON = re.compile(r"(?:^|[,.] )(\d+) (.+?)(?=, \d+ |\. |\.?$)")
_UNCOUNTED = re.compile(r"()(\D.*?)(?=\. |\.?$)")
_INSUFFICIENT = "Insufficient "
_HOPELESS = re.compile(r"(\d+) Preemption is not helpful")

# Words of the reason -> what is the matter with these nodes. The first that fits.
_KINDS = (
    ("Insufficient", "full"),
    ("Too many pods", "full"),
    ("ReadWriteOncePod", "kept from storage in use"),
    ("available disk", "kept from storage in use"),
    ("free ports", "without the port"),
    ("enough free storage", "without room for new storage"),
    ("unbound immediate", "waiting for storage"),
    ("ephemeral volume controller", "waiting for storage"),
    ("volumes to bind", "without a volume"),
    ("non-existent", "without a volume"),
    ("being deleted", "without a volume"),
    ("allocate all claims", "without the devices"),
    ("esourceclaim", "without the devices"),
    ("esourceClaim", "without the devices"),
    ("PersistentVolume", "out of reach of the job's storage"),
    ("volume node affinity", "out of reach of the job's storage"),
    ("volume zone", "out of reach of the job's storage"),
    ("max volume count", "full"),
    ("taint", "reserved or out of service"),
    ("unschedulable", "closed for new jobs"),
    ("not ready", "out of service"),
    ("pod affinity", "out of reach of the job's storage"),  # the only one that jobs have: launch.pod
    ("anti-affinity", "kept apart from other pods"),
    ("topology spread", "kept apart from other pods"),
    ("node affinity", "of another kind"),
    ("node selector", "of another kind"),
    ("Preemption", ""),
    ("preemption", ""),
)


# What is the matter with nodes -> cause and step, whatever else is the matter with others. The first that there is.
_CAUSES = {
    "out of reach of the job's storage": (
        "The job's storage can only be used on nodes that cannot take the job now",
        "stop the job that uses it there, ask for less, or ask an administrator",
    ),
    "kept from storage in use": (
        "The job's storage is in use, and only one job at a time may use it",
        f"stop the job that uses it, or {text.ASK}",
    ),
    "waiting for storage": ("The job's storage is not ready yet", f"try again later, or {text.ASK}"),
    "without a volume": ("The cluster has no volume for the job's storage", text.ASK),
    "without room for new storage": ("No node has room for the job's new storage", text.ASK),
    "without the port": (
        "No node has the port free that the job asks for",
        f"wait until the job that has it ends, or {text.ASK}",
    ),
    "without the devices": (
        "No node has the devices free that the job claims",
        "wait until other jobs end, or ask an administrator",
    ),
}


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why no node takes a pod: cause and next step, each a part of a sentence."""

    cause: str
    step: str


def explain_unschedulable(message: str, gpus: Collection[str] = ()) -> Shortage | None:
    """The scheduler's message in words; ``None`` when it says nothing about nodes."""
    found = _COUNTS.search(message)
    if found is None:
        return None
    first, _, preemption = found["reasons"].partition("preemption:")
    nodes = int(found["nodes"])
    listed = _REASON.findall(first) or _UNCOUNTED.findall(first)[:1]
    reasons = [(int(count or nodes), reason) for count, reason in listed]
    short = [reason.removeprefix(_INSUFFICIENT) for _, reason in reasons if reason.startswith(_INSUFFICIENT)]
    lacking = text.listed(text.resource(name, gpus) for name in short)
    hopeless = sum(int(count) for count in _HOPELESS.findall(preemption))
    return _shortage(nodes, _kinds(reasons), lacking, hopeless >= nodes > 0)


def _kinds(reasons: list[tuple[int, str]]) -> dict[str, int]:
    """Counts the nodes by kind. A node that lacks two resources is counted twice by the scheduler, once here."""
    kinds: dict[str, int] = {}
    for count, reason in reasons:
        kind = next((kind for words, kind in _KINDS if words in reason), text.quoted(reason))
        if kind == "full":
            kinds[kind] = max(kinds.get(kind, 0), count)
        elif kind:
            kinds[kind] = kinds.get(kind, 0) + count
    return kinds


def _shortage(nodes: int, kinds: dict[str, int], lacking: str, too_large: bool) -> Shortage:
    if too_large and "full" in kinds:
        kinds = {("too small" if kind == "full" else kind): count for kind, count in kinds.items()}
    counted = _counted(nodes, kinds)
    if nodes == 0:
        return Shortage("The cluster has no nodes", "tell an administrator")
    for kind, (cause, step) in _CAUSES.items():
        if kind in kinds:
            return Shortage(f"{cause} ({counted})", step)
    if lacking and too_large:
        return Shortage(
            f"No node that the job may use has enough {lacking} even when it is idle ({counted})", "ask for less"
        )
    if lacking or "full" in kinds:
        return Shortage(
            f"No node has enough free {lacking or 'places'} for the job ({counted})",
            "wait until other jobs end, or ask for less",
        )
    if set(kinds) & {"of another kind", "reserved or out of service", "closed for new jobs", "out of service"}:
        return Shortage(
            f"No node of the kind that the job asks for takes jobs ({counted})",
            "choose another GPU type or template, or ask an administrator",
        )
    return Shortage(f"No node can take the job ({counted})", "choose another template, or ask an administrator")


def _counted(nodes: int, kinds: dict[str, int]) -> str:
    total = "1 node" if nodes == 1 else f"{nodes} nodes"
    return f"{total}: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}" if kinds else total


def preempted(pod: Mapping[str, Any]) -> str:
    """A scheduler's words about a pod that it stops for another one; empty for any other pod.

    Kubernetes' and KAI say so by DisruptionTarget, Volcano and kube-batch by Ready.
    """
    for one in (pod.get("status") or {}).get("conditions") or ():
        told = one.get("type"), one.get("status"), one.get("reason")
        if told in {("DisruptionTarget", "True", "PreemptionByScheduler"), ("Ready", "False", "Evict")}:
            return str(one.get("message") or "").strip() or "it gave no reason"
    return ""
