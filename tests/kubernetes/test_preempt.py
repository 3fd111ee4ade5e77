"""Preemption on a real Kubernetes: the PriorityClasses say Never, so only the Manager stops jobs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.component.manager.preempt_story import EXTRA, LendingHub, an_owner_gets_their_gpus_back, lendable
from tests.component.manager.quota import running
from tests.contract.client import Client
from tests.kubernetes.conftest import Image
from tests.kubernetes.counted import MORE
from tests.kubernetes.failing import address

pytestmark = pytest.mark.kubernetes
RESOURCE = f"lent-{secrets.token_hex(3)}.example.com/gpu"


@pytest.fixture
def hub(
    jobs_namespace: str, image: Image, kubernetes: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LendingHub]:
    folder = tmp_path_factory.mktemp("lent")
    made = LendingHub(
        folder,
        namespace=jobs_namespace,
        cluster=kubernetes.kubeconfig,
        address=address(kubernetes.kubeconfig),
        extra=MORE.format(image=image("job")) + EXTRA,
        db_url=f"sqlite:///{folder / 'manager.sqlite'}",
        resource=RESOURCE,
    )
    with lendable(kubernetes, RESOURCE), running(made, cluster=False):
        yield made


def test_an_owner_gets_their_gpus_back_after_notice(hub: LendingHub) -> None:
    an_owner_gets_their_gpus_back(hub)
