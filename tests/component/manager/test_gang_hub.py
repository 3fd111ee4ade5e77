"""Schedulers of gangs underneath a real Hub: jobs of several pods, of which all start or none.

On real control planes alone (`make test-on-control-planes`), with the real schedulers (`tests/kubernetes/engines.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.component.manager.crowds import SETTINGS
from tests.component.manager.quota import OPTIONS, TEMPLATE, QuotaHub, running
from tests.component.manager.test_queue_hub import ask
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Person
from tests.kubernetes import engines, planes

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]
GPUS = 4
NODES = f"nodes: [{{name: gpus, cpu: 32, memory: 64Gi, gpus: {{nvidia.com/gpu: {GPUS}}}}}]"
SCHEDULERS = {"volcano": "volcano", "coscheduling": engines.COSCHEDULING, "gang": "default-scheduler"}
SCHEDULER = """
scheduling: {priority_classes: {guaranteed: high, preemptible: low}}
scheduler: {name: %s, scheduler_name: %s}
"""
VALUES = {"high": 1000, "low": 0}
PODS = [{"role": "chief"}, {"role": "worker", "count": "${workers}"}]
SSH = {"name": "ssh", "port": 2222, "protocol": "ssh", "expose": "nodeport"}
WORKERS = {"type": "integer", "min": 1, "max": 8, "default": 2}


@dataclass
class GangHub(QuotaHub):
    """With an engine between the cluster and the Manager."""

    name: str = ""
    engine: engines.Engine = field(init=False)

    def prepare(self) -> None:
        several = {**TEMPLATE, "options": {**OPTIONS, "workers": WORKERS}, "pods": PODS, "endpoints": [SSH]}
        self.own_templates = {"tiny": {**TEMPLATE, "options": OPTIONS}, "several": several}
        self.policy = SCHEDULER % (self.name, SCHEDULERS[self.name])
        super().prepare()
        self.nodes = self.state / "nodes.yaml"
        self.nodes.write_text(NODES)

    def apply(self, api_version: str, kind: str, name: str, **fields: object) -> None:
        if kind == "PriorityClass":
            fields = {"value": VALUES[name]}
        super().apply(api_version, kind, name, **fields)

    def join_real(self) -> None:
        super().join_real()
        assert self.plane is not None
        self.engine = engines.install(self.name, self.plane)

    def leave_real(self) -> None:
        if self.plane is not None:
            planes.discard(self.plane)
            self.plane = None

    def launch(self, user: str, **options: object) -> None:
        self.api("POST", f"/users/{user}/server", {"user_options": options})

    def placed(self, user: str) -> int:
        mine = [pod for pod in self.pods() if pod["metadata"]["labels"]["dlspawner.dev/user"] == user]
        return sum(bool(pod["spec"].get("nodeName")) for pod in mine)

    def why(self, user: str) -> str:
        """What the person's programs read of a job that waits; empty for none."""
        answer = ask(Person(self, user), "GET")
        found = answer.json() if answer.ok else {}
        return str(found["why"]) if found.get("state") == "queued" else ""


@pytest.fixture(scope="module", params=list(SCHEDULERS))
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GangHub]:
    with running(GangHub(tmp_path_factory.mktemp(request.param), settings=SETTINGS, name=request.param)) as made:
        made.add_users(["three", "four", "borrower", "owner"])
        yield made


def test_of_two_jobs_one_runs_whole_and_the_other_waits_whole_with_the_engines_words(hub: GangHub) -> None:
    hub.launch("three", template="several", workers=2, gpus=1)
    hub.launch("four", template="several", workers=3, gpus=1)
    (first,) = wait_for(hub.ready, "one of them runs", 120)
    waits = {"three/": "four", "four/": "three"}[first]
    wait_for(lambda: "has no place for it yet: " in hub.why(waits), "the engine says why the other one waits", 120)
    pods = {"three": 3, "four": 4}
    assert (hub.placed(first[:-1]), hub.placed(waits)) == (pods[first[:-1]], 0)
    hub.engine.kill()
    hub.kill("hub")
    hub.start_hub()
    hub.engine.start()
    assert hub.api("DELETE", f"/users/{first[:-1]}/server").ok
    wait_for(lambda: hub.ready() == [f"{waits}/"], "the other one runs when there is room", 180)
    assert hub.placed(waits) == pods[waits]
    assert len(hub.pods()) == pods[waits]


def test_preemptible_job_goes_for_a_guaranteed_one_and_comes_back(hub: GangHub) -> None:
    hub.launch("borrower", gpus=GPUS, preemptible=True, requeue=True)
    wait_for(lambda: hub.ready() == ["borrower/"], "it runs", 120)
    before = hub.rows("SELECT job, submitted FROM jobs WHERE state <> 'ended'")
    hub.launch("owner", gpus=GPUS)
    wait_for(lambda: hub.ready() == ["owner/"], "it has its GPUs", 180)
    wait_for(lambda: "has no place for it yet: " in hub.why("borrower"), "the other one waits again", 120)
    told = hub.rows("SELECT detail FROM job_events WHERE reason = 'preempted'")
    assert "has stopped it for another job: " in told[-1][0], told
    assert hub.api("DELETE", "/users/owner/server").ok
    wait_for(lambda: hub.ready() == ["borrower/"], "it runs again", 180)
    assert hub.rows("SELECT job, submitted FROM jobs WHERE user_name = 'borrower'") == before
