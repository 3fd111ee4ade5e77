"""An owner wants their GPUs back: through a real Hub, on whichever cluster it has."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import requests

from tests.component.manager.quota import GPUS, TEMPLATE, QuotaHub, Sampler, gpus_of
from tests.component.manager.test_queue_hub import Plain
from tests.contract.client import Client
from tests.e2e.people import wait_for

OPTIONS = {**TEMPLATE["options"], "preemptible": {"default": False}, "requeue": {"default": False}}
SCHEDULING = """
scheduling:
  notice_seconds: 60
  min_run_seconds: 0
  priority_classes: {guaranteed: dlspawner-guaranteed, preemptible: dlspawner-preemptible}
"""
TEAMS = "teams:\n  owners: {title: Owners, quota: {gpu: %d}}\n  default: {title: Everybody, quota: {gpu: 0}}\n"
EXTRA = """
c.JupyterHub.load_roles[-1]["scopes"] += ["tokens", "groups", "admin:groups"]
"""
SECONDS = 240.0

# A start is answered when it is refused or ready, also where a busy machine takes longer than a second for that.
PATIENT = '\nc.JupyterHub.tornado_settings = {"slow_spawn_timeout": 30}\n'


class LendingHub(QuotaHub):
    """All GPUs belong to the team *owners*; everybody else may borrow them."""

    def prepare(self) -> None:
        super().prepare()
        self.extra += PATIENT
        (self.templates / "jobs" / "tiny.yaml").write_text(json.dumps({**TEMPLATE, "options": OPTIONS}))
        with (self.config / "cluster.yaml").open("a") as file:
            file.write(SCHEDULING)

    def set_quota(self, gpus: int) -> None:
        (self.config / "teams.yaml").write_text(TEAMS % gpus)

    def told(self, user: str) -> list[dict[str, Any]]:
        """The notices; none while no Manager leads."""
        found: list[dict[str, Any]] = self.ask(user, "notices").get("notices", [])
        return found

    def live(self, user: str) -> list[tuple[str, str]]:
        """The id and submit time of what this person has that has not ended."""
        return [(one["id"], one["submitted"]) for one in self.ask(user, "jobs?state=live")["items"]]

    def ask(self, user: str, path: str) -> dict[str, Any]:
        """What the Manager answers this person."""
        made = self.api("POST", f"/users/{user}/tokens", {})
        assert made.status_code == 201, made.text
        headers = {"Authorization": f"token {made.json()['token']}"}
        answer = requests.get(f"{self.manager_url()}/services/jobs/api/{path}", headers=headers, timeout=60)
        found: dict[str, Any] = answer.json()
        return found

    def home(self, user: str) -> str:
        """What this person reads there."""
        with Plain(self, user) as person:
            return person.visit("/services/jobs/").text

    def reads_at_home(self, user: str, words: str) -> None:
        """This person reads these words there, from a Manager that the page waits for two seconds at most."""
        wait_for(lambda: words in self.home(user), f"{user} reads: {words}", 30)

    def holds(self) -> dict[str, int]:
        """GPUs by the person whose pods hold them."""
        found: dict[str, int] = {}
        for pod in json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]:
            user = pod["metadata"]["annotations"]["hub.jupyter.org/username"]
            found[user] = found.get(user, 0) + gpus_of(pod, self.resource)
        return {user: gpus for user, gpus in found.items() if gpus}


@contextlib.contextmanager
def lendable(kubernetes: Client, resource: str) -> Iterator[None]:
    """As many GPUs of a kind of their own on one node as the owners have quota."""
    name = kubernetes.get("/api/v1/nodes")["items"][0]["metadata"]["name"]
    path, kinds = f"/api/v1/nodes/{name}/status", ("capacity", "allocatable")
    kubernetes.patched(path, {"status": {kind: {resource: str(GPUS)} for kind in kinds}}, "merge")
    yield
    kubernetes.patched(path, {"status": {kind: {resource: None} for kind in kinds}}, "merge")


def preempted(hub: LendingHub) -> float | None:
    """How many jobs of everybody's team, as it is counted for a Prometheus."""
    return hub.metric("dlspawner_preemptions_total", team="default", gpu_type="gpu")


def an_owner_gets_their_gpus_back(hub: LendingHub) -> None:
    """The whole of it: borrowed, asked for, notice, stopped, given, waiting again, and back."""
    hub.add_users(["borrower", "other", "owner"])
    hub.api("POST", "/groups/owners", {})
    hub.api("POST", "/groups/owners/users", {"users": ["owner"]})
    for user, requeue in (("borrower", True), ("other", False)):
        answer = hub.start_server(user, gpus=GPUS // 2, preemptible=True, requeue=requeue)
        assert answer.status_code in {201, 202}, answer.text
    half = GPUS // 2
    wait_for(lambda: set(hub.ready()) == {"borrower/", "other/"}, "the GPUs are borrowed", SECONDS)
    labelled = hub.kubectl("get", "pods", "-l", "preemption=allow", "-o", "name").split()
    assert len(labelled) == 2
    classes = {
        pod["spec"]["priorityClassName"] for pod in json.loads(hub.kubectl("get", "pods", "-o", "json"))["items"]
    }
    assert classes == {"dlspawner-preemptible"}
    first = hub.live("borrower")
    assert len(first) == 1
    assert preempted(hub) == 0

    with Sampler(hub) as sampler:
        answer = hub.start_server("owner", team="owners", gpus=GPUS)
        assert answer.status_code == 429, answer.text
        wait_for(lambda: hub.told("borrower") and hub.told("other"), "they are told", SECONDS)
        (notice,) = hub.told("borrower")
        assert notice["kind"] == "preempted"
        assert "Owners" in notice["text"] or "owners" in notice["text"]
        assert hub.holds() == {"borrower": half, "other": half}
        hub.reads_at_home("other", "preemptible")
        hub.kill("manager")
        hub.start_manager()
        (again,) = wait_for(lambda: hub.told("borrower"), "the new Manager leads", SECONDS)
        assert (again["id"], again["until"]) == (notice["id"], notice["until"])

        wait_for(lambda: "owner/" in hub.ready(), "the owner has them", SECONDS)
    assert hub.holds() == {"owner": GPUS}
    assert sampler.most == GPUS
    hub.reads_at_home("other", "stopped")
    hub.reads_at_home("borrower", "in the queue")
    assert hub.live("borrower") == first, "the same job, with its first submit time"
    assert hub.live("other") == []
    assert preempted(hub) == 2

    hub.api("DELETE", "/users/owner/server")
    wait_for(lambda: "borrower/" in hub.ready(), "who asked to wait is back", SECONDS)
    assert hub.holds() == {"borrower": half}
    assert hub.live("borrower") == first
    assert preempted(hub) == 2, "who goes by themselves was not preempted"
    assert "Traceback" not in hub.log
