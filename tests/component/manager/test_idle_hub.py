"""Who may tell what of the use of jobs, through a real Hub: a notebook of its kernels, the gateway of its sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.component.manager.quota import TEAMS, QuotaHub, running
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]

NOTEBOOK = {
    "title": "Notebook",
    "command": ["jupyterhub-singleuser"],
    "options": {"team": {}},
    "endpoints": [{"name": "ssh", "port": 2222, "protocol": "ssh"}],
    "idle": {"window_seconds": 7200},
}
VISION = "  vision: {title: Vision, members: [carol], quota: {gpu: 1}, idle: {window_seconds: %d}}\n"
EXTRA = '\nc.JupyterHub.load_roles[-1]["scopes"] += ["tokens", "access:servers"]\n'


class IdleHub(QuotaHub):
    """One whose notebooks tell the Manager every ten seconds."""

    def prepare(self) -> None:
        super().prepare()
        (self.templates / "jobs" / "notebook.yaml").write_text(json.dumps(NOTEBOOK))
        with (self.config / "cluster.yaml").open("a") as file:
            file.write("idle: {metrics_age_seconds: 30, dry_run: false}\n")

    def set_quota(self, gpus: int) -> None:
        self.set_window(5400)

    def set_window(self, seconds: int) -> None:
        """Of one team, which has its own."""
        (self.config / "teams.yaml").write_text(TEAMS % self.gpus + VISION % seconds)

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


def test_a_busy_kernel_is_told_by_the_job_itself(hub: IdleHub) -> None:
    admin, alice = hub.token("admin"), hub.token("alice")
    wait_for(lambda: hub.job(admin, "alice").get("used", {}).get("kernels_told"), "a first report", 120)
    assert hub.job(admin, "alice")["used"]["kernel"] is None
    headers = {"Authorization": f"token {alice}"}
    url = f"{hub.url}/user/alice/api/kernels"
    started = requests.post(url, headers=headers, json={"name": "python3"}, timeout=60)
    assert started.status_code == 201, started.text
    wait_for(lambda: hub.job(admin, "alice")["used"]["kernel"], "its kernel is known", 120)


def test_the_gateway_alone_tells_of_sessions(hub: IdleHub) -> None:
    admin = hub.token("admin")
    told = {"gateway": "g", "sessions": [["alice", "", 1.5, True]]}
    assert hub.manager(hub.token("alice"), "PUT", "ssh-sessions", told).status_code == 403
    assert hub.manager("gateway-token", "PUT", "ssh-sessions", told).status_code == 204
    wait_for(lambda: hub.job(admin, "alice")["used"]["ssh_open"], "the session is known", 60)
    broken = {"gateway": "g", "sessions": [["alice", "", "now", True]]}
    assert hub.manager("gateway-token", "PUT", "ssh-sessions", broken).status_code == 422


def test_people_tell_of_no_kernels_keep_their_own_jobs_only_and_see_no_report(hub: IdleHub) -> None:
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


def test_a_team_has_a_window_of_its_own_for_templates_that_have_none(hub: IdleHub) -> None:
    hub.add_users(["carol", "dave"])
    admin, wanted = hub.token("admin"), {"carol": {"team": "vision"}, "dave": {}}
    for user, options in wanted.items():
        assert hub.start_server(user, template="tiny", **options).status_code in {201, 202}
    for seconds in (5400, 900):
        hub.set_window(seconds)
        wait_for(lambda told=seconds: hub.job(admin, "carol").get("window_seconds") == told, "its team's", 60)
    windows = {user: hub.job(admin, user)["window_seconds"] for user in ("alice", "carol", "dave")}
    assert windows == {"alice": 7200, "carol": 900, "dave": None}
    for user in wanted:
        hub.api("DELETE", f"/users/{user}/server")
    wait_for(lambda: {*hub.servers()} == {"alice/"}, "they are stopped", 60)
