"""A borrower who has to leave reads it wherever they are, has the promised time, and may save; through real processes.

A Hub, its proxy, a Manager that is killed during the notice, JupyterLab with our extension in somebody's browser, and a
gateway with somebody at an SSH terminal. The owners' team has not opted in to stop jobs of its own.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Page, expect, sync_playwright

from tests.component.manager.crowds import rows
from tests.component.manager.preempt_story import EXTRA, OPTIONS, LendingHub, lendable
from tests.component.manager.quota import GPUS, TEMPLATE, Sampler, running
from tests.component.manager.test_queue_hub import enter
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.chromium import LAUNCH, PATIENCE
from tests.harness.spawner_hub import free_port

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.real]
RESOURCE = "told.example.com/gpu"
SECONDS = 240.0
HALF = GPUS // 2
NOTICE, MIN_RUN = timedelta(seconds=60), timedelta(seconds=30)
GRACE = 40
ASKS_NOBODY = "--LabApp.news_url= --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"
SAVING = timedelta(seconds=10)
SAVES = f"trap 'sleep {SAVING.seconds}; echo work was saved; exit 0' TERM; jupyterhub-singleuser {ASKS_NOBODY} & wait"
NOTEBOOK = {
    "title": "Notebook",
    "command": ["sh", "-c", SAVES],
    "options": {**OPTIONS, "priority": {}},
    "endpoints": [{"name": "ssh", "port": 2222, "protocol": "ssh", "expose": "nodeport"}],
    "grace_period_seconds": GRACE,
}
WHY = "Team Owners needs these GPUs for a guaranteed job: this preemptible job has to leave"


@dataclass
class ToldHub(LendingHub):
    """One with a gateway, and with jobs in which somebody can be told."""

    ssh_port: int = field(default_factory=free_port)

    def prepare(self) -> None:
        super().prepare()
        (self.templates / "jobs" / "notebook.yaml").write_text(json.dumps(NOTEBOOK))
        tiny = {**TEMPLATE, "options": NOTEBOOK["options"]}
        (self.templates / "jobs" / "tiny.yaml").write_text(json.dumps(tiny))
        file = self.config / "cluster.yaml"
        usual, wanted = "min_run_seconds: 0", f"min_run_seconds: {MIN_RUN.seconds}"
        assert usual in file.read_text()
        file.write_text(file.read_text().replace(usual, wanted))
        command = [sys.executable, "-m", "ssh_gateway", "--init", f"--Gateway.state_dir={self.state / 'gateway'}"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def env(self) -> dict[str, str]:
        return {**super().env(), "DLSPAWNER_SSH_CA": str(self.state / "gateway" / "user_ca.pub")}

    def start_gateway(self) -> None:
        command = [
            *(sys.executable, "-m", "ssh_gateway", "--Gateway.ip=127.0.0.1", f"--Gateway.port={self.ssh_port}"),
            f"--Gateway.state_dir={self.state / 'gateway'}",
            f"--Gateway.manager_url={self.manager_url()}/services/jobs",
            f"--Gateway.namespace={self.namespace}",
            f"--Gateway.hub_public_url={self.url}/",
        ]
        self.run_with("gateway", command, {"JUPYTERHUB_API_TOKEN": "gateway-token"})
        wait_for(lambda: "event=ready" in (self.state / "gateway.log").read_text(), "the gateway", 60)

    def token(self, user: str) -> str:
        made = self.api("POST", f"/users/{user}/tokens", {})
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

    def told_again(self, user: str) -> list[dict[str, Any]]:
        """The notices; none while no Manager decides."""
        try:
            return self.told(user)
        except KeyError:
            return []

    def portal(self, user: str) -> str:
        """The list of one's jobs."""
        headers = {"Authorization": f"token {self.token(user)}"}
        return requests.get(f"{self.url}/services/jobs/", headers=headers, timeout=60).text

    def in_jupyterlab(self, user: str) -> list[dict[str, Any]]:
        """The notices that the extension of this person's notebook server hands to its windows."""
        headers = {"Authorization": f"token {self.token(user)}"}
        answer = requests.get(f"{self.url}/user/{user}/dlspawner/notices?after=", headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["notices"]
        return found

    def ending(self, user: str) -> int:
        """The seconds that this person's pod has to end, once it was told to."""
        found = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
        named = [pod["metadata"] for pod in found if pod["metadata"]["name"] == f"jupyter-{user}"]
        return next((int(one.get("deletionGracePeriodSeconds", 0)) for one in named), 0)

    def began(self, user: str) -> datetime:
        """When this person's only job began to run, as the Manager has it."""
        return next(read_time(at) for name, at in rows(self, "SELECT user_name, started FROM jobs") if name == user)

    def events(self, user: str) -> list[tuple[str, datetime]]:
        """What became of this person's only job."""
        query = "SELECT user_name, job_events.reason, job_events.at FROM job_events JOIN jobs USING (job)"
        found = rows(self, f"{query} ORDER BY job_events.id")
        return [(reason, read_time(at)) for name, reason, at in found if name == user]


def read_time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToldHub]:
    folder = tmp_path_factory.mktemp("told")
    extra = EXTRA + 'c.JupyterHub.load_roles[-1]["scopes"] += ["access:servers", "access:services"]\n'
    settings = ("--Manager.lease_seconds=3",)
    url = f"sqlite:///{folder / 'manager.sqlite'}"
    made = ToldHub(folder, db_url=url, extra=extra, resource=RESOURCE, settings=settings)
    with running(made) as started, lendable(Client(started.kubeconfig), RESOURCE):
        started.start_gateway()
        yield started


