"""What is promised of logs, on any cluster: a job that prints its environment is read while it runs, and after."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.bench.spawn import RESPONDER
from tests.component.manager.quota import TEMPLATE, QuotaHub, running
from tests.component.manager.rest import SCOPES, RestHub
from tests.e2e.people import wait_for

# Ends three seconds after it is asked to: of one that is gone at once, on a busy machine, the end may be lost.
PROGRAM = 'import os, time; [print(f"{name}={value}", flush=True) for name, value in os.environ.items()]\n'
PROGRAM += RESPONDER.replace("os._exit(0)", "(time.sleep(3), os._exit(0))")


class NoisyHub(RestHub):
    """One with a template whose jobs print their environment."""

    def prepare(self) -> None:
        super().prepare()
        noisy = {**TEMPLATE, "title": "Noisy", "command": ["python3", "-u", "-S", "-c", PROGRAM]}
        noisy["grace_period_seconds"] = 10
        (self.templates / "jobs" / "noisy.yaml").write_text(json.dumps(noisy))


def its_log_outlives_a_job_and_holds_no_token(hub: RestHub) -> None:
    answer = hub.api("POST", "/users/alice/server", {"user_options": {"template": "noisy", "gpus": 1}})
    assert answer.status_code in {201, 202}, answer.text
    job = hub.until("alice", "running", seconds=120)
    token = token_of(hub)

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


def token_of(hub: QuotaHub) -> str:
    """The API token in the pod's own manifest."""
    found = re.search(r'"name": "JUPYTERHUB_API_TOKEN",\s*"value": "(\w+)"', hub.kubectl("get", "pods", "-o", "json"))
    assert found is not None
    return found[1]


@pytest.mark.slow
def test_its_log_outlives_a_job_and_holds_no_token(tmp_path: Path) -> None:
    made = NoisyHub(tmp_path, db_url=f"sqlite:///{tmp_path / 'manager.sqlite'}", extra=SCOPES)
    with running(made):
        made.move_in()
        its_log_outlives_a_job_and_holds_no_token(made)
