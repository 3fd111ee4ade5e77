"""The OpenPAI lab's experiments on a real Kubernetes, whose scheduler places the jobs; its two nodes are simulated."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import machines
from tests.contract.client import Client
from tests.edges.test_manager.openpai_lab import LabHub, LabStories
from tests.edges.test_manager.preempt_story import EXTRA
from tests.edges.test_manager.quota import running
from tests.kubernetes.conftest import Image
from tests.kubernetes.counted import MORE
from tests.kubernetes.failing import address

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def lab(jobs_namespace: str, image: Image, kubernetes: Client, tmp_path: Path) -> Iterator[LabHub]:
    if not machines.is_here(kubernetes):
        pytest.skip("the API server runs on another machine")
    made = LabHub(
        tmp_path,
        namespace=jobs_namespace,
        cluster=kubernetes.kubeconfig,
        address=address(kubernetes.kubeconfig),
        extra=MORE.format(image=image("job")) + EXTRA,
        db_url=f"sqlite:///{tmp_path / 'manager.sqlite'}",
        resource=f"lab-{secrets.token_hex(3)}.example.com/gpu",
    )
    (tmp_path / "simulated").mkdir()
    with running(made, cluster=False), machines.joined(kubernetes, made.described, tmp_path / "simulated"):
        made.join()
        yield made
        assert "Traceback" not in made.log


class TestOnKubernetes(LabStories):
    """All three of them."""
