"""A Hub with quota on a real Kubernetes: GPUs of a resource that is nobody else's, and more of them than the quota."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.contract.client import Client
from tests.edges.test_manager.quota import GPUS, QuotaHub, running
from tests.kubernetes.failing import address

MORE = """
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = "IfNotPresent"
"""


@contextlib.contextmanager
def counted(kubernetes: Client, namespace: str, image: str, folder: Path, **more: Any) -> Iterator[QuotaHub]:
    """Hub, proxy and Manager of this machine; all of them are gone at the end."""
    resource = f"quota-{secrets.token_hex(3)}.example.com/gpu"
    with gpus(kubernetes, resource):
        made = QuotaHub(
            folder,
            namespace=namespace,
            cluster=kubernetes.kubeconfig,
            address=address(kubernetes.kubeconfig),
            extra=MORE.format(image=image),
            db_url=f"sqlite:///{folder / 'manager.sqlite'}",
            resource=resource,
            **{"settings": ("--Manager.lease_seconds=3",), **more},
        )
        with running(made, cluster=False):
            yield made


@contextlib.contextmanager
def gpus(kubernetes: Client, resource: str) -> Iterator[None]:
    """Three times as many on one node as the team may have: it is not the scheduler who says no."""
    name = kubernetes.get("/api/v1/nodes")["items"][0]["metadata"]["name"]
    path, amount = f"/api/v1/nodes/{name}/status", str(3 * GPUS)
    kinds = ("capacity", "allocatable")
    kubernetes.patched(path, {"status": {kind: {resource: amount} for kind in kinds}}, "merge")
    yield
    kubernetes.patched(path, {"status": {kind: {resource: None} for kind in kinds}}, "merge")
