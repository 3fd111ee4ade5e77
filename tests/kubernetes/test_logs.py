"""Logs on a real Kubernetes: containerd writes them, a real kubelet serves them, a real API server forgets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.manager.test_logs_hub import NoisyHub, its_log_outlives_a_job_and_holds_no_token
from tests.contract.client import Client
from tests.kubernetes import counted
from tests.kubernetes.conftest import Image

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path) -> Iterator[NoisyHub]:
    with counted.hub(NoisyHub, kubernetes, jobs_namespace, image("job"), tmp_path) as made:
        yield made


def test_its_log_outlives_a_job_and_holds_no_token(hub: NoisyHub) -> None:
    its_log_outlives_a_job_and_holds_no_token(hub)
