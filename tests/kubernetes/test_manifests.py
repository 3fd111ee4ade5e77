"""hub_config/kubernetes: what it says, that the API server takes them, and that accounts may do no more than needed.

What the network policies mean is in test_policies.py. That the product works with them is shown by the end-to-end
tests, which `make test-kubernetes` runs against what `deploy` brings up.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from traitlets.config import Config

from tests.contract.client import RESTRICTED_CONTAINER, Client
from tests.kubernetes import deploy
from tests.kubernetes.conftest import BASE, MANIFESTS, Kubectl, Scratch
from tests.kubernetes.manifests import JOBS, PRODUCT, WORKLOADS, Object, as_list, containers, moved, of_kind, pods

pytestmark = pytest.mark.kubernetes

ACCOUNTS = ("bootstrap", "gateway", "hub", "manager", "postgresql", "proxy")
RIGHTS = {
    ("bootstrap", PRODUCT): {("secrets", "create")},
    ("gateway", JOBS): {("pods", "list"), ("services", "get")},
    ("hub", JOBS): {
        *(("pods", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")),
        *(("secrets", verb) for verb in ("get", "create", "delete")),
        ("networking.k8s.io/networkpolicies", "create"),
        *(("services", verb) for verb in ("get", "create", "delete")),
        *(("persistentvolumeclaims", verb) for verb in ("get", "create")),
        ("events", "list"),
    },
    ("manager", PRODUCT): {("events", "create")},
    ("manager", JOBS): {  # and what it may everywhere
        ("pods", "patch"),
        ("pods", "delete"),
        ("pods/log", "get"),
        ("events", "list"),
        ("events", "watch"),
    },
}
EVERYWHERE = {
    "manager": {("nodes", "patch"), *((what, verb) for what in ("nodes", "pods") for verb in ("list", "watch"))}
}


# What the API server says


def test_the_api_server_takes_every_object_without_a_warning(scratch: Scratch, kubectl: Kubectl) -> None:
    kubectl("apply", "--dry-run=server", "--warnings-as-errors", "-f", "-", input=as_list(scratch.objects))


def test_the_base_alone_is_valid(scratch: Scratch, kubectl: Kubectl) -> None:
    objects = moved(yaml.safe_load_all(kubectl("kustomize", str(BASE))), scratch.product, scratch.jobs)
    kubectl("apply", "--dry-run=server", "--warnings-as-errors", "-f", "-", input=as_list(objects))


def test_pod_security_restricted_admits_every_pod(scratch: Scratch, kubernetes: Client) -> None:
    for namespace in of_kind(scratch.objects, "Namespace"):
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    answers = {}
    for workload in of_kind(scratch.objects, *WORKLOADS):
        template = workload["spec"]["template"]
        claims = [{"name": one["metadata"]["name"]} for one in workload["spec"].get("volumeClaimTemplates", ())]
        spec = {**template["spec"], "volumes": [*template["spec"].get("volumes", ()), *claims]}
        del spec["priorityClassName"]  # which is of the cluster, and made by no scratch namespace
        pod = {"metadata": {"generateName": "dry-", **template["metadata"]}, "spec": spec}
        path = f"/api/v1/namespaces/{workload['metadata']['namespace']}/pods"
        answer = kubernetes.request("POST", path, pod, query={"dryRun": "All"})
        answers[workload["metadata"]["name"]] = (answer.code, answer.json.get("message"))
    assert set(answers.values()) == {(201, None)}, answers


def test_each_account_may_do_what_its_process_needs_and_nothing_more(scratch: Scratch, kubernetes: Client) -> None:
    found = {}
    for namespace in (PRODUCT, JOBS, "kube-system", "default"):
        everybody = rights(kubernetes, f"{scratch.product}:nobody", scratch.real(namespace))
        for account in ACCOUNTS:
            mine = rights(kubernetes, f"{scratch.product}:{account}", scratch.real(namespace)) - everybody
            assert mine >= EVERYWHERE.get(account, set())
            mine -= EVERYWHERE.get(account, set())
            if mine:
                found[account, namespace] = mine
    assert found == RIGHTS


def rights(kubernetes: Client, account: str, namespace: str) -> set[tuple[str, str]]:
    """(resource, verb) of all that a service account may do in a namespace; resources of groups as group/resource."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    user = {"Impersonate-User": f"system:serviceaccount:{account}"}
    answer = kubernetes.request("POST", path, {"spec": {"namespace": namespace}}, headers=user)
    assert answer.code == 201, answer.raw
    status = answer.json["status"]
    assert not status["incomplete"]
    return {
        ("/".join(filter(None, (group, resource))), verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_what_names_no_memory_gets_a_limit_and_balancers_are_refused(scratch: Scratch, kubernetes: Client) -> None:
    core = f"/api/v1/namespaces/{scratch.jobs}"
    for one in of_kind(scratch.objects, "ResourceQuota", "LimitRange"):
        kubernetes.create(f"{core}/{one['kind'].lower()}s", one)
    kubernetes.until(f"{core}/resourcequotas/jobs", lambda quota: quota.get("status", {}).get("used"), "counted")
    container = {"name": "a", "image": "x", "securityContext": RESTRICTED_CONTAINER}
    kubernetes.until(f"{core}/serviceaccounts/default", lambda account: account["metadata"]["uid"], "made")
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [container]}}
    made = kubernetes.request("POST", f"{core}/pods", pod, query={"dryRun": "All"})
    assert made.code == 201, made.raw
    assert made.json["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"memory": "4Gi"},
    }
    balancer = {"metadata": {"name": "a"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}
    refused = kubernetes.request("POST", f"{core}/services", balancer, query={"dryRun": "All"})
    assert (refused.code, "exceeded quota: jobs" in refused.json["message"]) == (403, True)


def test_the_readme_s_place_for_the_products_pods(kubectl: Kubectl, tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(# kustomization\.yaml: .*?)```", (MANIFESTS / "README.md").read_text(), re.S)
    kustomization = json.loads((deploy.overlay(tmp_path, "x", "7") / "kustomization.yaml").read_text())
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization | yaml.safe_load(block)))
    objects = yaml.safe_load_all(kubectl("kustomize", str(tmp_path)))
    for one in of_kind(objects, *WORKLOADS):
        spec = one["spec"]["template"]["spec"]
        assert (spec["nodeSelector"], len(spec["tolerations"])) == ({"pool": "system"}, 1), one["metadata"]["name"]


# What is in the manifests


def test_accounts_are_one_per_process_and_those_without_rights_have_no_token(demo: list[Object]) -> None:
    found = {}
    for workload in of_kind(demo, *WORKLOADS):
        spec = workload["spec"]["template"]["spec"]
        assert spec["serviceAccountName"] == workload["metadata"]["name"]
        found[spec["serviceAccountName"]] = spec["automountServiceAccountToken"]
    assert tuple(sorted(found)) == ACCOUNTS
    assert {name for name, token in found.items() if token} == {name for name, _ in RIGHTS}
    assert [one["metadata"]["name"] for one in of_kind(demo, "ClusterRole")] == ["dlspawner-manager"]


def test_no_secret_and_no_password_is_in_the_manifests(demo: list[Object]) -> None:
    assert not of_kind(demo, "Secret")
    written = [
        (workload["metadata"]["name"], one["name"])
        for workload in of_kind(demo, *WORKLOADS)
        for container in containers(workload)
        for one in container.get("env", ())
        if re.search("TOKEN|PASSWORD$|SECRET|KEY|DB_URL", one["name"])
        and "secretKeyRef" not in one.get("valueFrom", {})
    ]
    assert not written


def test_every_process_gets_only_the_secrets_that_are_its_own(demo: list[Object]) -> None:
    found: dict[str, set[str]] = {}
    for workload in of_kind(demo, *WORKLOADS):
        mine = found.setdefault(workload["metadata"]["name"], set())
        for container in containers(workload):
            assert "envFrom" not in container
            references = (one.get("valueFrom", {}).get("secretKeyRef") for one in container.get("env", ()))
            mine |= {f"{one['name']}/{one['key']}" for one in references if one}
        for volume in workload["spec"]["template"]["spec"].get("volumes", ()):
            projected = [one["secret"] for one in volume.get("projected", {}).get("sources", ()) if "secret" in one]
            for one in [*projected, *([volume["secret"]] if "secret" in volume else [])]:
                keys = [item["key"] for item in one["items"]] if "items" in one else ["*"]
                mine |= {f"{one.get('secretName') or one['name']}/{key}" for key in keys}
    assert found == {
        "bootstrap": set(),
        "proxy": {"proxy-token/token"},
        "hub": {
            *("proxy-token/token", "manager-token/token", "gateway-token/token", "hub-database/url"),
            *("hub-keys/cookie-secret", "hub-keys/crypt-key", "gateway-keys/user_ca.pub"),
            *("login/password", "login/admin-password"),
        },
        "manager": {"manager-token/token", "manager-database/url", "gateway-keys/ssh_host_ed25519_key.pub"},
        "gateway": {"gateway-token/token", "gateway-keys/*"},
        "postgresql": {"hub-database/password", "manager-database/password"},
    }


def test_every_container_has_limits_a_read_only_root_and_what_probes_need(demo: list[Object]) -> None:
    for workload in of_kind(demo, *WORKLOADS):
        spec, name = workload["spec"]["template"]["spec"], workload["metadata"]["name"]
        assert spec["enableServiceLinks"] is False, name  # HUB_PORT=tcp://… would be read as a setting
        for container in containers(workload):
            assert set(container["resources"]["limits"]) == {"cpu", "memory"}, (name, container["name"])
            assert set(container["resources"]["requests"]) >= {"cpu", "memory"}, (name, container["name"])
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, (name, container["name"])
        # Under its requests, and of a higher class than jobs: a node without disk stops jobs first (test_eviction.py).
        assert spec["priorityClassName"] == "dlspawner-product", name
        assert all("ephemeral-storage" in one["resources"]["requests"] for one in spec["containers"]), name
        if workload["kind"] != "Job":
            for container in spec["containers"]:
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container), (name, container["name"])


