"""Why no node takes a pod: the scheduler's message, in words. Pure.

The message counts nodes by the reason that the scheduler met first on each of them::

    0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector,
    1 node(s) were unschedulable. …, preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling.

Its wording changes between releases of Kubernetes, so reasons are recognised by a few words, and an unknown one is
"other reasons". That preemption would not help on *any* node means that a pod that lacks CPU, memory or GPUs is larger
than every node (Kubernetes ≥ 1.33; earlier ones call every full node "no victims").
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dlspawner.core import text

_COUNTS = re.compile(r"(?P<free>\d+)/(?P<nodes>\d+) nodes are available: (?P<reasons>.*)", re.DOTALL)
_REASON = re.compile(r"(\d+) (.+?)(?=, \d+ |\. |\.?$)")
_INSUFFICIENT = "Insufficient "
_HOPELESS = re.compile(r"(\d+) Preemption is not helpful")

# Words of the reason -> what is the matter with these nodes. The first that fits.
_KINDS = (
    ("Insufficient", "full"),
    ("Too many pods", "full"),
    ("PersistentVolume", "out of reach of the job's storage"),
    ("volume node affinity", "out of reach of the job's storage"),
    ("volume zone", "out of reach of the job's storage"),
    ("max volume count", "full"),
    ("taint", "reserved or out of service"),
    ("unschedulable", "closed for new jobs"),
    ("not ready", "out of service"),
    ("pod affinity", "out of reach of the job's storage"),  # the only one that jobs have: core.placement
    ("anti-affinity", "kept apart from other pods"),
    ("topology spread", "kept apart from other pods"),
    ("node affinity", "of another kind"),
    ("node selector", "of another kind"),
    ("Preemption", ""),
    ("preemption", ""),
)


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
    nodes, reasons = int(found["nodes"]), [(int(count), reason) for count, reason in _REASON.findall(first)]
    short = [reason.removeprefix(_INSUFFICIENT) for _, reason in reasons if reason.startswith(_INSUFFICIENT)]
    lacking = text.listed(text.resource(name, gpus) for name in short)
    hopeless = sum(int(count) for count in _HOPELESS.findall(preemption))
    return _shortage(nodes, _kinds(reasons), lacking, hopeless >= nodes > 0)


def _kinds(reasons: list[tuple[int, str]]) -> dict[str, int]:
    """Counts the nodes by kind. A node that lacks two resources is counted twice by the scheduler, once here."""
    kinds: dict[str, int] = {}
    for count, reason in reasons:
        kind = next((kind for words, kind in _KINDS if words in reason), "unfit for other reasons")
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
    if "out of reach of the job's storage" in kinds:
        return Shortage(
            f"The job's storage can only be used on nodes that cannot take the job now ({counted})",
            "stop the job that uses it there, ask for less, or ask an administrator",
        )
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
