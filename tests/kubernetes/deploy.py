"""The product as `kubectl apply -k hub_config/kubernetes/overlays/demo` brings it up, for tests and for a first look.

    product = deploy(kubectl, prefix="registry.example/dlspawner", tag="0.1.0")
    requests.get(product.url)
    remove(kubectl)

There is one per cluster: its namespaces and NodePorts have fixed names. What does not come up is an AssertionError that
says of every pod what it waits for, in Kubernetes' own words, with the last lines of its log.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.people import answers, wait_for
from tests.kubernetes.conftest import DEMO, Kubectl
from tests.kubernetes.instance import PROJECT, in_url
from tests.kubernetes.manifests import JOBS, PRODUCT

IMAGES = ("hub", "gateway", "job", "ssh", "proxy", "postgresql")
HTTP_PORT, SSH_PORT = 30080, 30022
COMPONENTS = DEMO.parent.parent / "components"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A product that runs in the cluster: where people find it and what they type."""

    url: str
    ssh_host: str
    ssh_port: int
    password: str = field(repr=False)
    admin_password: str = field(repr=False)


def overlay(
    directory: Path, prefix: str, tag: str, nodes: Iterable[str] = (), source: Path = PROJECT, **more: list[Any]
) -> Path:
    """An overlay of these sources' demo with these images and the addresses of the nodes, from which ssh comes to jobs.

    `more`: its `components` and `patches`.
    """
    kustomization: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(source / DEMO.relative_to(PROJECT), directory.resolve())],
        "images": [{"name": f"dlspawner/{name}", "newName": f"{prefix}/{name}", "newTag": tag} for name in IMAGES],
        "components": [os.path.relpath(COMPONENTS / name, directory.resolve()) for name in more.get("components", ())],
        "patches": more.get("patches", []),
    }
    if nodes:
        (directory / "nodes.yaml").write_text(json.dumps(ssh_from(nodes)), encoding="utf-8")
        kustomization["patches"] = [{"path": "nodes.yaml"}, *kustomization["patches"]]
    (directory / "kustomization.yaml").write_text(json.dumps(kustomization), encoding="utf-8")
    return directory


def ssh_from(nodes: Iterable[str]) -> dict[str, Any]:
    """Returns the demo's nodes.yaml: each node's address and nothing around it."""
    blocks = [{"ipBlock": {"cidr": str(ipaddress.ip_network(address))}} for address in nodes]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "ssh-from-nodes", "namespace": JOBS},
        "spec": {"ingress": [{"ports": [{"port": "ssh", "protocol": "TCP"}], "from": blocks}]},
    }


_PATHS = ("hub/login", "services/jobs/health")  # the proxy has its routes when the Hub has told it


def deploy(
    kubectl: Kubectl,
    prefix: str,
    tag: str,
    source: Path = PROJECT,
    *,
    seconds: float = 180,
    url: str = "",
    **more: list[Any],
) -> Deployment:
    """Apply, with `more` in the overlay, and return when people can log in: at the NodePort, or at `url`."""
    nodes, jobs = node_addresses(kubectl), ("get", "jobs", "-n", PRODUCT, "-o", "name")
    wait_for(lambda: not kubectl(*jobs), "an earlier run's Job bootstrap is gone: it cannot be changed", 120)
    with tempfile.TemporaryDirectory() as directory:
        kubectl("apply", "-k", str(overlay(Path(directory), prefix, tag, nodes, source, **more)))
    host = nodes[0]  # where NodePorts are found
    url = url or f"http://{in_url(host)}:{HTTP_PORT}"
    come_up(kubectl, url, seconds)
    login = secret(kubectl, "login")
    return Deployment(url, host, SSH_PORT, login["password"], login["admin-password"])


def come_up(kubectl: Kubectl, url: str, seconds: float = 180) -> None:
    try:
        wait_for(lambda: ready(kubectl) and all(answers(f"{url}/{path}") for path in _PATHS), "the product", seconds)
    except AssertionError as late:
        raise AssertionError("\n".join([str(late), *why(kubectl)])) from None


def remove(kubectl: Kubectl) -> None:
    """All goes with the two namespaces, people's files too; a gateway with sessions takes its time to drain."""
    kubectl("delete", "namespace", JOBS, PRODUCT, "--ignore-not-found", timeout=600)


def node_addresses(kubectl: Kubectl) -> list[str]:
    """The address of NodePorts, and the apparent source of their traffic."""
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    return [
        str(address["address"])
        for node in nodes
        for address in node["status"].get("addresses", ())
        if address["type"] == "InternalIP"
    ]


def secret(kubectl: Kubectl, name: str) -> dict[str, str]:
    data = json.loads(kubectl("get", "secret", name, "-n", PRODUCT, "-o", "json"))["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def ready(kubectl: Kubectl) -> bool:
    """True if every Deployment and StatefulSet has all of its newest pods ready."""
    found = json.loads(kubectl("get", "deployments,statefulsets", "-n", PRODUCT, "-o", "json"))["items"]
    return bool(found) and all(
        each["status"].get("observedGeneration") == each["metadata"]["generation"]
        and each["status"].get("readyReplicas", 0) == each["spec"]["replicas"] == each["status"].get("updatedReplicas")
        for each in found
    )


def why(kubectl: Kubectl) -> list[str]:
    """Every pod of the product in Kubernetes' own words, and the end of its logs."""
    every_pod = ("-l", "app.kubernetes.io/name", "--all-containers", "--prefix", "--tail=15", "--ignore-errors")
    return [kubectl("describe", "pods", "-n", PRODUCT), kubectl("logs", "-n", PRODUCT, *every_pod)]
