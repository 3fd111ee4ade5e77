"""Which pods must be on the node of a person's home directory."""

from __future__ import annotations

from typing import Any

import pytest

from dlspawner.core import naming
from dlspawner.core.launch import pod as launch_pod

POD: dict[str, Any] = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {"volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "home-alice"}}, {"name": "tmp"}]},
}
TERM = {"labelSelector": {"matchLabels": {naming.HOME_LABEL: "home-alice"}}, "topologyKey": "kubernetes.io/hostname"}


def required(pod: dict[str, Any]) -> Any:
    together = (pod["spec"].get("affinity") or {}).get("podAffinity") or {}
    return together.get("requiredDuringSchedulingIgnoredDuringExecution")


@pytest.mark.parametrize(("modes", "terms"), [(["ReadWriteOnce"], [TERM]), (["ReadWriteOnce", "ReadWriteMany"], None)])
def test_a_volume_of_one_node_keeps_its_pods_together_and_one_of_many_does_not(modes: list[str], terms: Any) -> None:
    pod = launch_pod.with_home_affinity(POD, "home-alice", modes)
    assert pod["metadata"]["labels"] == {"app": "x", naming.HOME_LABEL: "home-alice"}
    assert required(pod) == terms
    assert "affinity" not in POD["spec"]


def test_a_pod_without_the_home_directory_is_neither_bound_nor_binding() -> None:
    assert launch_pod.with_home_affinity(POD, "home-bob", ["ReadWriteOnce"]) is POD


def test_affinity_of_an_administrator_is_kept() -> None:
    zone = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [zone]}, "nodeAffinity": {"x": 1}}
    pod = launch_pod.with_home_affinity(
        {**POD, "spec": {**POD["spec"], "affinity": affinity}}, "home-alice", ["ReadWriteOnce"]
    )
    assert required(pod) == [zone, TERM]
    assert pod["spec"]["affinity"]["nodeAffinity"] == {"x": 1}
