"""A Hub with quota on a real Kubernetes: GPUs of a resource of its own, and more of them than the quota."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.component.manager.quota import GPUS, running
from tests.component.manager.rest import SCOPES, RestHub
from tests.contract import machines
from tests.contract.client import Client
from tests.kubernetes.failing import address

MORE = """
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = "IfNotPresent"
"""
Made = TypeVar("Made", bound=RestHub)


@contextlib.contextmanager
def hub(
    cls: type[Made], kubernetes: Client, namespace: str, image: str, state: Path, **settings: Any
) -> Iterator[Made]:
    """A Hub of this class with its Manager on the cluster, and GPUs for its people."""
    at = kubernetes.kubeconfig
    with gpus(kubernetes) as resource:
        made = cls(
            state,
            db_url=f"sqlite:///{state / 'manager.sqlite'}",
            extra=MORE.format(image=image) + SCOPES,
            resource=resource,
            **{"namespace": namespace, "cluster": at, "address": address(at), **settings},
        )
        with running(made, cluster=False):
            made.move_in()
            yield made


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
