"""The OpenPAI lab's experiments through a real Hub, on whichever cluster it has. As decisions: tests/unit/core.

Two nodes with 1 GPU, 2 CPUs and 4 GiB, two virtual clusters (teams) with one GPU each, and jobs that take a whole node.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import yaml

from tests.component.manager.preempt_story import OPTIONS, SCHEDULING, SECONDS, LendingHub
from tests.component.manager.quota import TEMPLATE, Sampler
from tests.e2e.people import wait_for

ONLY = "lab.example.com/only"
TYPE = {
    "cpu_per_gpu": 2,
    "memory_per_gpu": "4Gi",
    "max_per_job": 1,
    "tolerations": [{"key": ONLY, "operator": "Exists"}],
}
CLUSTER = {
    "cpu_only": {"cpu": {"default": "100m"}, "memory": {"default": "64Mi"}},
    "accounts": {"first_uid": 20000, "last_uid": 59999},
    "defaults": {"template": "tiny"},
    **yaml.safe_load(SCHEDULING),
}
TEAMS = {
    "default": {"title": "Everybody"},
    "vc1": {"title": "VC1", "quota": {"gpu": 1}, "preempt_within_team": True},
    "vc2": {"title": "VC2", "quota": {"gpu": 1}, "preempt_within_team": True},
}
MEMBERS = {"vc1": ["ann", "bob", "eve"], "vc2": ["cho", "dee"]}
FULL = "Team {} uses 1 of its 1 GPU of type gpu; this job needs 1."


class LabHub(LendingHub):
    """The two nodes and the two virtual clusters; `join` says who is whose."""

    @property
    def described(self) -> Path:
        """The file that says what the nodes are."""
        return self.state / "nodes.json"

    def prepare(self) -> None:
        super().prepare()
        self.nodes = self.described
        mine, taint = secrets.token_hex(3), {"key": ONLY, "effect": "NoSchedule"}
        alike = {"cpu": 2, "memory": "4Gi", "gpus": {self.resource: 1}, "taints": [taint]}
        self.described.write_text(json.dumps({"nodes": [{"name": f"lab-{mine}-{which}", **alike} for which in (1, 2)]}))
        cluster = {**CLUSTER, "gpu_types": {"gpu": {"resource": self.resource, **TYPE}}}
        (self.config / "cluster.yaml").write_text(json.dumps(cluster))
        template = {**TEMPLATE, "options": {**OPTIONS, "gpus": {"default": 1, "max": 1}, "priority": {}}}
        (self.templates / "jobs" / "tiny.yaml").write_text(json.dumps(template))

    def set_quota(self, gpus: int) -> None:
        (self.config / "teams.yaml").write_text(json.dumps({"teams": TEAMS}))

    def join(self) -> None:
        for team, members in MEMBERS.items():
            self.add_users(members)
            self.api("POST", f"/groups/{team}", {})
            answer = self.api("POST", f"/groups/{team}/users", {"users": members})
            assert answer.status_code == 200, answer.text

    def starts(self, user: str, **options: Any) -> None:
        """Somebody asks, and has it without waiting for anybody."""
        answer = self.start_server(user, gpus=1, **options)
        assert answer.status_code in {201, 202}, answer.text
        self.until_runs(user)

    def waits(self, user: str, **options: Any) -> str:
        """Somebody asks and has to wait; what they are told."""
        return self.refusal(user, self.start_server(user, gpus=1, **options))

    def ends(self, user: str) -> None:
        assert self.api("DELETE", f"/users/{user}/server").status_code in {202, 204}

    def until_runs(self, user: str) -> None:
        wait_for(lambda: f"{user}/" in self.ready(), f"{user} has a server", SECONDS)

    def until_told(self, user: str) -> str:
        """What somebody who has to leave reads."""
        wait_for(lambda: self.told(user), f"{user} is told", SECONDS)
        (notice,) = self.told(user)
        assert notice["kind"] == "preempted"
        return str(notice["text"])

    def pods(self) -> dict[str, tuple[str, str]]:
        """Of every pod by its person: the node, and which pod it is."""
        found = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
        names = [pod["metadata"]["annotations"]["hub.jupyter.org/username"] for pod in found]
        return {name: (pod["spec"]["nodeName"], pod["metadata"]["uid"]) for name, pod in zip(names, found, strict=True)}

    def nodes_used(self) -> int:
        return len({node for node, _ in self.pods().values()})


class LabStories:
    """Three tests; who inherits has a fixture ``lab``."""

    def test_safety_a_virtual_cluster_gets_its_gpu_never_more_and_never_later(self, lab: LabHub) -> None:
        with Sampler(lab) as sampler:
            lab.starts("ann")
            said = lab.waits("bob")
            assert said.startswith(f"{FULL.format('VC1')} It is number 1 in the queue")
            assert lab.nodes_used() == 1, "the other node is idle, and VC2's"

            lab.starts("cho")
            assert lab.nodes_used() == 2
            assert lab.waits("dee").startswith(f"{FULL.format('VC2')} It is number 1 in the queue")
            before = lab.pods()
            assert before.keys() == {"ann", "cho"}
            assert [lab.told(user) for user in before] == [[], []]

            lab.ends("ann")
            lab.until_runs("bob")
            assert lab.holds() == {"bob": 1, "cho": 1}
            assert lab.pods()["cho"] == before["cho"]
        assert sampler.most == 2
        lab.reads_at_home("dee", "in the queue")

    def test_priority_a_prod_job_stops_a_test_job_of_its_own_virtual_cluster_and_of_no_other(self, lab: LabHub) -> None:
        lab.starts("ann", priority="test")
        lab.starts("cho", priority="test")
        theirs = lab.pods()["cho"]
        with Sampler(lab) as sampler:
            assert lab.waits("eve", priority="test").startswith(f"{FULL.format('VC1')} It is number 1 in the queue")
            assert "It is number 1 in the queue" in lab.waits("bob", priority="prod"), "before who came first"
            assert lab.until_told("ann").startswith("A job of your team with a higher priority needs these GPUs")
            assert lab.holds() == {"ann": 1, "cho": 1}, "notice is given first"
            assert lab.told("cho") == []

            lab.until_runs("bob")
            assert lab.pods().keys() == {"bob", "cho"}
            assert lab.pods()["cho"] == theirs
            lab.reads_at_home("ann", "stopped after notice, for one of your team with a higher priority")
            assert lab.told("cho") == []

            lab.ends("bob")
            lab.until_runs("eve")
            assert lab.pods()["cho"] == theirs
        assert sampler.most == 2

    def test_opportunistic_jobs_use_both_nodes_and_leave_for_their_owners_who_stay(self, lab: LabHub) -> None:
        lab.starts("ann", preemptible=True)
        lab.starts("bob", preemptible=True)
        assert lab.nodes_used() == 2, "whoever owns them"
        with Sampler(lab) as sampler:
            lab.waits("eve", preemptible=True, priority="prod")
            assert [lab.told(user) for user in ("ann", "bob")] == [[], []], "they stop no others of their kind"

            lab.waits("cho")
            wait_for(lambda: lab.told("ann") or lab.told("bob"), "one of them is told", SECONDS)
            leaves, stays = ("ann", "bob") if lab.told("ann") else ("bob", "ann")
            assert lab.until_told(leaves).startswith("Team VC2 needs these GPUs for a guaranteed job")
            assert lab.told(stays) == []
            before = lab.pods()

            lab.until_runs("cho")
            assert lab.holds() == {"cho": 1, stays: 1}
            assert lab.pods()[stays] == before[stays]
            assert lab.pods()["cho"][0] == before[leaves][0], "on the node that was asked for"
            lab.reads_at_home(leaves, "stopped after notice, because a team needed its GPUs back")
            owner = lab.pods()["cho"]

            lab.ends(stays)
            lab.until_runs("eve")
            assert lab.waits("dee").startswith(FULL.format("VC2")), "what VC2 has is in use, and nobody leaves for more"
            assert lab.pods()["cho"] == owner
            assert [lab.told(user) for user in ("cho", "eve")] == [[], []]
        assert sampler.most == 2
