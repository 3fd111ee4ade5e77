"""Where a pod fits and what it is told when it fits nowhere."""

from fractions import Fraction
from typing import Any

import pytest

from dlspawner.devcluster.api.controllers.scheduling import node_facts, obstacles, pod_requests, preference, verdict


def _node(**spec: Any) -> Any:
    allocatable = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2", "pods": "3"}
    labels = {"gpu": "a100", "rank": "7"}
    return node_facts(
        {"metadata": {"name": "n", "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}}
    )


def _spec(gpus: int = 0, cpu: str = "1", **more: Any) -> dict[str, Any]:
    requests = {"cpu": cpu} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {"containers": [{"name": "c", "resources": {"requests": requests}}]} | more


def _affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
CORDONED = "node(s) were unschedulable"
ELSEWHERE = "node(s) didn't match Pod's node affinity/selector"

PLACES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "everything that is short is named": (_spec(3, "5"), {}, ["Insufficient cpu", "Insufficient nvidia.com/gpu"]),
    "a soft taint": (_spec(), {"taints": [TAINT | {"effect": "PreferNoSchedule"}]}, []),
    "a tolerated taint": (_spec(tolerations=[{"key": "gpu", "value": "yes"}]), {"taints": [TAINT]}, []),
    "another effect is tolerated": (
        _spec(tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]),
        {"taints": [TAINT]},
        ["node(s) had untolerated taint {gpu: yes}"],
    ),
    "the selector does not match": (_spec(nodeSelector={"gpu": "v100"}), {}, [ELSEWHERE]),
    "the affinity matches": (_spec(affinity=_affinity({"key": "gpu", "operator": "In", "values": ["a100"]})), {}, []),
    "the affinity compares": (
        _spec(affinity=_affinity({"key": "rank", "operator": "Gt", "values": ["8"]})),
        {},
        [ELSEWHERE],
    ),
    "an empty term matches nothing": (_spec(affinity=_affinity()), {}, [ELSEWHERE]),
    "the first kind of obstacle hides the others": (_spec(9, nodeSelector={"gpu": "v100"}), {}, [ELSEWHERE]),
}


@pytest.mark.parametrize(("spec", "node", "reasons"), PLACES.values(), ids=PLACES.keys())
def test_obstacles(spec: dict[str, Any], node: dict[str, Any], reasons: list[str]) -> None:
    assert obstacles(spec, pod_requests(spec), _node(**node), {}) == reasons


def _prefers(weight: int, **term: Any) -> dict[str, Any]:
    return {"weight": weight, "preference": term}


A100 = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100"]}]}
NAMED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
OTHER = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}

PREFERENCES: dict[str, tuple[list[dict[str, Any]], int]] = {
    "nothing is preferred": ([], 0),
    "a label": ([_prefers(7, **A100)], 7),
    "weights are added": ([_prefers(7, **A100), _prefers(50, **OTHER), _prefers(100, **NAMED)], 107),
    "both parts of one term have to match": ([_prefers(7, **A100, **OTHER), _prefers(8, **A100, **NAMED)], 8),
    "an empty term prefers nothing": ([_prefers(7)], 0),
}


@pytest.mark.parametrize(("terms", "weight"), PREFERENCES.values(), ids=PREFERENCES.keys())
def test_preferences(terms: list[dict[str, Any]], weight: int) -> None:
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    assert preference(_spec(affinity=affinity), _node()) == weight
    assert preference(_spec(), _node()) == 0


def test_a_node_has_a_most_number_of_pods() -> None:
    assert obstacles(_spec(), pod_requests(_spec()), _node(), {"pods": Fraction(3)}) == ["Too many pods"]


def test_init_containers_run_before_the_others() -> None:
    def container(cpu: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}}

    spec = {"containers": [container("1"), container("500m")], "initContainers": [container("2"), container("1")]}
    assert pod_requests(spec) == {"cpu": Fraction(2), "pods": Fraction(1)}


def test_the_verdict_counts_reasons_in_order() -> None:
    reasons = [["Insufficient nvidia.com/gpu"], ["Insufficient cpu", "Insufficient nvidia.com/gpu"], [CORDONED]]
    assert verdict(3, reasons) == (
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu."
    )
    assert verdict(0, []) == "no nodes available to schedule pods"
