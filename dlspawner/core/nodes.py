"""Nodes, and the labels, taints and cordons that decide which pods they take.

A ``NodePlacement`` has the demands of a *final* pod manifest on its node, as far as the Manager needs them to choose
candidates. The scheduler has the last word, and alone decides about affinity between pods, preferences, volumes, ports.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dlspawner.core import naming, units
from dlspawner.core.config import GpuType, Toleration
from dlspawner.core.gpus import KAI_MEMORY, KAI_MEMORY_PARTS, KAI_RESERVED, MEMORY_LABEL
from dlspawner.core.units import GPU

# Taints that say what ``cordoned`` and ``ready`` say already, and go away with it.
_PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
# Of nodes that were cordoned from here.
REASON_ANNOTATION, DRAIN_ANNOTATION = naming.PREFIX + "cordon-reason", naming.PREFIX + "drain-at"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class ForeignUsage:
    """The usage of one node by other pods: GPUs as ``(resource, milli-GPUs)``."""

    gpus: tuple[tuple[str, int], ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A node: what pods can get there, and ``others``, what pods that are no jobs hold of it.

    ``cordoned``: nothing new goes there, for the ``reason``, if that is known. ``drain_at``: jobs are stopped then, as
    long as the node is cordoned. ``ready`` is false as well if its last report is too old.
    """

    name: str
    gpus: tuple[tuple[str, int], ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = True
    others: ForeignUsage = field(default_factory=ForeignUsage)
    reason: str = ""
    drain_at: datetime | None = None

    @property
    def open(self) -> bool:
        return self.ready and not self.cordoned

    def gpus_of(self, resource: str) -> int:
        for name, milli in self.gpus:
            if name == resource:
                return milli
        return 0


@dataclass(frozen=True, slots=True)
class Expression:
    """One requirement of a node selector term: ``In``, ``NotIn``, ``Exists``, ``DoesNotExist``, ``Gt``, ``Lt``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.operator in {"NotIn", "DoesNotExist"}:
            return value is None or (self.operator == "NotIn" and value not in self.values)
        if value is None or self.operator == "Exists":
            return value is not None
        if self.operator == "In":
            return value in self.values
        bound = self.values[0] if len(self.values) == 1 else ""
        if not _is_integer(value) or not _is_integer(bound):
            return False
        return int(value) > int(bound) if self.operator == "Gt" else self.operator == "Lt" and int(value) < int(bound)


def _is_integer(text: str) -> bool:
    return text.lstrip("-").isdecimal() and text.isascii() and len(text) < 20


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """A pod's demands on its node: labels, one of several terms (none at all: no demand), a name."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Expression, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    node: str | None = None

    def matches(self, node: Node) -> bool:
        """True if the pod may ever be on this node, open today or not."""
        if self.node is not None and self.node != node.name:
            return False
        for label in self.selector:
            if label not in node.labels:
                return False
        if self.terms:
            labels = {**dict(node.labels), "metadata.name": node.name}
            if not any(all(one.holds(labels) for one in term) for term in self.terms):
                return False
        return not node.taints or all(self._tolerates(taint) for taint in node.taints)

    def _tolerates(self, taint: Taint) -> bool:
        if taint.effect == "PreferNoSchedule" or taint.key.startswith(_PASSING):
            return True
        return any(_matches(one, taint) for one in self.tolerations)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in {None, "", taint.effect} or toleration.key not in {None, "", taint.key}:
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.value


def has_type(node: Node, kind: GpuType) -> bool:
    """True if a node has GPUs of a type; types with one resource are on different nodes."""
    return node.gpus_of(kind.resource) > 0 and _may_have(node, kind)


def _may_have(node: Node, kind: GpuType) -> bool:
    if not node.taints:
        return set(kind.node_selector).issubset(node.labels)
    return NodePlacement(selector=kind.node_selector, tolerations=kind.tolerations).matches(node)


def in_gpus(node: Node, kinds: Iterable[GpuType]) -> Node:
    """The node in milli-GPUs of its types; `read_node` and `foreign_usage` count in thousandths of each resource."""
    parts = [kind for kind in kinds if (kind.share != 1 or kind.per_node or kind.shown) and _may_have(node, kind)]
    if not parts:
        return node
    shown, held = ({name: milli // GPU for name, milli in of.gpus} for of in (node, node.others))
    gpus = {**dict(node.gpus), **{kind.resource: kind.capacity(shown) for kind in parts}}
    used = {**dict(node.others.gpus), **{kind.resource: milli_held(kind, held, node) for kind in parts}}
    return replace(node, gpus=_listed(gpus), others=replace(node.others, gpus=_listed(used)))


def milli_held(kind: GpuType, held: Mapping[str, int], node: Node) -> int:
    """Returns the milli-GPUs of a type that pods hold on a node, in parts of any size.

    A part in MiB is converted as KAI does. It counts as a whole GPU if the node has no label with its GPUs' memory.
    """
    milli = kind.milli_of(held)
    if kind.any_size:
        milli += GPU * max(0, held.get(kind.shows, 0) - held.get(KAI_RESERVED, 0))
        if (memory := held.get(KAI_MEMORY, 0)) and KAI_MEMORY not in kind.asked_by:
            of_one = _amount(dict(node.labels).get(MEMORY_LABEL))
            milli += -(-GPU * memory // of_one) if of_one else GPU * held.get(KAI_MEMORY_PARTS, 1)
    return milli


def _listed(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((name, milli) for name, milli in sorted(amounts.items()) if milli)


def read_placement(spec: Mapping[str, Any]) -> NodePlacement:
    """Returns the demands of a PodSpec on its node; an unknown kind of demand matches no node."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = tuple(tuple(_expressions(term)) for term in affinity.get("nodeSelectorTerms") or ())
    return NodePlacement(
        selector=tuple(sorted((str(key), str(value)) for key, value in (spec.get("nodeSelector") or {}).items())),
        terms=tuple(term for term in terms if term),
        tolerations=tuple(_toleration(one) for one in spec.get("tolerations") or ()),
        node=spec.get("nodeName") or None,
    )


def _expressions(term: Mapping[str, Any]) -> Iterator[Expression]:
    for kind in ("matchExpressions", "matchFields"):
        for one in term.get(kind) or ():
            yield Expression(str(one.get("key")), str(one.get("operator")), tuple(map(str, one.get("values") or ())))


def _toleration(one: Mapping[str, Any]) -> Toleration:
    return Toleration(one.get("key"), one.get("operator") or "Equal", one.get("value"), one.get("effect"))


def read_node(manifest: Mapping[str, Any], others: ForeignUsage | None = None) -> Node:
    """A node as the Kubernetes API describes it; every extended resource counts, in thousandths, GPU or not."""
    metadata, spec, status = (manifest.get(part) or {} for part in ("metadata", "spec", "status"))
    allocatable, annotations = status.get("allocatable") or {}, metadata.get("annotations") or {}
    conditions = status.get("conditions") or ()
    return Node(
        name=str(metadata.get("name")),
        gpus=tuple(sorted((name, GPU * _amount(text)) for name, text in allocatable.items() if "/" in name)),
        cpu_milli=_amount(allocatable.get("cpu"), 1000),
        memory_bytes=_amount(allocatable.get("memory")),
        labels=tuple(sorted((str(key), str(value)) for key, value in (metadata.get("labels") or {}).items())),
        taints=tuple(
            Taint(str(one.get("key")), str(one.get("value") or ""), str(one.get("effect")))
            for one in spec.get("taints") or ()
        ),
        cordoned=bool(spec.get("unschedulable")),
        ready=any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions),
        others=others or ForeignUsage(),
        reason=str(annotations.get(REASON_ANNOTATION) or ""),
        drain_at=_time(annotations.get(DRAIN_ANNOTATION)),
    )


def _time(text: object) -> datetime | None:
    """The time in an annotation; ``None`` for anything else."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _amount(text: object, factor: int = 1) -> int:
    """An allocatable amount, rounded down."""
    value = units.parse_quantity(str(text))
    return 0 if value is None else value.numerator * factor // value.denominator
