"""Logs on a real Kubernetes: containerd writes them, a real kubelet serves them, a real API server forgets them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.spawn import RESPONDER
from tests.component.manager.quota import TEMPLATE
from tests.component.manager.rest import RestHub
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.kubernetes import counted
from tests.kubernetes.conftest import Image

pytestmark = pytest.mark.kubernetes
# Prints its environment, and ends three seconds after it is asked to: of one that is gone at once, on a busy machine,
# the end may be lost.
PROGRAM = 'import os, time; [print(f"{name}={value}", flush=True) for name, value in os.environ.items()]\n'
PROGRAM += RESPONDER.replace("os._exit(0)", "(time.sleep(3), os._exit(0))")
NOISY = {**TEMPLATE, "title": "Noisy", "command": ["python3", "-u", "-S", "-c", PROGRAM], "grace_period_seconds": 10}


@pytest.fixture
def hub(kubernetes: Client, jobs_namespace: str, image: Image, tmp_path: Path) -> Iterator[RestHub]:
    own = {"noisy": NOISY}
    with counted.hub(RestHub, kubernetes, jobs_namespace, image("job"), tmp_path, own_templates=own) as made:
        yield made


def test_its_log_outlives_a_job_and_holds_no_token(hub: RestHub) -> None:
    answer = hub.api("POST", "/users/alice/server", {"user_options": {"template": "noisy", "gpus": 1}})
    assert answer.status_code in {201, 202}, answer.text
    job = hub.until("alice", "running", seconds=120)
    manifests = hub.kubectl("get", "pods", "-o", "json")
    token = re.findall(r'"name": "JUPYTERHUB_API_TOKEN",\s*"value": "(\w+)"', manifests)[0]

    def log(user: str = "alice") -> str:
        return hub.ask(user, "GET", f"jobs/{job['id']}/log?tail=0").text

    wait_for(lambda: "JUPYTERHUB_API_TOKEN=[secret]" in log(), "its environment", 60)
    assert "JUPYTERHUB_USER=alice" in log("vera")
    assert token not in log()
    for user, status in (("bob", 404), ("lars", 404), ("admin", 403)):
        assert hub.ask(user, "GET", f"jobs/{job['id']}/log").status_code == status
    assert hub.api("DELETE", "/users/alice/server").status_code in {202, 204}
    hub.until("alice", "ended", seconds=120)

    def kept() -> list[dict[str, Any]]:
        return list(hub.ask("alice", "GET", f"jobs/{job['id']}/logs").json()["items"])

    wait_for(lambda: any(one["whole"] for one in kept()), "all of it is written down, a moment after the end", 60)
    assert "JUPYTERHUB_API_TOKEN=[secret]" in log()
    assert token not in log()
    assert "node" in hub.ask("alice", "GET", f"jobs/{job['id']}/pod-events").text
