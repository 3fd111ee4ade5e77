"""hub_config/kubernetes/components/special: the second namespace in an overlay.

What the API server says of it, and that permissions are in effect there, is shown in tests/kubernetes/test_special.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.manifests import of_kind

KUBERNETES = Path(__file__).parents[2] / "hub_config" / "kubernetes"
JOBS, SPECIAL, PRODUCT = "dlspawner-jobs", "dlspawner-special", "dlspawner"
Objects = list[dict[str, Any]]


def built(directory: Path) -> Objects:
    shown = subprocess.run(["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(shown.stdout))


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return with_components(tmp_path_factory.mktemp("overlay"), "special")


def with_components(directory: Path, *names: str) -> Objects:
    """The demo with these components."""
    root = directory.resolve()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(KUBERNETES / "overlays" / "demo", root)],
        "components": [os.path.relpath(KUBERNETES / "components" / name, root) for name in names],
    }
    (directory / "kustomization.yaml").write_text(json.dumps(kustomization))
    return built(directory)


def within(objects: Objects, namespace: str, *kinds: str) -> dict[tuple[str, str], Any]:
    """The objects of a namespace by kind and name, without their metadata."""
    return {
        (one["kind"], one["metadata"]["name"]): {
            key: value for key, value in one.items() if key not in {"metadata", "apiVersion", "kind"}
        }
        for one in of_kind(objects, *kinds)
        if one["metadata"].get("namespace") == namespace
    }


def test_the_demo_alone_has_no_second_namespace() -> None:
    assert SPECIAL not in json.dumps(built(KUBERNETES / "overlays" / "demo"))


def test_only_the_second_namespace_is_privileged(overlay: Objects) -> None:
    labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in of_kind(overlay, "Namespace")}
    enforced = {name: found["pod-security.kubernetes.io/enforce"] for name, found in labels.items()}
    assert enforced == {PRODUCT: "restricted", JOBS: "restricted", SPECIAL: "privileged"}
    assert labels[SPECIAL]["dlspawner.dev/special-permissions"] == "approved"


def test_roles_policies_and_limits_are_those_of_ordinary_jobs(overlay: Objects) -> None:
    kinds = ("Role", "RoleBinding", "NetworkPolicy", "ResourceQuota", "LimitRange")
    ordinary = within(overlay, JOBS, *kinds)
    # Those of the demo's nodes are the overlay's to name, in each namespace.
    nodes = ("NetworkPolicy", "ssh-from-nodes")
    special = within(overlay, SPECIAL, *kinds)
    for kind in ("Role", "RoleBinding"):
        del special[kind, "manager-schedulers"]
    assert {**special, nodes: None} == {**ordinary, nodes: None}
    assert len(special) > 10


def test_the_manager_has_the_same_rights_with_a_scheduler_underneath(tmp_path: Path) -> None:
    objects = with_components(tmp_path, "special", "kueue", "gangs")

    def rights(namespace: str) -> set[tuple[str, str, str]]:
        rules = [
            rule
            for role in of_kind(objects, "Role")
            if (role["metadata"]["namespace"], role["metadata"]["name"].split("-")[0]) == (namespace, "manager")
            for rule in role["rules"]
        ]
        return {
            (one, kind, verb)
            for rule in rules
            for one in rule["apiGroups"]
            for kind in rule["resources"]
            for verb in rule["verbs"]
        }

    assert rights(SPECIAL) == rights(JOBS) >= {("kueue.x-k8s.io", "workloads", "watch")}


def test_the_components_of_the_ways_in_lead_to_the_proxy(tmp_path: Path) -> None:
    """Gateway API and cert-manager were not at hand: only the form is known here."""
    objects = with_components(tmp_path, "ingress", "gateway-api")
    (service,) = (one for one in of_kind(objects, "Service") if one["metadata"]["name"] == "proxy")
    (port,) = service["spec"]["ports"]
    (ingress,), (route,) = of_kind(objects, "Ingress"), of_kind(objects, "HTTPRoute")
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"] == {"service": {"name": "proxy", "port": {"name": port["name"]}}}
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]] == route["spec"]["hostnames"]
    (gateway,) = of_kind(objects, "Gateway")
    assert route["spec"]["parentRefs"] == [{"name": gateway["metadata"]["name"]}]
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "proxy", "port": port["port"]}]
    for one in (ingress, gateway):
        assert "cert-manager.io/cluster-issuer" in one["metadata"]["annotations"]


def test_every_account_of_the_product_pulls_with_the_components_secret(tmp_path: Path) -> None:
    accounts = of_kind(with_components(tmp_path, "pull-secret"), "ServiceAccount")
    assert len(accounts) > 4
    assert all(one["imagePullSecrets"] == [{"name": "registry"}] for one in accounts)


def test_the_products_policies_treat_both_namespaces_alike(overlay: Objects) -> None:
    def ways(namespace: str) -> set[tuple[str, str, str]]:
        return {
            (policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"], side, json.dumps(rule["ports"]))
            for policy in of_kind(overlay, "NetworkPolicy")
            if policy["metadata"]["namespace"] == PRODUCT
            for side in ("ingress", "egress")
            for rule in policy["spec"].get(side, ())
            for peer in rule.get("from", rule.get("to", ()))
            if namespace in json.dumps(peer)
        }

    assert ways(SPECIAL) == ways(JOBS)
    assert len(ways(JOBS)) == 5


def test_hub_manager_and_gateway_know_the_namespace(overlay: Objects) -> None:
    told = {}
    for one in of_kind(overlay, "Deployment"):
        (container,) = one["spec"]["template"]["spec"]["containers"]
        env = [f"{each['name']}={each.get('value')}" for each in container.get("env", ())]
        told[one["metadata"]["name"]] = [text for text in [*container.get("args", ()), *env] if SPECIAL in text]
    assert told == {
        "hub": [f"DLSPAWNER_SPECIAL_NAMESPACE={SPECIAL}"],
        "manager": [f"--Manager.special_namespace={SPECIAL}"],
        "gateway": [f"--Gateway.special_namespace={SPECIAL}"],
        "proxy": [],
    }
