"""A job's life by REST on a real Kubernetes, with the usage that a real kubelet measured."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bench.spawn import RESPONDER
from tests.component.manager import metrics
from tests.component.manager.quota import TEMPLATE
from tests.component.manager.rest import RestHub
from tests.contract import machines
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import free_port
from tests.kubernetes import counted
from tests.kubernetes.conftest import Image

pytestmark = pytest.mark.kubernetes
MIB = 2**20
HOLDS = 24 * MIB
# Works, holds memory, and answers the Hub.
PROGRAM = f"""
import threading
held = bytearray({HOLDS})
held[::512] = b"x" * len(held[::512])
def work():
    while True:
        sum(range(10000))
threading.Thread(target=work, daemon=True).start()
{RESPONDER}"""
BUSY = {**TEMPLATE, "title": "Busy", "command": ["python3", "-u", "-S", "-c", PROGRAM]}


@dataclass
class BusyHub(RestHub):
    """A Hub with busy jobs."""

    def prepare(self) -> None:
        super().prepare()
        (self.templates / "jobs" / "busy.yaml").write_text(json.dumps(BUSY))


def scraped(kubernetes: Client, node: str, folder: Path) -> list[str]:
    """The Prometheus configuration for the node's kubelet, by way of the API server."""
    config = yaml.safe_load(kubernetes.kubeconfig.read_text())
    files = {**config["clusters"][0]["cluster"], **config["users"][0]["user"]}
    names = ("certificate-authority", "client-certificate", "client-key")
    for name in names:
        text = base64.b64decode(files[f"{name}-data"]) if f"{name}-data" in files else Path(files[name]).read_bytes()
        (folder / name).write_bytes(text)
    ca, cert, key = (folder / name for name in names)
    tls = f"tls_config: {{ca_file: {ca}, cert_file: {cert}, key_file: {key}}}"
    where = f"scheme: https, {tls}, static_configs: [{{targets: ['{kubernetes.server.netloc}']}}]"
    at = f"/api/v1/nodes/{node}/proxy/metrics"
    return [f"job_name: {path}, metrics_path: {at}/{path}, {where}" for path in ("cadvisor", "resource")]


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path) -> Iterator[BusyHub]:
    real = machines.real(kubernetes)
    if real is None:
        pytest.skip("no node that measures what pods use")
    node, port = real.placement["nodeSelector"]["kubernetes.io/hostname"], free_port()
    (tmp_path / "prometheus").mkdir()
    settings = ("--Manager.lease_seconds=3", f"--GpuMetrics.prometheus_url=http://127.0.0.1:{port}")
    with (
        metrics.prometheus(tmp_path / "prometheus", port=port, more=scraped(kubernetes, node, tmp_path)),
        counted.hub(BusyHub, kubernetes, jobs_namespace, image("job"), tmp_path, settings=settings) as made,
    ):
        yield made


def test_a_job_is_submitted_measured_and_ended_by_rest(hub: BusyHub) -> None:
    body = {"server": "train", "options": {"template": "busy", "gpus": 2}}
    answer = hub.ask("alice", "POST", "jobs", body)
    assert answer.status_code in {201, 202}, answer.text
    job = hub.until("alice", "running", "train", seconds=120)
    assert_usage(hub, job)
    assert hub.ask("alice", "DELETE", f"jobs/{job['id']}").status_code in {202, 204}
    hub.until("alice", "ended", "train", seconds=120)
    wait_for(lambda: not hub.held(), "the pod is gone", 60)


def assert_usage(hub: BusyHub, job: dict[str, Any]) -> None:
    """By the kubelet: some of a processor's time, and the memory that it holds, once."""

    def last(name: str) -> float:
        told = hub.ask("alice", "GET", f"jobs/{job['id']}/usage?step=15")
        assert told.status_code == 200, told.text
        (series,) = (one for one in told.json()["series"] if one["name"] == name)
        return max((value for value in series["values"] if value is not None), default=0.0)

    wait_for(lambda: last("cpu") > 0.01, "its processor time is known", 120)
    wait_for(lambda: last("memory") > HOLDS, "its memory is known", 120)
    assert last("cpu") < 0.5, "of the tenth of a processor that it may have; not twice that from two exporters"
    assert last("memory") < 64 * MIB + HOLDS
    assert hub.ask("bob", "GET", f"jobs/{job['id']}/usage").status_code == 404
