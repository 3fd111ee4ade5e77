"""POST to ready in real containers: the deployed product against stock KubeSpawner on the same cluster.

`python -m tests.bench.kubernetes` deploys the product by its manifests on the cluster of $KUBECONFIG, and beside it a
Hub with KubeSpawner as it comes, from the same images with the same proxy, limits and rules for jobs (its database is
SQLite, the quicker one). Both start the same tiny HTTP server from the same image on a claim of the same class, so what
differs is the spawner. Before that, the drop-in is measured on the same API server, with pods that run nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import dropin
from tests.bench.figures import Figure, publish
from tests.bench.spawn import RESPONDER, STOCK_CONFIG, Hub, compared, tiny
from tests.contract.client import RESTRICTED, Client
from tests.e2e.deployed import Deployed, deployed
from tests.e2e.people import answers, wait_for
from tests.kubernetes.conftest import run_kubectl as kubectl

ROUNDS = 5
CROWDS = {20: 3}
SYSTEM, JOBS = "stock", "stock-jobs"
LABELS = {"app.kubernetes.io/name": "stock-hub"}
CONFIG = """
import os
c.JupyterHub.bind_url = "http://:8000"
c.JupyterHub.hub_bind_url = "http://:8081"
c.JupyterHub.hub_connect_url = "http://hub.stock.svc:8081"
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:8001"
c.JupyterHub.cleanup_servers = False
c.JupyterHub.db_url = "sqlite:////tmp/hub.sqlite"
c.JupyterHub.cookie_secret_file = "/tmp/cookie_secret"
c.JupyterHub.authenticator_class = "null"
c.JupyterHub.services = [{"name": "bench", "api_token": os.environ["BENCH_TOKEN"], "admin": True}]
c.JupyterHub.concurrent_spawn_limit = 0
"""
IN_CONTAINERS = """
c.KubeSpawner.namespace = "stock-jobs"
c.KubeSpawner.image = os.environ["BENCH_IMAGE"]
c.KubeSpawner.fs_gid = 1000
c.KubeSpawner.container_security_context = {
    "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
}
c.KubeSpawner.cpu_limit, c.KubeSpawner.cpu_guarantee = 1, 0.02
c.KubeSpawner.mem_limit = c.KubeSpawner.mem_guarantee = "64M"
"""
# As stock KubeSpawner's documentation asks for.
RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "persistentvolumeclaims", "secrets", "services"],
        "verbs": ["get", "watch", "list", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "watch", "list"]},
]


def manifest(
    kind: str, name: str, namespace: str | None = SYSTEM, version: str = "v1", **fields: Any
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def stock(product: Deployed, token: str) -> list[dict[str, Any]]:
    """A Hub with stock KubeSpawner: the product's images, and one pod for the Hub and its proxy."""
    secret = {"CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16)}
    given = {**secret, "BENCH_TOKEN": token, "BENCH_IMAGE": product.name_of("job"), "BENCH_RESPONDER": RESPONDER}
    limits = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    hub = {
        "name": "hub",
        "image": product.name_of("hub"),
        "command": ["jupyterhub", "--config=/config/config.py"],
        "workingDir": "/tmp",
        "env": [{"name": name, "value": value} for name, value in given.items()],
        "resources": limits,
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    proxy = {
        "name": "proxy",
        "image": product.name_of("proxy"),
        "command": ["configurable-http-proxy"],
        "args": ["--port=8000", "--api-ip=127.0.0.1", "--default-target=http://127.0.0.1:8081"],
        "env": [{"name": name, "value": value} for name, value in secret.items()],
        "resources": limits,
    }
    pod = {
        "serviceAccountName": "hub",
        "enableServiceLinks": False,
        "containers": [hub, proxy],
        "volumes": [{"name": "config", "configMap": {"name": "stock"}}],
    }
    subject = {"kind": "ServiceAccount", "name": "hub", "namespace": SYSTEM}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hub"}
    namespaces = [manifest("Namespace", SYSTEM, None), manifest("Namespace", JOBS, None)]
    namespaces[1]["metadata"]["labels"] = RESTRICTED
    http = {"name": "http", "port": 80, "targetPort": 8000}
    return [
        *namespaces,
        manifest("ServiceAccount", "hub"),
        manifest("Role", "hub", JOBS, "rbac.authorization.k8s.io/v1", rules=RULES),
        manifest("RoleBinding", "hub", JOBS, "rbac.authorization.k8s.io/v1", subjects=[subject], roleRef=role),
        manifest("ConfigMap", "stock", data={"config.py": CONFIG + STOCK_CONFIG + IN_CONTAINERS}),
        manifest("Service", "hub", spec={"selector": LABELS, "ports": [{"port": 8081, "targetPort": 8081}]}),
        manifest("Service", "proxy", spec={"type": "NodePort", "selector": LABELS, "ports": [http]}),
        manifest(
            "Deployment",
            "hub",
            version="apps/v1",
            spec={"selector": {"matchLabels": LABELS}, "template": {"metadata": {"labels": LABELS}, "spec": pod}},
        ),
    ]


@contextlib.contextmanager
def stock_hub(product: Deployed) -> Iterator[Hub]:
    """It runs, and answers at a NodePort as the product's proxy does."""
    token = secrets.token_hex(16)
    objects = {"apiVersion": "v1", "kind": "List", "items": stock(product, token)}
    kubectl("apply", "-f", "-", input=json.dumps(objects))
    try:
        kubectl("rollout", "status", "deployment/hub", f"--namespace={SYSTEM}", "--timeout=120s")
        service = json.loads(kubectl("get", "service", "proxy", f"--namespace={SYSTEM}", "-o", "json"))
        url = f"http://{product.ssh_host}:{service['spec']['ports'][0]['nodePort']}"
        wait_for(lambda: answers(f"{url}/hub/health"), "the stock Hub answers", 120)
        yield Hub(url, token, {})
    finally:
        kubectl("delete", "namespace", SYSTEM, JOBS, "--wait=false")


def add_template(product: Deployed) -> None:
    """One more template, as an administrator adds it: in the ConfigMap, then a restart of the Hub."""
    system = f"--namespace={product.namespace}"
    hub = json.loads(kubectl("get", "deployment", "hub", system, "-o", "json"))
    volumes = hub["spec"]["template"]["spec"]["volumes"]
    names = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    maps = {name: json.loads(kubectl("get", "configmap", name, system, "-o", "json")) for name in names}
    name = next(name for name, found in maps.items() if "ipython.yaml" in found["data"])
    patch = json.dumps({"data": {"tiny.yaml": json.dumps(tiny(1))}})
    kubectl("patch", "configmap", name, system, "--type=merge", f"--patch={patch}")
    kubectl("rollout", "restart", "deployment/hub", system)
    kubectl("rollout", "status", "deployment/hub", system, "--timeout=120s")
    wait_for(lambda: answers(f"{product.url}/hub/health"), "the Hub answers", 60)


def measure_on(product: Deployed) -> list[Figure]:
    add_template(product)
    admin = product.person("admin")
    ours = Hub(product.url, admin.token, {"user_options": {"template": "tiny"}})
    with stock_hub(product) as theirs:
        figures = compared((ours, theirs), "POST to ready in containers", ROUNDS, CROWDS)
    return figures


def measure(folder: Path) -> list[Figure]:
    figures = dropin.measure(Client(Path(os.environ["KUBECONFIG"])), folder)
    with deployed() as product:
        return figures + measure_on(product)


if __name__ == "__main__":
    publish("bench-kubernetes", measure)
