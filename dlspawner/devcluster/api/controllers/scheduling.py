"""Which nodes can hold a pod, which it prefers, and why the others cannot, in the kube-scheduler's words. Pure.

Considered: cordons, taints, node selector and node affinity, resources including extended ones and the number of pods,
and host ports, as resources of which a node has one each. Not considered: volumes, pod affinity, spreading, other
scores than that of preferred node affinity, preemption.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dlspawner.devcluster import quantity
from dlspawner.devcluster.api.objects.selectors import Selector, from_expressions, matches

Object = dict[str, Any]
Amounts = Mapping[str, Fraction]
_DEFAULT_PODS = Fraction(110)
_HOST_PORT = "host port "


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The scheduler's own facts about a node."""

    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    taints: tuple[Mapping[str, str], ...]
    unschedulable: bool


@dataclass(slots=True)
class Usage:
    """Adds the requests of the pods on a node."""

    amounts: dict[str, Fraction] = field(default_factory=dict)

    def add(self, requests: Amounts, sign: int = 1) -> None:
        for name, amount in requests.items():
            self.amounts[name] = self.amounts.get(name, Fraction(0)) + sign * amount


def node_facts(node: Object) -> NodeFacts:
    status = node.get("status", {})
    stated = status.get("allocatable") or status.get("capacity") or {}
    return NodeFacts(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels") or {},
        allocatable={name: quantity.parse(value) for name, value in stated.items()},
        taints=tuple(node.get("spec", {}).get("taints") or ()),
        unschedulable=bool(node.get("spec", {}).get("unschedulable")),
    )


def pod_requests(spec: Mapping[str, Any]) -> dict[str, Fraction]:
    """Containers together or the largest init container, the larger of both; one pod, and each of its host ports."""
    total = Usage()
    for container in spec.get("containers") or []:
        total.add(_container_requests(container))
    for container in spec.get("initContainers") or []:
        for name, amount in _container_requests(container).items():
            total.amounts[name] = max(total.amounts.get(name, Fraction(0)), amount)
    total.add({name: quantity.parse(value) for name, value in (spec.get("overhead") or {}).items()})
    ports = [port for one in spec.get("containers") or [] for port in one.get("ports") or [] if port.get("hostPort")]
    held = {f"{_HOST_PORT}{port.get('protocol', 'TCP')}/{port['hostPort']}": Fraction(1) for port in ports}
    return total.amounts | held | {"pods": Fraction(1)}


def _container_requests(container: Mapping[str, Any]) -> dict[str, Fraction]:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: quantity.parse(value) for name, value in requests.items()}


def obstacles(spec: Mapping[str, Any], requests: Amounts, node: NodeFacts, used: Amounts) -> list[str]:
    """Why a node cannot take a pod; empty when it can. The first kind of obstacle hides the later ones."""
    tolerations = spec.get("tolerations") or []
    if node.unschedulable and not _tolerated(_CORDON, tolerations):
        return ["node(s) were unschedulable"]
    wanted = spec.get("nodeName")
    if wanted and wanted != node.name:
        return ["node(s) didn't match the requested node name"]
    for taint in node.taints:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not _tolerated(taint, tolerations):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not _wanted(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    short = [_shortage(name) for name, amount in sorted(requests.items()) if amount > _left(name, node, used)]
    return list(dict.fromkeys(short))


def preference(spec: Mapping[str, Any], node: NodeFacts) -> int:
    """The weights of the preferred terms that a node matches together; other nodes than these can take the pod, too."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "preferredDuringSchedulingIgnoredDuringExecution"
    )
    return sum(term["weight"] for term in affinity or () if _term_matches(term.get("preference") or {}, node))


_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def _left(name: str, node: NodeFacts, used: Amounts) -> Fraction:
    unstated = _DEFAULT_PODS if name == "pods" else Fraction(int(name.startswith(_HOST_PORT)))
    stated = node.allocatable.get(name, unstated)
    return stated - used.get(name, Fraction(0))


def _shortage(name: str) -> str:
    if name.startswith(_HOST_PORT):
        return "node(s) didn't have free ports for the requested pod ports"
    return "Too many pods" if name == "pods" else f"Insufficient {name}"


def _tolerated(taint: Mapping[str, str], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _wanted(spec: Mapping[str, Any], node: NodeFacts) -> bool:
    selector = spec.get("nodeSelector") or {}
    if any(node.labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not affinity:
        return True
    return any(_term_matches(term, node) for term in affinity.get("nodeSelectorTerms") or [])


def _term_matches(term: Mapping[str, Any], node: NodeFacts) -> bool:
    labels: Selector = from_expressions(term.get("matchExpressions") or [])
    fields: Selector = from_expressions(term.get("matchFields") or [])
    if not labels and not fields:
        return False  # an empty term selects nothing
    return matches(labels, node.labels) and matches(fields, {"metadata.name": node.name})


def verdict(total: int, reasons: Iterable[list[str]]) -> str:
    """The message of a pod that fits nowhere."""
    if total == 0:
        return "no nodes available to schedule pods"
    counts = Counter(reason for obstacles in reasons for reason in obstacles)
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{total} nodes are available: {listed}."
