"""A Hub with quota on a real Kubernetes: GPUs of a resource of its own, and more of them than the quota."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.component.manager.quota import GPUS
from tests.contract import machines
from tests.contract.client import Client
from tests.kubernetes.failing import address

MORE = """
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = "IfNotPresent"
"""


def there(kubernetes: Client, namespace: str) -> dict[str, Any]:
    """The settings of a Hub on this cluster."""
    return {"namespace": namespace, "cluster": kubernetes.kubeconfig, "address": address(kubernetes.kubeconfig)}


@contextlib.contextmanager
def gpus(kubernetes: Client, resource: str = "", amount: int = 3 * GPUS) -> Iterator[str]:
    """A resource on one node, with three times the team's quota: a refusal cannot come from the scheduler.

    The test is skipped where the cluster has no node of its own.
    """
    resource = resource or f"quota-{secrets.token_hex(3)}.example.com/gpu"
    real = machines.real(kubernetes)
    if real is None:
        pytest.skip("the cluster has no node that runs containers")
    path = f"/api/v1/nodes/{real.placement['nodeSelector']['kubernetes.io/hostname']}/status"
    kinds = ("capacity", "allocatable")
    kubernetes.patched(path, {"status": {kind: {resource: str(amount)} for kind in kinds}}, "merge")
    try:
        yield resource
    finally:
        kubernetes.patched(path, {"status": {kind: {resource: None} for kind in kinds}}, "merge")