def test_the_kustomization_names_every_image(kubectl: Kubectl, tmp_path: Path) -> None:
    directory = deploy.overlay(tmp_path, "registry.example.org:5000/team", "7")
    objects = list(yaml.safe_load_all(kubectl("kustomize", str(directory))))
    found = {container["image"] for one in of_kind(objects, *WORKLOADS) for container in containers(one)}
    env = [
        one
        for workload in of_kind(objects, "Deployment")
        for container in containers(workload)
        for one in container.get("env", ())
    ]
    found |= {one["value"] for one in env if one["name"].endswith("_IMAGE")}
    assert found == {f"registry.example.org:5000/team/{name}:7" for name in deploy.IMAGES}


def test_the_readme_s_way_for_the_authenticator_s_secret(
    kubectl: Kubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says to write into hub.yaml and overrides.py fits together, and keeps the secret out of ConfigMaps."""
    blocks = re.findall(
        r"```(?:yaml|python)\n(# (?:hub\.yaml|overrides\.py).*?)```", (MANIFESTS / "README.md").read_text(), re.S
    )
    overrides, hub = sorted(blocks, key=lambda block: block.startswith("# hub.yaml"))
    deploy.overlay(tmp_path, "x", "7")
    kustomization = json.loads((tmp_path / "kustomization.yaml").read_text())
    (tmp_path / "hub.yaml").write_text(hub)
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization | {"patches": [{"path": "hub.yaml"}]}))
    objects = yaml.safe_load_all(kubectl("kustomize", str(tmp_path)))
    deployment = next(one for one in of_kind(objects, "Deployment") if one["metadata"]["name"] == "hub")
    given = {
        one["name"]: one["valueFrom"]["secretKeyRef"]
        for container in containers(deployment)
        for one in container.get("env", ())
        if "secretKeyRef" in one.get("valueFrom", {})
    }
    assert given["AUTHENTICATOR_SECRET"] == {"name": "authenticator", "key": "client-secret"}
    monkeypatch.setenv("AUTHENTICATOR_SECRET", "only in the Secret")
    config = Config()
    exec(overrides, {"c": config})  # noqa: S102 - as JupyterHub reads it
    assert config.GenericOAuthenticator.client_secret == "only in the Secret"


def test_services_lead_to_ports_that_exist(demo: list[Object]) -> None:
    by_labels = {tuple(sorted(pod.labels.items())): pod for pod in pods(demo)}
    for service in of_kind(demo, "Service"):
        pod = by_labels[tuple(sorted(service["spec"]["selector"].items()))]
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in pod.ports, service["metadata"]["name"]


def test_no_priority_class_preempts(demo: list[Object]) -> None:
    """Only the Manager stops jobs, after a notice."""
    assert {one["preemptionPolicy"] for one in of_kind(demo, "PriorityClass")} == {"Never"}
