"""The namespace of jobs is what every other test here builds on: what Pod Security refuses, it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.client import Client, pod
from tests.kubernetes.conftest import Kubectl

pytestmark = pytest.mark.kubernetes

RESTRICTED_POD: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_an_ordinary_root_pod_is_refused_by_pod_security(kubernetes: Client, jobs_namespace: str) -> None:
    answer = kubernetes.request("POST", f"/api/v1/namespaces/{jobs_namespace}/pods", pod())
    assert answer.code == 403
    assert 'violates PodSecurity "restricted' in answer.json["message"]


def test_a_pod_without_privileges_is_admitted(kubernetes: Client, kubectl: Kubectl, jobs_namespace: str) -> None:
    containers = [{"name": "main", "image": "localhost/none:1", "securityContext": RESTRICTED_POD}]
    kubernetes.create(f"/api/v1/namespaces/{jobs_namespace}/pods", pod(containers=containers, nodeSelector={}))
    assert [
        item["metadata"]["name"]
        for item in json.loads(kubectl("get", "pods", "-n", jobs_namespace, "-o", "json"))["items"]
    ] == ["p"]


def test_a_pod_that_tolerates_it_is_bound_to_the_fake_node(
    kubernetes: Client, jobs_namespace: str, fake_node: str
) -> None:
    pods = f"/api/v1/namespaces/{jobs_namespace}/pods"
    containers = [{"name": "main", "image": "localhost/none:1", "securityContext": RESTRICTED_POD}]
    tolerations = [{"key": "test", "operator": "Equal", "value": fake_node, "effect": "NoSchedule"}]
    selector = {"kubernetes.io/hostname": fake_node}
    kubernetes.create(pods, pod(containers=containers, tolerations=tolerations, nodeSelector=selector))
    kubernetes.until(f"{pods}/p", lambda bound: bound["spec"].get("nodeName") == fake_node, "its node")
