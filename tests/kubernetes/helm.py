"""Helm, built from its Go module, and the chart with a stand-in for zero-to-jupyterhub, which cannot be had everywhere.

`z2jh/` has the names of zero-to-jupyterhub's values that the chart sets, a Hub that reads them, and a proxy.
$DLSPAWNER_Z2JH is the folder of another chart `jupyterhub` to use instead, such as the real one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.people import wait_for
from tests.kubernetes import build, product
from tests.kubernetes.cluster import quiet
from tests.kubernetes.conftest import DEMO, Kubectl
from tests.kubernetes.deploy import HTTP_PORT, SSH_PORT, Deployment, come_up, node_addresses, ready
from tests.kubernetes.deploy import remove as remove_namespaces
from tests.kubernetes.instance import HERE, PROJECT, in_url
from tests.kubernetes.manifests import PRODUCT, as_list

VERSION = "v3.19.5"
_K8S = "-X helm.sh/helm/v3/pkg/chartutil.k8sVersion"
MODULE = build.Module(
    "helm",
    f"Helm {VERSION}",
    ("helm.sh/helm/v3/cmd/helm",),
    f"-X helm.sh/helm/v3/internal/version.version={VERSION} {_K8S}Major=1 {_K8S}Minor={build.KUBERNETES.split('.')[1]}",
)
CHART = Path("hub_config", "helm", "dlspawner")  # in the sources
RELEASE = "r"
IMAGES = {"manager": "hub", "gateway": "gateway", "ssh": "ssh"}  # custom.images, and which each is
# What an administrator has to say.
NEEDED: dict[str, Any] = {
    "databaseUrl": "postgresql+psycopg://manager:secret@db.example.org/manager",
    "publicUrl": "https://jobs.example.org/",
    "ssh": {"host": "ssh.example.org"},
    "cluster": {"gpu_types": {"gpu": {"resource": "nvidia.com/gpu", "cpu_per_gpu": 4, "memory_per_gpu": "16Gi"}}},
    "teams": {"teams": {"default": {"quota": {"gpu": 8}}}},
}


def whole_chart(folder: Path, source: Path = PROJECT) -> Path:
    """A copy of the chart with its dependency."""
    chart = Path(shutil.copytree(source / CHART, folder / "dlspawner"))
    shutil.copytree(os.environ.get("DLSPAWNER_Z2JH", HERE / "z2jh"), chart / "charts" / "jupyterhub")
    return chart


def run(command: str, chart: Path, custom: Mapping[str, Any], *more: str, **jupyterhub: object) -> str:
    """What Helm prints of the chart with these values; CannotRun with its complaint."""
    values = chart.parent / "values.yaml"
    values.write_text(yaml.safe_dump({"jupyterhub": {"custom": dict(custom), **jupyterhub}}))
    name = [] if command == "lint" else [RELEASE]
    helm = build.built(MODULE, quiet) / "helm"
    return build.run([helm, command, *name, chart, "--namespace=dlspawner", f"--values={values}", *more])


def rendered(chart: Path, custom: Mapping[str, Any] = NEEDED, **jupyterhub: object) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(run("template", chart, custom, **jupyterhub)) if one]


def deploy(kubectl: Kubectl, prefix: str, tag: str, source: Path = PROJECT) -> Deployment:
    """`helm install` of these sources' chart with a PostgreSQL beside it and the demo's cluster, teams and overrides;
    people can log in.
    """
    nodes = node_addresses(kubectl)
    url, passwords = f"http://{in_url(nodes[0])}:{HTTP_PORT}", [secrets.token_hex(16) for _ in range(2)]
    login = dict(zip(("user_password", "admin_password"), passwords, strict=True))
    image = {name: {"name": f"{prefix}/{name}", "tag": tag} for name in (*product.PROCESSES, "job", "proxy", "ssh")}
    custom = {
        "databaseUrl": _postgresql(kubectl, f"{prefix}/postgresql:{tag}"),
        "publicUrl": f"{url}/",
        "ssh": {"host": nodes[0], "port": SSH_PORT},
        "images": {name: f"{prefix}/{ours}:{tag}" for name, ours in IMAGES.items()},
        "nodeAddresses": [f"{address}/32" for address in nodes],
        "gateway": {"service": {"type": "NodePort", "nodePort": SSH_PORT}},
        **{name: yaml.safe_load((DEMO / f"{name}.yaml").read_text()) for name in ("cluster", "teams")},
    }
    hub = {
        "image": image["k8s-hub" if product.K8S_HUB else "hub"],
        "config": {
            "JupyterHub": {"authenticator_class": "shared-password"},
            "SharedPasswordAuthenticator": login,
            "Authenticator": {"admin_users": ["admin"], "allow_all": True},
        },
        "extraConfig": {"10-demo": (DEMO / "overrides.py").read_text()},
    }
    proxy = {"chp": {"image": image["proxy"]}, "service": {"type": "NodePort", "nodePorts": {"http": HTTP_PORT}}}
    with tempfile.TemporaryDirectory() as folder:
        chart = whole_chart(Path(folder), source)
        run("install", chart, custom, "--take-ownership", hub=hub, proxy=proxy, singleuser={"image": image["job"]})
    come_up(kubectl, url)
    return Deployment(url, nodes[0], SSH_PORT, *passwords)


def change(command: str, *more: str | Path) -> None:
    """`helm COMMAND` of the release that is installed."""
    build.run([build.built(MODULE, quiet) / "helm", command, RELEASE, *more, f"--namespace={PRODUCT}"])


def remove(kubectl: Kubectl) -> None:
    change("uninstall", "--ignore-not-found")
    remove_namespaces(kubectl)


def _postgresql(kubectl: Kubectl, image: str) -> str:
    """The demo's, with the Manager's database alone; its URL."""
    password = secrets.token_hex(16)
    kept = {"metadata": {"name": "databases", "namespace": PRODUCT}, "stringData": {"manager": password}}
    made = [{"apiVersion": "v1", "kind": "Secret", **kept}, *yaml.safe_load_all((DEMO / "postgresql.yaml").read_text())]
    for one in made:
        if one["kind"] == "StatefulSet":
            spec = one["spec"]["template"]["spec"]
            del spec["priorityClassName"]  # the chart's
            spec["containers"][0]["image"] = image
            spec["volumes"][0] = {"name": "passwords", "secret": {"secretName": "databases", "defaultMode": 0o440}}
    made = [one for one in made if one["kind"] != "NetworkPolicy"]
    kubectl("create", "namespace", PRODUCT)
    kubectl("create", "-f", "-", input=as_list(made))
    wait_for(lambda: ready(kubectl), "the database", 120)
    return f"postgresql+psycopg://manager:{password}@postgresql/manager"
