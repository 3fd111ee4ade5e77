"""hub_config/kubernetes: what it says, that the API server takes them, and that they permit no more than needed.

That the product works with them is shown by the end-to-end tests, which run against what `deploy` brings up.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlspawner.core import naming
from tests.contract.client import Client
from tests.kubernetes import deploy
from tests.kubernetes.conftest import Kubectl
from tests.kubernetes.manifests import (
    JOBS,
    PRODUCT,
    WORKLOADS,
    Address,
    Object,
    Peer,
    Pod,
    as_list,
    containers,
    moved,
    of_kind,
    pods,
    reaches,
)

pytestmark = pytest.mark.kubernetes

BASE = deploy.DEMO.parents[1] / "base"
ACCOUNTS = ("bootstrap", "gateway", "hub", "manager", "postgresql", "proxy")
RIGHTS = {
    ("bootstrap", PRODUCT): {("secrets", "create")},
    ("gateway", JOBS): {("pods", "list"), ("services", "get")},
    ("hub", JOBS): {
        *(("pods", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")),
        *(("secrets", verb) for verb in ("get", "create", "delete")),
        *(("services", verb) for verb in ("get", "create", "delete")),
        *(("persistentvolumeclaims", verb) for verb in ("get", "create")),
        ("events", "list"),
    },
}


@pytest.fixture(scope="module")
def demo(kubectl: Kubectl) -> list[Object]:
    return list(yaml.safe_load_all(kubectl("kustomize", str(deploy.DEMO))))


@pytest.fixture(scope="module")
def deployed(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The demo where the person has named their one node."""
    directory = deploy.overlay(tmp_path_factory.mktemp("overlay"), "x", "7", nodes=[NODE.ip])
    return list(yaml.safe_load_all(kubectl("kustomize", str(directory))))


@dataclass
class Scratch:
    """Two namespaces like the product's, with the product's accounts and rights."""

    product: str
    jobs: str
    objects: list[Object]

    def real(self, namespace: str) -> str:
        return {PRODUCT: self.product, JOBS: self.jobs}.get(namespace, namespace)


@pytest.fixture(scope="module")
def scratch(demo: list[Object], kubectl: Kubectl) -> Iterator[Scratch]:
    name = f"manifests-{secrets.token_hex(4)}"
    made = Scratch(name, f"{name}-jobs", moved(demo, name, f"{name}-jobs"))
    kubectl("create", "-f", "-", input=as_list(of_kind(made.objects, "Namespace")))
    try:
        access = of_kind(made.objects, "ServiceAccount", "Role", "RoleBinding")
        kubectl("create", "-f", "-", input=as_list(access))
        yield made
    finally:
        kubectl("delete", "namespace", made.product, made.jobs, "--wait=false")


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


# What is in the manifests


def test_accounts_are_one_per_process_and_those_without_rights_have_no_token(demo: list[Object]) -> None:
    found = {}
    for workload in of_kind(demo, *WORKLOADS):
        spec = workload["spec"]["template"]["spec"]
        assert spec["serviceAccountName"] == workload["metadata"]["name"]
        found[spec["serviceAccountName"]] = spec["automountServiceAccountToken"]
    assert tuple(sorted(found)) == ACCOUNTS
    assert {name for name, token in found.items() if token} == {name for name, _ in RIGHTS}
    assert not of_kind(demo, "ClusterRole", "ClusterRoleBinding")


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
            projected = [one["secret"] for one in volume.get("projected", {}).get("sources", ())]
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
        "manager": {"manager-token/token", "manager-database/url"},
        "gateway": {"gateway-token/token", "gateway-keys/*"},
        "postgresql": {"hub-database/password", "manager-database/password"},
    }


def test_every_container_has_limits_a_read_only_root_and_what_probes_need(demo: list[Object]) -> None:
    for workload in of_kind(demo, *WORKLOADS):
        spec, name = workload["spec"]["template"]["spec"], workload["metadata"]["name"]
        assert spec["enableServiceLinks"] is False, name  # HUB_PORT=tcp://… would be read as a setting
        for container in containers(workload):
            for kind in ("requests", "limits"):
                assert set(container["resources"][kind]) == {"cpu", "memory"}, (name, container["name"])
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, (name, container["name"])
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