@contextlib.contextmanager
def output(command: list[str], to: Path, hub: ToldHub) -> Iterator[Path]:
    """What a program shows until it has ended."""
    with to.open("wb") as file:
        process = subprocess.Popen(command, env=hub.env(), stdin=subprocess.PIPE, stdout=file, stderr=file)
    try:
        yield to
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def terminal(hub: ToldHub, user: str) -> Iterator[Path]:
    """Somebody who is logged in to their default server, and what they see."""
    key = hub.state / f"{user}_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    body = {"key": key.with_suffix(".pub").read_text().strip(), "name": "laptop"}
    headers = {"Authorization": f"token {hub.token(user)}"}
    added = requests.post(f"{hub.manager_url()}/services/jobs/api/keys", headers=headers, json=body, timeout=60)
    assert added.status_code == 201, added.text
    options = [
        "IdentitiesOnly=yes",
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        f"UserKnownHostsFile={hub.state / 'known'}",
    ]
    ssh = ["ssh", "-F", "none", "-p", str(hub.ssh_port), "-i", str(key)]
    ssh += [part for option in options for part in ("-o", option)]
    ssh += [f"{user}@127.0.0.1"]
    wait_for(
        lambda: subprocess.run([*ssh[:1], "-n", *ssh[1:], "true"], check=False).returncode == 0, "its sshd answers", 90
    )
    with output([*ssh[:1], "-tt", *ssh[1:], "echo logged in; sleep 600"], hub.state / "terminal", hub) as shown:
        wait_for(lambda: "logged in" in shown.read_text(), f"the login; see {shown}", 90)
        yield shown


@contextlib.contextmanager
def window(hub: ToldHub, user: str) -> Iterator[Page]:
    """Somebody's JupyterLab in a browser, which has asked for notices by now."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(**LAUNCH)
        page = chromium.new_page(viewport={"width": 1200, "height": 800}, locale="en-GB", timezone_id="UTC")
        page.set_default_timeout(PATIENCE)
        enter(page, hub, user)
        with page.expect_request(lambda asked: "/dlspawner/notices?after=" in asked.url):
            page.goto(f"{hub.url}/user/{user}/lab")
        yield page
        chromium.close()


def lends(hub: ToldHub) -> None:
    """Half of the owners' GPUs is lent, the other half is one of their own; a third one wants all of them."""
    hub.add_users(["borrower", "lead", "late", "owner", "more"])
    hub.api("POST", "/groups/owners", {})
    assert hub.api("POST", "/groups/owners/users", {"users": ["lead", "late", "owner"]}).status_code == 200
    borrows = {"template": "notebook", "gpus": HALF, "preemptible": True}
    for user, options in {"borrower": borrows, "lead": {"gpus": HALF, "team": "owners", "priority": "test"}}.items():
        answer = hub.start_server(user, **options)
        assert answer.status_code in {201, 202}, answer.text
    wait_for(lambda: set(hub.ready()) == {"borrower/", "lead/"}, "both run", SECONDS)


