"""The use of kernels, as a real notebook reports it through a real Hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.component.manager.quota import running
from tests.component.manager.rest import SCOPES, RestHub
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]

NOTEBOOK = {
    "title": "Notebook",
    "command": ["jupyterhub-singleuser"],
    "options": {"team": {}},
    "endpoints": [{"name": "ssh", "port": 2222, "protocol": "ssh"}],
    "idle": {"window_seconds": 7200},
}
POLICY = "idle: {metrics_age_seconds: 30, dry_run: false}\n"


class IdleHub(RestHub):
    def used(self) -> dict[str, Any]:
        """How alice's job is used."""
        jobs = self.ask("admin", "GET", "idle").json()["jobs"]
        return next((job["used"] for job in jobs if job["user"] == "alice"), {})


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[IdleHub]:
    """Its notebooks tell the Manager every ten seconds."""
    made = IdleHub(tmp_path, extra=SCOPES, settings=("--Manager.cull_every=1",), policy=POLICY)
    made.own_templates = {"notebook": NOTEBOOK}
    with running(made):
        made.move_in()
        assert made.start_server("alice", template="notebook").status_code in {201, 202}
        wait_for(lambda: made.servers().get("alice/") == "ready", "the notebook", 120)
        yield made


def test_job_reports_its_terminals_and_its_kernel(hub: IdleHub) -> None:
    wait_for(lambda: hub.used().get("kernels_told"), "a first report", 120)
    assert hub.used()["kernel"] is None
    url, headers = f"{hub.url}/user/alice/api/kernels", {"Authorization": f"token {hub.token('alice')}"}
    opened = requests.post(url.replace("kernels", "terminals"), headers=headers, timeout=60)
    assert opened.status_code == 200, opened.text
    before = wait_for(lambda: hub.used()["kernel"], "its terminal is known", 120)
    started = requests.post(url, headers=headers, json={"name": "python3"}, timeout=60)
    assert started.status_code == 201, started.text
    wait_for(lambda: hub.used()["kernel"] > before, "its kernel is known", 120)
