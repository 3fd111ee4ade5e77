"""Nodes: what a pod may demand of its node, and which nodes have it."""

from __future__ import annotations

from typing import Any

import pytest

from dlspawner.core.config import Toleration
from dlspawner.core.nodes import NodePlacement, Taint, read_placement
from tests.unit.core.factories import node

NODE = node("n1", labels=(("gpu", "a100"), ("rank", "5")), taints=())
TAINTED = node("n1", taints=(Taint("own", "lab"),))


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    selector = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": selector}}


DEMANDS: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, True),
    "a label that it has": ({"nodeSelector": {"gpu": "a100"}}, True),
    "a label of another value": ({"nodeSelector": {"gpu": "v100"}}, False),
    "its name": ({"nodeName": "n1"}, True),
    "another name": ({"nodeName": "n2"}, False),
    "its name by a field": (
        required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}),
        True,
    ),
    "one of two terms": (required(term("zone", "Exists"), term("gpu", "Exists")), True),
    "that a label is not there": (required(term("zone", "DoesNotExist")), True),
    "that a label is none of these": (required(term("gpu", "NotIn", "a100")), False),
    "a larger number": (required(term("rank", "Gt", "4")), True),
    "a smaller number": (required(term("rank", "Lt", "5")), False),
    "an unknown operator": (required(term("rank", "Near", "5")), False),
}


@pytest.mark.parametrize(("spec", "suits"), DEMANDS.values(), ids=DEMANDS)
def test_placement_of_a_pod(spec: dict[str, Any], suits: bool) -> None:
    assert read_placement(spec).matches(NODE) is suits


TOLERATED: dict[str, tuple[list[Toleration], bool]] = {
    "nothing": ([], False),
    "the taint": ([Toleration("own", "Equal", "lab", "NoSchedule")], True),
    "the key with any value": ([Toleration("own", "Exists")], True),
    "another value": ([Toleration("own", "Equal", "other")], False),
    "another effect": ([Toleration("own", "Exists", effect="NoExecute")], False),
    "everything": ([Toleration(operator="Exists")], True),
}


@pytest.mark.parametrize(("tolerations", "suits"), TOLERATED.values(), ids=TOLERATED)
def test_tolerations_of_a_pod(tolerations: list[Toleration], suits: bool) -> None:
    assert NodePlacement(tolerations=tuple(tolerations)).matches(TAINTED) is suits


@pytest.mark.parametrize("taint", [Taint("node.kubernetes.io/unschedulable"), Taint("x", effect="PreferNoSchedule")])
def test_temporary_and_soft_taints_are_ignored(taint: Taint) -> None:
    assert NodePlacement().matches(node("n1", taints=(taint,)))
