"""Reports of use through a real Hub: kernels by a notebook, SSH sessions by the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.component.manager.quota import QuotaHub, running
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]

NOTEBOOK = {
    "title": "Notebook",
    "command": ["jupyterhub-singleuser"],
    "options": {"team": {}},
    "endpoints": [{"name": "ssh", "port": 2222, "protocol": "ssh"}],
    "idle": {"window_seconds": 7200},
}
EXTRA = '\nc.JupyterHub.load_roles[-1]["scopes"] += ["tokens", "access:servers"]\n'


class IdleHub(QuotaHub):
    """One whose notebooks tell the Manager every ten seconds."""

    def prepare(self) -> None:
        super().prepare()
        (self.templates / "jobs" / "notebook.yaml").write_text(json.dumps(NOTEBOOK))
        with (self.config / "cluster.yaml").open("a") as file:
            file.write("idle: {metrics_age_seconds: 30, dry_run: false}\n")

    def manager(self, token: str, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": f"token {token}"}
        url = f"{self.manager_url()}/services/jobs/api/{path}"
        return requests.request(method, url, headers=headers, json=body, timeout=60)

    def token(self, user: str) -> str:
        answer = self.api("POST", f"/users/{user}/tokens", {})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def job(self, admin: str, user: str) -> dict[str, Any]:
        answer = self.manager(admin, "GET", "idle")
        assert answer.status_code == 200, answer.text
        return next((job for job in answer.json()["jobs"] if job["user"] == user), {})


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdleHub]:
    state = tmp_path_factory.mktemp("idle")
    made = IdleHub(state, extra=EXTRA, db_url=f"sqlite:///{state / 'manager.sqlite'}")
    made.settings = ("--Manager.cull_every=1",)
    with running(made) as started:
        started.add_users(["alice", "bob"])
        answer = started.api("POST", "/users/admin", {"admin": True})
        assert answer.status_code in {201, 409}, answer.text
        assert started.start_server("alice", template="notebook").status_code in {201, 202}
        wait_for(lambda: started.servers().get("alice/") == "ready", "the notebook", 120)
        yield started


def test_job_reports_its_busy_kernel(hub: IdleHub) -> None:
    admin, alice = hub.token("admin"), hub.token("alice")
    wait_for(lambda: hub.job(admin, "alice").get("used", {}).get("kernels_told"), "a first report", 120)
    assert hub.job(admin, "alice")["used"]["kernel"] is None
    headers = {"Authorization": f"token {alice}"}
    url = f"{hub.url}/user/alice/api/kernels"
    started = requests.post(url, headers=headers, json={"name": "python3"}, timeout=60)
    assert started.status_code == 201, started.text
    wait_for(lambda: hub.job(admin, "alice")["used"]["kernel"], "its kernel is known", 120)


def test_only_the_gateway_reports_sessions(hub: IdleHub) -> None:
    admin = hub.token("admin")
    report = {"gateway": "g", "sessions": [["alice", "", 1.5, True]]}
    assert hub.manager(hub.token("alice"), "PUT", "ssh-sessions", report).status_code == 403
    assert hub.manager("gateway-token", "PUT", "ssh-sessions", report).status_code == 204
    wait_for(lambda: hub.job(admin, "alice")["used"]["ssh_open"], "the session is known", 60)
    broken = {"gateway": "g", "sessions": [["alice", "", "now", True]]}
    assert hub.manager("gateway-token", "PUT", "ssh-sessions", broken).status_code == 422


def test_user_keeps_own_jobs_only_and_reads_no_report(hub: IdleHub) -> None:
    alice, bob, admin = hub.token("alice"), hub.token("bob"), hub.token("admin")
    wait_for(lambda: hub.job(admin, "alice").get("used", {}).get("kernels_told"), "its kernels are known", 120)
    job = hub.job(admin, "alice")["job"]
    assert hub.manager(alice, "PUT", "kernels", {"busy": True, "seconds": None}).status_code == 403
    assert hub.manager(bob, "GET", "idle").status_code == 403
    assert hub.manager(bob, "POST", f"jobs/{job}/keep-alive").status_code == 404
    nobody = {"gateway": "g", "sessions": []}
    assert hub.manager("gateway-token", "PUT", "ssh-sessions", nobody).status_code == 204, "or it is not known"
    kept = hub.manager(alice, "POST", f"jobs/{job}/keep-alive")
    assert kept.status_code == 200, kept.text
    assert kept.json()["sentence"] == "It is kept for 2 h, longer while it is used."
