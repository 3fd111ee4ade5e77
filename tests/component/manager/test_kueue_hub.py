"""Kueue underneath a real Hub: it queues, admits and preempts the jobs of a team with one GPU.

On real control planes alone (`make test-on-control-planes`), with the real Kueue (`tests/kubernetes/kueue.py`).
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import OPTIONS, TEMPLATE, QuotaHub, running
from tests.component.manager.test_queue_hub import Plain, ask
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import ROOT, Person
from tests.kubernetes import kueue, planes
from tests.kubernetes.kueue import Kueue

pytestmark = pytest.mark.real
PODS = [{"role": "chief"}, {"role": "worker", "count": 2, "memory": "32Mi"}]  # two pod sets
SSH = {"name": "ssh", "port": 2222, "protocol": "ssh", "expose": "nodeport"}
SCHEDULER = "scheduler: {name: kueue, priority_classes: {prod: high}}\nscheduling: {notice_seconds: 60}\n"
SHORT = re.compile(
    r"Kueue has not admitted it yet: couldn't assign flavors .*insufficient unused quota for nvidia.com/gpu"
)

# Kueue 0.15 may write at its start that a ClusterQueue does not exist, and says otherwise only when it looks again.
WAITS = re.compile("Kueue has not admitted it yet: ")


TEAMS = """
teams:
  lenders: {members: [owner], quota: {gpu: %d}}
  default: {title: Everybody, preempt_within_team: true, quota: {gpu: %d}}
