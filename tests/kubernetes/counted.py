"""A Hub with quota on a real Kubernetes: GPUs of a resource of its own, and more of them than the quota."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.component.manager.quota import GPU, GPUS, QuotaHub, running
from tests.contract import machines
from tests.contract.client import Client
from tests.kubernetes.failing import address

MORE = """
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = "IfNotPresent"
"""


@contextlib.contextmanager
def counted(kubernetes: Client, namespace: str, image: str, folder: Path, **more: Any) -> Iterator[QuotaHub]:
    """Hub, proxy and Manager of this machine; all of them are gone at the end."""
    with gpus(kubernetes, folder) as resource:
        given: dict[str, Any] = {
            "db_url": f"sqlite:///{folder / 'manager.sqlite'}",
            "settings": ("--Manager.lease_seconds=3",),
            **there(kubernetes, namespace),
            **more,
        }
        made = QuotaHub(folder, extra=MORE.format(image=image), resource=resource, **given)
        with running(made, cluster=False):
            yield made


def there(kubernetes: Client, namespace: str) -> dict[str, Any]:
    """The settings of a Hub on this cluster."""
    return {"namespace": namespace, "cluster": kubernetes.kubeconfig, "address": address(kubernetes.kubeconfig)}


@contextlib.contextmanager
def gpus(kubernetes: Client, folder: Path) -> Iterator[str]:
    """A resource, with three times the team's quota on one node: a refusal cannot come from the scheduler.

    The node is one of the cluster's or, where it has none, a simulated one.
    """
    resource, amount = f"quota-{secrets.token_hex(3)}.example.com/gpu", 3 * GPUS
    real = machines.real(kubernetes)
    if real is None:
        with node(kubernetes, folder, resource, amount):
            yield resource
        return
    path = f"/api/v1/nodes/{real.placement['nodeSelector']['kubernetes.io/hostname']}/status"
    kinds = ("capacity", "allocatable")
    kubernetes.patched(path, {"status": {kind: {resource: str(amount)} for kind in kinds}}, "merge")
    try:
        yield resource
    finally:
        kubernetes.patched(path, {"status": {kind: {resource: None} for kind in kinds}}, "merge")


@contextlib.contextmanager
def node(kubernetes: Client, folder: Path, resource: str, amount: int) -> Iterator[str]:
    """Makes a simulated node with GPUs for pods that ask for them only; returns its name."""
    if not machines.is_here(kubernetes):
        pytest.skip("the API server runs on another machine")
    name = f"counted-{secrets.token_hex(4)}"
    state, described = folder / name, folder / f"{name}.yaml"
    state.mkdir()
    only = {"key": GPU, "value": name, "effect": "NoSchedule"}
    one = {"name": name, "cpu": 8, "memory": "16Gi", "gpus": {resource: amount}, "taints": [only]}
    described.write_text(yaml.safe_dump({"nodes": [one]}))
    with machines.joined(kubernetes, described, state):
        path = f"/api/v1/nodes/{name}"
        kubernetes.until(path, lambda seen: seen["spec"].get("taints") == [only], "only its own taint")
        yield name