def test_an_overlay_can_bring_its_own_files(kubectl: Kubectl, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    for name in ("cluster.yaml", "teams.yaml", "overrides.py"):
        (config / name).write_text(f"# {name}", encoding="utf-8")
    directory = tmp_path / "overlay"
    directory.mkdir()
    objects = list(yaml.safe_load_all(kubectl("kustomize", str(deploy.overlay(directory, "x", "7", config)))))
    maps = {one["metadata"]["name"].rsplit("-", 1)[0]: one["data"] for one in of_kind(objects, "ConfigMap")}
    assert maps["hub-config"] == {name: f"# {name}" for name in ("cluster.yaml", "teams.yaml", "overrides.py")}
    assert set(maps) == {"hub-config", "job-templates"}


# Who reaches whom

JOB = Pod(
    "job",
    JOBS,
    naming.job_labels(naming.Job("j-aaaaaaaaaaaa", "alice", "", "default", "ipython", 0)),
    {"notebook-port": 8888, "ssh": 2222},
    "10.244.0.3",
)
OTHER_JOB = Pod("other job", JOBS, JOB.labels, JOB.ports, "10.244.0.4")
STRANGER = Pod("stranger", "default", {"app": "x"}, {"http": 80}, "10.244.0.5")
# Pod networks as clusters have them, with one beside the nodes' addresses.
POD_ADDRESSES = ("10.244.0.5", "10.0.0.9", "10.9.8.6", "172.17.0.5", "192.168.3.4", "100.64.1.2", "fd00:10:244::5")
NODE, LAPTOP, METADATA = Address("10.9.8.7"), Address("203.0.113.9"), Address("169.254.169.254")
PORTS = {22, 53, 80, 443, 2222, 5432, 6443, 8000, 8001, 8080, 8081, 8082, 8888, 9090, 10250, 30000, 31234, 32767}

REACHES: dict[tuple[str, str], set[int]] = {
    ("proxy", "hub"): {8081},
    ("proxy", "manager"): {8082},
    ("proxy", "job"): {8888},
    ("hub", "proxy"): {8001},
    ("hub", "manager"): {8082},
    ("hub", "job"): {8888},
    ("hub", "postgresql"): {5432},
    ("manager", "hub"): {8081},
    ("manager", "postgresql"): {5432},
    ("gateway", "hub"): {8081},
    ("gateway", "manager"): {8082},
    ("gateway", "job"): {2222},
    ("node", "job"): {2222},  # what came through a NodePort
    ("job", "hub"): {8081},
    ("job", "manager"): {8082},
    ("job", "laptop"): PORTS,  # the internet
}
INWARD = {"proxy": {8000}, "gateway": {2222}}  # everybody's ways in
# The API server, wherever it is; the gateway goes to the jobs' NodePorts as well.
API, NODE_PORTS = {443, 6443}, {30000, 31234, 32767}
OUTWARD = {"hub": API, "bootstrap": API, "gateway": API | NODE_PORTS}


def test_network_policies_allow_these_ways_and_no_other(deployed: list[Object]) -> None:
    inside = [*pods(deployed), JOB]
    outside: dict[str, Peer] = {"laptop": LAPTOP, "node": NODE, "metadata": METADATA, "stranger": STRANGER}
    peers: dict[str, Peer] = {pod.name: pod for pod in inside} | outside
    expected = dict(REACHES)
    for place in outside:
        expected |= {(place, name): ports for name, ports in INWARD.items()}
        expected |= {(name, place): ports for name, ports in OUTWARD.items()}
    found = {
        (source, target): allowed
        for source in peers
        for target in peers
        if source != target
        and (source not in outside or target not in outside)
        and (allowed := reaches(deployed, peers[source], peers[target], PORTS))
    }
    assert found == expected


def test_jobs_do_not_reach_each_other(deployed: list[Object]) -> None:
    assert reaches(deployed, JOB, OTHER_JOB, PORTS) == set()


@pytest.mark.parametrize("ip", POD_ADDRESSES)
@pytest.mark.parametrize("manifests", ["demo", "deployed"])
def test_a_stranger_s_pod_reaches_no_job_whatever_its_address(
    manifests: str, ip: str, request: pytest.FixtureRequest
) -> None:
    assert reaches(request.getfixturevalue(manifests), replace(STRANGER, ip=ip), JOB, PORTS) == set()


def test_no_node_is_let_in_that_nobody_named(demo: list[Object], kubectl: Kubectl) -> None:
    for objects in (demo, list(yaml.safe_load_all(kubectl("kustomize", str(BASE))))):
        assert reaches(objects, NODE, JOB, PORTS) == set()
        assert reaches(objects, LAPTOP, JOB, PORTS) == set()


def test_a_deployment_names_the_cluster_s_own_nodes_one_by_one(kubectl: Kubectl) -> None:
    addresses = deploy.node_addresses(kubectl)
    rule = deploy.ssh_from([*addresses, "fd00::7"])["spec"]["ingress"][0]
    blocks = [one["ipBlock"]["cidr"] for one in rule["from"]]
    assert blocks == [*(f"{address}/32" for address in addresses), "fd00::7/128"]
    assert addresses


def test_everybody_may_ask_the_cluster_s_dns(demo: list[Object]) -> None:
    for pod in [*pods(demo), JOB]:
        allowed = [
            (entry["protocol"], entry["port"])
            for one in of_kind(demo, "NetworkPolicy")
            if one["metadata"]["namespace"] == pod.namespace and one["metadata"]["name"] in {"dns", "product"}
            for rule in one["spec"]["egress"]
            for entry in rule["ports"]
            if entry["port"] == 53
        ]
        assert allowed == [("UDP", 53), ("TCP", 53)], pod.name


def test_services_lead_to_ports_that_exist(demo: list[Object]) -> None:
    by_labels = {tuple(sorted(pod.labels.items())): pod for pod in pods(demo)}
    for service in of_kind(demo, "Service"):
        pod = by_labels[tuple(sorted(service["spec"]["selector"].items()))]
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in pod.ports, service["metadata"]["name"]


def test_real_jobs_have_the_labels_and_ports_that_the_policies_name(demo: list[Object]) -> None:
    selectors = [
        one["spec"]["podSelector"] for one in of_kind(demo, "NetworkPolicy") if one["metadata"]["namespace"] == JOBS
    ]
    keys: set[Any] = {one["key"] for selector in selectors for one in selector.get("matchExpressions", ())}
    assert keys == {naming.JOB_LABEL}
    templates = deploy.ROOT / "templates" / "jobs"
    endpoints = [
        endpoint
        for path in sorted(templates.glob("*.yaml"))
        for endpoint in yaml.safe_load(path.read_text()).get("endpoints", ())
    ]
    assert {(one["name"], one["port"]) for one in endpoints if one["protocol"] == "ssh"} == {("ssh", JOB.ports["ssh"])}