def nobody_leaves_in_vain(hub: ToldHub) -> None:
    """The borrower's end would not let that start, and who is of the same team is not asked to make room."""
    said = hub.refusal("late", hub.start_server("late", team="owners", gpus=GPUS, priority="prod"))
    assert said.startswith(f"Team Owners uses {HALF} of its {GPUS} GPUs of type gpu; this job needs {GPUS}.")
    assert "in the queue" in hub.refusal("more", hub.start_server("more", gpus=1, preemptible=True))
    assert (hub.told("borrower"), hub.told("lead")) == ([], [])
    assert {reason for user in ("borrower", "lead") for reason, _ in hub.events(user)}.isdisjoint({"preemption-notice"})


def test_who_has_to_leave_reads_it_everywhere_once_and_may_save_although_the_manager_is_killed_meanwhile(
    hub: ToldHub,
) -> None:
    lends(hub)
    nobody_leaves_in_vain(hub)
    logs = [hub.kubectl_program, "-n", hub.namespace, "logs", "-f", "jupyter-borrower", "-c", "notebook"]
    with (
        output(logs, hub.state / "borrower.log", hub) as log,
        terminal(hub, "borrower") as shown,
        window(hub, "borrower") as page,
        Sampler(hub) as sampler,
    ):
        told = page.locator(".Toastify__toast", has_text=WHY)
        expect(told).to_have_count(0)
        hub.refusal("owner", hub.start_server("owner", team="owners", gpus=HALF))
        (notice,) = wait_for(lambda: hub.told("borrower"), "the borrower is told", SECONDS)
        announced = read_time(notice["until"])
        assert announced >= hub.began("borrower") + MIN_RUN + NOTICE, "a young one is protected"
        wait_for(lambda: WHY in shown.read_text(), "the terminal says so", SECONDS)
        expect(told).to_contain_text(re.compile(f"{WHY} at .*{announced:%H:%M}"))
        expect(told).to_be_visible()
        assert WHY in str(hub.in_jupyterlab("borrower"))
        hub.reads_at_home("borrower", WHY)
        assert WHY in hub.portal("borrower")

        hub.kill("manager")
        assert {"borrower/", "lead/"} == set(hub.ready())
        hub.start_manager()
        (again,) = wait_for(lambda: hub.told_again("borrower"), "it decides again", SECONDS)
        assert (again["id"], read_time(again["until"])) == (notice["id"], announced)
        expect(told).to_have_count(1)
        assert wait_for(lambda: hub.ending("borrower"), "it is stopped", SECONDS) == GRACE, "its template's"
        wait_for(lambda: "owner/" in hub.ready(), "the owner has them", SECONDS)
        wait_for(lambda: "work was saved" in log.read_text(), "what it said last is shown", 60)
        assert len(re.findall(re.escape(WHY), shown.read_text())) == 1, "one line"
    assert sampler.most == GPUS
    stopped, gone = (dict(hub.events("borrower"))[reason] for reason in ("preempted", "gone"))
    assert gone - stopped >= SAVING
    assert dict(hub.events("owner"))["scheduled"] >= gone, "while it saves, its GPUs are not free"
    reasons = [reason for reason, _ in hub.events("borrower")]
    assert (reasons.count("preemption-notice"), reasons[-2:]) == (1, ["preempted", "gone"])
    assert announced <= dict(hub.events("borrower"))["preempted"] < announced + NOTICE
    assert set(hub.ready()) == {"lead/", "owner/"}
    assert hub.told("lead") == []
    hub.reads_at_home("borrower", "stopped after notice")
    assert "Traceback" not in hub.log + (hub.state / "manager.log").read_text()
