"""Helm, built from its Go module, and the chart with a stand-in for zero-to-jupyterhub, which cannot be had everywhere.

`z2jh/` has the names of zero-to-jupyterhub's values that the chart sets, and the objects that the chart's depend on.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes import build
from tests.kubernetes.cluster import quiet
from tests.kubernetes.instance import HERE, PROJECT

VERSION = "v3.19.5"
_K8S = "-X helm.sh/helm/v3/pkg/chartutil.k8sVersion"
MODULE = build.Module(
    "helm",
    f"Helm {VERSION}",
    ("helm.sh/helm/v3/cmd/helm",),
    f"-X helm.sh/helm/v3/internal/version.version={VERSION} {_K8S}Major=1 {_K8S}Minor={build.KUBERNETES.split('.')[1]}",
)
CHART = PROJECT / "hub_config" / "helm" / "dlspawner"
# What an administrator has to say.
NEEDED: dict[str, Any] = {
    "databaseUrl": "postgresql+psycopg://manager:secret@db.example.org/manager",
    "publicUrl": "https://jobs.example.org/",
    "ssh": {"host": "ssh.example.org"},
    "cluster": {"gpu_types": {"gpu": {"resource": "nvidia.com/gpu", "cpu_per_gpu": 4, "memory_per_gpu": "16Gi"}}},
    "teams": {"teams": {"default": {"quota": {"gpu": 8}}}},
}


def whole_chart(folder: Path) -> Path:
    """A copy of the chart with its dependency."""
    chart = Path(shutil.copytree(CHART, folder / "dlspawner"))
    shutil.copytree(HERE / "z2jh", chart / "charts" / "jupyterhub")
    return chart


def run(command: str, chart: Path, custom: Mapping[str, Any], *more: str, **jupyterhub: object) -> str:
    """What Helm prints of the chart with these values; CannotRun with its complaint."""
    values = chart.parent / "values.yaml"
    values.write_text(yaml.safe_dump({"jupyterhub": {"custom": dict(custom), **jupyterhub}}))
    name = [] if command == "lint" else ["r"]
    helm = build.built(MODULE, quiet) / "helm"
    return build.run([helm, command, *name, chart, "--namespace=dlspawner", f"--values={values}", *more])


def rendered(chart: Path, custom: Mapping[str, Any] = NEEDED, **jupyterhub: object) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(run("template", chart, custom, **jupyterhub)) if one]