"""
TINY = {**TEMPLATE, "options": {**OPTIONS, "priority": {}}}
SEVERAL = {**TINY, "pods": PODS, "endpoints": [SSH]}


@dataclass
class KueueHub(QuotaHub):
    """With Kueue between the cluster and the Manager."""

    gpus: int = 1
    teams: str = TEAMS
    policy: str = SCHEDULER
    own_templates: Mapping[str, object] = field(default_factory=lambda: {"tiny": TINY, "several": SEVERAL})
    kueue: Kueue = field(init=False)
    _stops: contextlib.ExitStack = field(init=False)

    def start_cluster(self) -> None:
        super().start_cluster()
        assert self.plane is not None
        self._stops = contextlib.ExitStack()
        self.kueue = self._stops.enter_context(kueue.running(self.plane, self.state / "kueue"))
        assert "ClusterQueue team-default: made" in self.apply_queues()
        again = self.apply_queues()
        assert not re.search("made|changed", again), self.kubectl("get", "clusterqueues", "-o", "json")
        self.tolerate()
        self.manager_kubeconfig = self._as_manager()

    def tolerate(self) -> None:
        """An administrator's own change of a flavor, until the next `apply_queues`."""
        extra = {"spec": {"tolerations": [{"key": "of-the-flavor", "operator": "Exists"}]}}
        self.kubectl("patch", "resourceflavor", "gpu", "--type=merge", f"--patch={json.dumps(extra)}")

    def _as_manager(self) -> Path:
        """A kubeconfig with the rights of the product's manifests, and no others."""
        self.kueue.kubectl("create", "namespace", "dlspawner")
        for file in ("base/access.yaml", "components/kueue/access.yaml"):
            content = (ROOT / "hub_config" / "kubernetes" / file).read_text().replace("dlspawner-jobs", self.namespace)
            made = self.state / f"{Path(file).parts[-2]}.yaml"
            made.write_text(content)
            self.kueue.kubectl("apply", "-f", str(made))
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {
            "token": self.kueue.kubectl("-n", "dlspawner", "create", "token", "manager").strip()
        }
        made = self.state / "manager.kubeconfig"
        made.write_text(yaml.safe_dump(config))
        return made

    def apply_queues(self) -> str:
        files = {"templates": self.templates / "jobs", "cluster": self.config / "cluster.yaml"}
        given = [f"--{name}={file}" for name, file in {**files, "teams": self.config / "teams.yaml"}.items()]
        command = [sys.executable, "-m", "dlspawner.cli", "kueue", "apply", *given, f"--namespace={self.namespace}"]
        return subprocess.run(command, env=self.env(), check=True, capture_output=True, text=True).stdout

    def leave_real(self) -> None:
        self._stops.close()
        if self.plane is not None:
            planes.discard(self.plane)
            self.plane = None

    def workloads(self) -> dict[str, dict[str, Any]]:
        """By the users of their jobs; those of no job by their names."""
        users = {job: user for user, job in self.rows("SELECT user_name, job FROM jobs")}
        items = json.loads(self.kubectl("get", "workloads", "-o", "json"))["items"]
        return {users.get(one["metadata"]["name"], one["metadata"]["name"]): one for one in items}

    def pods_of(self, user: str) -> int:
        return sum(pod["metadata"]["labels"]["dlspawner.dev/user"] == user for pod in self.pods())

    def holds(self) -> int:
        """Workloads with a reservation, as Kueue counts them a moment later."""
        return int(self.kubectl("get", "clusterqueue", "team-default", "-o", "jsonpath={.status.reservingWorkloads}"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KueueHub]:
    with running(KueueHub(tmp_path_factory.mktemp("kueue"), settings=SETTINGS)) as made:
        yield made


def told(hub: KueueHub, user: str) -> tuple[str, int, str]:
    """State, position and reason, as programs read them."""
    answer = ask(Person(hub, user), "GET")
    found = answer.json() if answer.ok else {}
    return found.get("state", ""), found.get("position", 0), found.get("why", "")


def until_told(hub: KueueHub, user: str, position: int, words: re.Pattern[str] = SHORT) -> None:
    last: list[object] = []

    def right() -> bool:
        state, place, why = last[:] = told(hub, user)
        return state == "queued" and place == position and bool(words.match(why))

    try:
        wait_for(right, f"{user} is number {position} and reads {words.pattern}", 60)
    except AssertionError as late:
        raise AssertionError(f"{late}: {last}") from None


def stop(hub: KueueHub, user: str) -> None:
    assert hub.api("DELETE", f"/users/{user}/server").ok


def test_jobs_wait_in_kueue_and_run_when_it_admits_them(hub: KueueHub) -> None:
    hub.add_users(["ann", "bob", "carol"])
    hub.start_server("ann", gpus=1, requeue=True)
    wait_for(lambda: hub.ready() == ["ann/"], "ann's job runs")
    (pod,) = hub.pods()
    assert {"key": "of-the-flavor", "operator": "Exists"} in pod["spec"]["tolerations"]
    assert not pod["spec"].get("schedulingGates")
    wait_for(lambda: "PodsReady" in str(hub.workloads()["ann"]["status"]), "Kueue is told that the pods run")

    # Position and reason are Kueue's.
    assert "in the queue" in hub.refusal("bob", hub.start_server("bob", gpus=1))
    until_told(hub, "bob", 1)
    assert "in the queue" in hub.refusal("carol", hub.start_server("carol", gpus=1))
    until_told(hub, "carol", 2)
    with Plain(hub, "carol") as person:
        page = person.place("carol").text
        assert 'id="place">2<' in page
        assert "insufficient unused quota for nvidia.com/gpu in flavor gpu, 1 more needed" in page

    # A job that is cancelled is no account in Kueue any more.
    assert ask(Person(hub, "carol"), "DELETE").ok
    wait_for(lambda: set(hub.workloads()) == {"ann", "bob"}, "carol's Workload is gone")

    stop(hub, "ann")
    wait_for(lambda: hub.ready() == ["bob/"], "bob's job runs")
    assert set(hub.workloads()) == {"bob"}
    stop(hub, "bob")
    wait_for(lambda: not hub.workloads() and hub.holds() == 0, "the quota is free")


def test_preempted_job_has_its_notice_and_waits_again_at_its_old_place(hub: KueueHub) -> None:
    hub.add_users(["low", "next", "high", "borrower", "owner"])
    hub.start_server("low", gpus=1, requeue=True)
    hub.start_server("borrower", gpus=1, preemptible=True)
    wait_for(lambda: set(hub.ready()) == {"borrower/", "low/"}, "a job of lower priority runs, and one on a lent GPU")
    hub.start_server("next", gpus=1)
    hub.start_server("owner", gpus=1)
    until_told(hub, "next", 1)
    hub.start_server("high", gpus=1, priority="prod")
    wait_for(lambda: hub.workloads()["high"]["spec"]["priority"] == 100, "the class is in the Workload")
    words = "Kueue takes its GPUs back: Preempted to accommodate a workload due to"
    expected = {
        ("low", f"{words} prioritization in the ClusterQueue."),
        ("borrower", f"{words} reclamation within the cohort."),
    }

    def told() -> set[tuple[str, str]]:
        return {(user, text.partition(" The job")[0]) for user, text in hub.rows("SELECT user_name, text FROM notices")}

    wait_for(lambda: expected <= told(), "both have notice, with Kueue's reason")
    assert hub.workloads()["low"]["status"]["admission"], "Kueue waits until the pod is gone"
    assert "admission" not in hub.workloads()["high"]["status"]
    assert set(hub.ready()) == {"borrower/", "low/"}
    wait_for(lambda: set(hub.ready()) == {"high/", "owner/"}, "the jobs that the others had to leave for run", 150)
    stop(hub, "owner")
    wait_for(lambda: hub.ready() == ["high/"], "its owner's job is gone")
    assert set(hub.workloads()) == {"high", "low", "next"}, "the borrower did not ask for a requeue"
    until_told(hub, "low", 1)  # before the one that came later
    until_told(hub, "next", 2)
    stop(hub, "high")
    wait_for(lambda: hub.ready() == ["low/"], "the preempted job runs again")
    for user in ("low", "next"):
        wait_for(lambda user=user: hub.ready() == [f"{user}/"], f"{user} runs")  # type: ignore[misc]
        stop(hub, user)
    wait_for(lambda: not hub.workloads() and hub.holds() == 0, "the quota is free")


def test_no_job_is_lost_without_kueue_and_no_quota_without_the_manager(hub: KueueHub) -> None:
    hub.add_users(["kept", "waits", "late"])
    hub.start_server("kept", gpus=1)
    wait_for(lambda: hub.ready() == ["kept/"], "a job runs")
    hub.start_server("waits", gpus=1)
    until_told(hub, "waits", 1)

    hub.kueue.stop()
    hub.start_server("late", gpus=1)
    until_told(hub, "late", 2, re.compile("Kueue does not take this job now. It keeps its place"))
    assert hub.ready() == ["kept/"]
    hub.kueue.start()
    until_told(hub, "late", 2, WAITS)
    until_told(hub, "waits", 1, WAITS)

    # A job ends while no Manager lives: the next one gives its quota back, and knows the others.
    hub.kill("manager")
    stop(hub, "kept")
    wait_for(lambda: not hub.pods(), "its pod is gone")
    assert "kept" in hub.workloads()
    hub.start_manager()
    wait_for(lambda: hub.ready() == ["waits/"], "the next one runs")
    until_told(hub, "late", 1, WAITS)
    assert set(hub.workloads()) == {"waits", "late"}
    assert ask(Person(hub, "late"), "DELETE").ok
    stop(hub, "waits")
    wait_for(lambda: not hub.workloads() and hub.holds() == 0, "the quota is free")
    hub.check_logs()


@pytest.fixture
def two_each(hub: KueueHub) -> Iterator[None]:
    """Each team has a quota of two GPUs."""
    hub.set_quota(2)
    hub.apply_queues()
    yield
    hub.set_quota(1)
    hub.apply_queues()
    hub.tolerate()


@pytest.mark.usefixtures("two_each")
def test_job_of_several_pods_waits_runs_and_leaves_whole(hub: KueueHub) -> None:
    """Of four GPUs, three are borrowed for a chief and two workers."""
    hub.add_users(["first", "crew", "claims"])
    hub.start_server("first", gpus=2)
    wait_for(lambda: hub.ready() == ["first/"], "a job runs, and leaves two GPUs")
    hub.start_server("crew", template="several", gpus=1, preemptible=True, requeue=True)
    until_told(hub, "crew", 1)
    workload = hub.workloads()["crew"]
    assert [one["count"] for one in workload["spec"]["podSets"]] == [1, 2]
    before = hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'crew' AND state <> 'ended'")
    assert hub.pods_of("crew") == 0
    stop(hub, "first")
    wait_for(lambda: hub.ready() == ["crew/"], "it runs when there is room for all")
    assert hub.pods_of("crew") == 3
    assigned = hub.workloads()["crew"]["status"]["admission"]["podSetAssignments"]
    assert [one["resourceUsage"]["nvidia.com/gpu"] for one in assigned] == ["1", "2"]
    wait_for(lambda: "PodsReady" in str(hub.workloads()["crew"]["status"]), "Kueue knows that all pods run")

    hub.start_server("claims", gpus=2)
    wait_for(lambda: hub.rows("SELECT 1 FROM notices WHERE user_name = 'crew'"), "it has notice")
    assert (hub.pods_of("crew"), hub.pods_of("claims")) == (3, 0), "one pod fewer would do"
    wait_for(lambda: hub.ready() == ["claims/"], "the owner's job runs", 150)
    assert hub.pods_of("crew") == 0
    until_told(hub, "crew", 1)
    assert hub.workloads()["crew"]["metadata"]["uid"] == workload["metadata"]["uid"], "Kueue keeps its place"
    assert hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'crew' AND state <> 'ended'") == before
    stop(hub, "claims")
    wait_for(lambda: hub.ready() == ["crew/"], "it runs again", 60)
    assert hub.pods_of("crew") == 3
    stop(hub, "crew")
    wait_for(lambda: not hub.workloads() and not hub.pods(), "pods and quota are free")
