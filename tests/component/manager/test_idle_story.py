"""Unused jobs from the first warning to the stop: a real Hub and Manager, a real Prometheus on simulated GPUs.

Windows are as short as they may be, a minute. All jobs of the first Hub begin together; each test waits for its own.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests

from tests.bench.spawn import RESPONDER
from tests.component.manager import metrics
from tests.component.manager.quota import QuotaHub, running
from tests.component.manager.rest import SCOPES
from tests.component.manager.test_queue_hub import Plain
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import free_port

pytestmark = [pytest.mark.slow, pytest.mark.real]

SECONDS = 240.0
HOMES = "c.KubeSpawner.storage_pvc_ensure = True\n"
GPU_OPTIONS = {"gpus": {"default": 1, "max": 8}, "gpu_type": {}, "team": {}, "preemptible": {"default": False}}
LOGS = {"log_dir": {"default": "runs"}, "team": {}}


def template(title: str, program: str, options: dict[str, Any], **idle: Any) -> dict[str, Any]:
    command = ["python3", "-S", "-c", program]
    return {"title": title, "command": command, "options": options, "grace_period_seconds": 1, "idle": idle}


TEMPLATES = {
    "short": template("Short", RESPONDER, GPU_OPTIONS, window_seconds=60),
    "board": template("Board", RESPONDER, LOGS, window_seconds=60, counts=["http"]),
    "writer": template("Writer", RESPONDER, LOGS, window_seconds=3600),
}
JOBS = {
    "alice": {"template": "short", "gpus": 2},
    "dan": {"template": "board", "log_dir": "runs"},
    "frank": {"template": "board", "log_dir": "runs"},
}


@dataclass
class StoryHub(QuotaHub):
    """One with a Prometheus."""

    metrics_port: int = field(default_factory=free_port)
    tokens: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        super().prepare()
        for name, made in TEMPLATES.items():
            (self.templates / "jobs" / f"{name}.yaml").write_text(json.dumps(made))
        with (self.config / "cluster.yaml").open("a") as file:
            file.write("idle: {metrics_age_seconds: 30, dry_run: false}\n")

    def exporters(self) -> dict[str, str]:
        """The addresses of the nodes' exporters of GPU metrics."""
        nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return {
            node["metadata"]["name"]: f"{address['address']}:9400"
            for node in nodes
            for address in node["status"]["addresses"]
            if address["type"] == "InternalIP" and self.resource in node["status"]["capacity"]
        }

    def token(self, user: str) -> str:
        if user not in self.tokens:
            answer = self.api("POST", f"/users/{user}/tokens", {})
            assert answer.status_code == 201, answer.text
            self.tokens[user] = str(answer.json()["token"])
        return self.tokens[user]

    def manager(self, user: str, path: str) -> requests.Response:
        headers = {"Authorization": f"token {self.token(user)}"}
        return requests.get(f"{self.manager_url()}/services/jobs/api/{path}", headers=headers, timeout=60)

    def judged(self, user: str, server: str = "") -> dict[str, Any]:
        """The latest evaluation of a job."""
        answer = self.manager("admin", "idle")
        jobs = answer.json()["jobs"] if answer.status_code == 200 else ()
        return next((job for job in jobs if (job["user"], job["server"]) == (user, server)), {})

    def told(self, user: str) -> list[dict[str, Any]]:
        """The notices of a user."""
        answer = self.manager(user, "notices")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["notices"]
        return found

    def start_again(self, user: str) -> None:
        """By the button on the page Jobs."""
        with Plain(self, user) as person:
            home = person.visit("/services/jobs/")
            assert "The job was stopped because it was not used for" in home.text
            person.press(home, "/jobs/start")
        wait_for(lambda: f"{user}/" in self.ready(), "it runs again", 120)

    @contextlib.contextmanager
    def metered(self) -> Iterator[None]:
        """A Prometheus measures the GPUs meanwhile."""
        folder = self.state / "prometheus"
        folder.mkdir()
        with metrics.prometheus(folder, self.exporters(), self.metrics_port):
            yield


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoryHub]:
    made = StoryHub(tmp_path_factory.mktemp("story"), extra=SCOPES + HOMES)
    made.settings = ("--Manager.cull_every=1", f"--GpuMetrics.prometheus_url=http://127.0.0.1:{made.metrics_port}")
    with running(made), made.metered():
        made.api("POST", "/users/admin", {"admin": True})
        made.add_users([*JOBS])
        for user, options in JOBS.items():
            answer = made.start_server(user, **options)
            assert answer.status_code in {201, 202}, answer.text
        wait_for(lambda: set(made.ready()) >= {f"{user}/" for user in JOBS}, "all of them", 180)
        # frank's logs are written by another job of his.
        answer = made.api("POST", "/users/frank/servers/train", {"user_options": {"template": "writer"}})
        assert answer.status_code in {201, 202}, answer.text
        yield made


def test_unused_job_is_warned_stopped_and_started_again_with_its_options(hub: StoryHub) -> None:
    hub.kubectl("exec", "jupyter-alice", "--", "sh", "-c", "echo kept > $HOME/file")
    wait_for(lambda: "alice/" not in hub.servers(), "it is stopped", SECONDS)
    log = (hub.state / "manager.log").read_text()
    assert re.findall(r"notice=\S+ job=\S+ user=alice server= kind=idle cause=(\d+) %", log) == ["50", "90"]
    wait_for(lambda: hub.metric("dlspawner_culls_total", reason="idle", gpu_type="gpu"), "it is counted", 60)
    wait_for(lambda: not hub.told("alice"), "the notices are withdrawn", 60)
    hub.start_again("alice")
    pod = json.loads(hub.kubectl("get", "pod", "jupyter-alice", "-o", "json"))
    assert pod["spec"]["containers"][0]["resources"]["limits"][hub.resource] == "2"
    assert hub.kubectl("exec", "jupyter-alice", "--", "sh", "-c", "cat $HOME/file") == "kept\n"


def test_board_lives_as_long_as_its_logs_are_written(hub: StoryHub) -> None:
    wait_for(lambda: "dan/" not in hub.servers(), "the one whose logs nobody writes is stopped", SECONDS)
    wait_for(lambda: hub.judged("frank").get("why") == "used", "the other one is used", 60)
    assert {"frank/", "frank/train"} <= set(hub.ready())
