"""Whose turn it is, who pays and what a GPU brings along: one Hub that takes two starts at a time, two types of GPU.

Team *wide* has half of each type, *vision* and *text* a quarter of the second one; what is idle may be borrowed.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from dlspawner.core import naming
from tests.component.manager.crowds import live, places, rows, turns
from tests.component.manager.preempt_story import PATIENT, lendable
from tests.component.manager.quota import GPUS, TEMPLATE, QuotaHub, Sampler, running
from tests.component.manager.test_queue_hub import Plain
from tests.contract.client import Client
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]
SECONDS = 120.0
RESOURCES = {"one": "one.example.com/gpu", "two": "two.example.com/gpu"}
SHARE = {"cpu_per_gpu": "50m", "memory_per_gpu": "64Mi", "max_per_job": GPUS}
CLUSTER = {
    "gpu_types": {kind: {"resource": resource, **SHARE} for kind, resource in RESOURCES.items()},
    "cpu_only": {"cpu": {"default": "100m", "max": 2}, "memory": {"default": "96Mi", "max": "2Gi"}},
    "accounts": {"first_uid": 20000, "last_uid": 59999},
    "defaults": {"template": "tiny"},
}
TEAMS = {
    "default": {"title": "Everybody"},
    "wide": {"title": "Wide", "quota": {"one": GPUS // 2, "two": GPUS // 2}},
    "vision": {"title": "Vision", "quota": {"two": GPUS // 4}},
    "text": {"title": "Text", "quota": {"two": GPUS // 4}},
}
OPTIONS = {**TEMPLATE["options"], "preemptible": {"default": False}, "cpu": {}, "memory": {}}
AT_ONCE = 2
CROWD = [f"crowd{number}" for number in range(GPUS)]
# A start of one of the crowd takes long enough for the others to find the Hub full, and one counted failure ends it.
MORE = f"""
import asyncio

async def slowly(spawner):
    if spawner.user.name.startswith("crowd"):
        await asyncio.sleep(2)
c.Spawner.pre_spawn_hook = slowly
c.JupyterHub.concurrent_spawn_limit = {AT_ONCE}
c.Spawner.consecutive_failure_limit = 1
c.JupyterHub.load_roles[-1]["scopes"] += ["groups", "admin:groups"]
"""
MEMBERS = {
    "wide": ["anna", "bert", "cora", "dora", "emil", "asker", "holder", "carl", *CROWD],
    "vision": ["vera", "victor", "both"],
    "text": ["tom", "both"],
}


@dataclass
class SharesHub(QuotaHub):
    """The teams and types; `be_patient` says for how long somebody may be passed."""

    def prepare(self) -> None:
        super().prepare()
        self.extra += PATIENT + MORE
        (self.templates / "jobs" / "tiny.yaml").write_text(json.dumps({**TEMPLATE, "options": OPTIONS}))
        self.be_patient(24 * 3600)

    def be_patient(self, seconds: int) -> None:
        cluster = {**CLUSTER, "scheduling": {"max_backfill_wait_seconds": seconds}}
        (self.config / "cluster.yaml").write_text(json.dumps(cluster))

    def set_quota(self, gpus: int) -> None:
        (self.config / "teams.yaml").write_text(json.dumps({"teams": TEAMS}))

    def join(self) -> None:
        self.add_users(sorted({"nobody", *(one for members in MEMBERS.values() for one in members)}))
        for team, members in MEMBERS.items():
            self.api("POST", f"/groups/{team}", {})
            answer = self.api("POST", f"/groups/{team}/users", {"users": members})
            assert answer.status_code == 200, answer.text

    def runs(self, user: str, **options: Any) -> dict[str, Any]:
        """Somebody starts a server; its pod."""
        answer = self.start_server(user, **options)
        assert answer.status_code in {201, 202}, answer.text
        return self.comes(user)

    def comes(self, user: str) -> dict[str, Any]:
        """Somebody's server is ready; its pod."""
        wait_for(lambda: f"{user}/" in self.ready(), f"{user} has a server", SECONDS)
        return dict(json.loads(self.kubectl("get", "pod", f"jupyter-{user}", "-o", "json")))

    def waits(self, user: str, **options: Any) -> str:
        return self.refusal(user, self.start_server(user, **options))

    def ends(self, *users: str) -> None:
        for user in users:
            assert self.api("DELETE", f"/users/{user}/server").status_code in {202, 204}
        gone = [f"{user}/" for user in users]
        wait_for(lambda: not set(gone) & self.servers().keys(), f"{users} have ended", SECONDS)

    def why(self, user: str) -> str:
        with Plain(self, user) as person:
            return html.unescape(person.place(user).text)


def team_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"][naming.TEAM_LABEL])


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharesHub]:
    folder = tmp_path_factory.mktemp("shares")
    settings = ("--Manager.lease_seconds=3",)
    made = SharesHub(folder, db_url=f"sqlite:///{folder / 'manager.sqlite'}", settings=settings)
    with ExitStack() as stack:
        stack.enter_context(running(made))
        for resource in RESOURCES.values():
            stack.enter_context(lendable(Client(made.kubeconfig), resource))
        made.join()
        yield made
        assert "Traceback" not in made.log + (folder / "manager.log").read_text()


@pytest.fixture(autouse=True)
def nothing_left(hub: SharesHub) -> Iterator[None]:
    yield
    hub.be_patient(24 * 3600)

    def empty() -> bool:
        for name in hub.ready():
            hub.api("DELETE", f"/users/{name.rstrip('/')}/server")
        return not hub.servers() and not live(hub)

    wait_for(empty, "all of it is stopped", SECONDS)


def test_whose_team_has_used_less_comes_first_although_they_asked_later(hub: SharesHub) -> None:
    all_of_it = {"gpus": GPUS, "gpu_type": "two", "preemptible": True}
    hub.runs("vera", **all_of_it)
    assert "It is number 1 in the queue" in hub.waits("victor", **all_of_it)
    assert "in the queue" in hub.waits("tom", **all_of_it)
    wait_for(lambda: places(hub, ["tom", "victor"]) == {"tom": 1, "victor": 2}, "what vera holds is counted", SECONDS)
    with Sampler(hub, RESOURCES["two"]) as sampler:
        hub.ends("vera")
        hub.comes("tom")
        assert places(hub, ["victor"]) == {"victor": 1}
        hub.ends("tom")
        hub.comes("victor")
    assert sampler.most == GPUS


def test_small_jobs_pass_a_big_one_until_it_has_waited_for_too_long(hub: SharesHub) -> None:
    half = GPUS // 4  # of the team's four
    for user in ("anna", "bert"):
        hub.runs(user, gpus=half, gpu_type="one")
    hub.waits("cora", gpus=2 * half, gpu_type="one")
    hub.waits("dora", gpus=1, gpu_type="one")
    hub.ends("anna")
    hub.comes("dora")
    hub.be_patient(0)

    def is_behind() -> bool:
        """Whether emil, for whose job there is room, has to wait: not before the file has been read."""
        answer = hub.start_server("emil", gpus=1, gpu_type="one")
        if answer.status_code == 429:
            wants = "A job that wants 4 GPUs has waited for so long that nobody passes it any more."
            return wants in answer.json()["message"]
        hub.ends("emil")
        return False

    wait_for(is_behind, "nobody passes any more", SECONDS)
    before = len(turns(hub))
    hub.ends("dora")
    hub.ends("bert")
    hub.comes("cora")
    hub.ends("cora")
    hub.comes("emil")
    ids = {row[0]: row[1] for row in rows(hub, "SELECT user_name, job FROM jobs")}
    assert turns(hub)[before:] == [ids["cora"], ids["emil"]]


def test_what_would_start_at_once_is_told_and_starts_at_once(hub: SharesHub) -> None:
    hub.runs("holder", gpus=3, gpu_type="one")
    advice = {
        "4 GPUs of type one, preemptible": {"gpus": 4, "gpu_type": "one", "preemptible": True},
        "1 GPU of type one": {"gpus": 1, "gpu_type": "one"},
        "4 GPUs of type two": {"gpus": 4, "gpu_type": "two"},
    }

    def told() -> set[str]:
        return set(re.findall(r"<li>\s*(.*?)\s*</li>", hub.why("asker"), re.DOTALL))

    for sentence, options in advice.items():
        said = hub.waits("asker", gpus=4, gpu_type="one")
        assert said.startswith("Team Wide uses 3 of its 4 GPUs of type one; this job needs 4.")
        # What would start is worked out anew every three seconds at most.
        wait_for(lambda: set(advice) <= told(), "it is told, with the others", 30)
        pod = hub.runs("asker", **options)
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert limits[RESOURCES[str(options["gpu_type"])]] == str(options["gpus"]), sentence
        hub.ends("asker")


def test_a_hub_that_takes_two_starts_at_a_time_takes_all_in_their_order_and_counts_no_failure(hub: SharesHub) -> None:
    hub.runs("holder", gpus=GPUS, gpu_type="one", preemptible=True)
    for number, user in enumerate(CROWD, start=1):
        told = hub.waits(user, gpus=1, gpu_type="one", preemptible=True)
        assert f"It is number {number} in the queue" in told
    hub.ends("holder")
    wait_for(lambda: {f"{user}/" for user in CROWD} <= set(hub.ready()), "all have started", SECONDS)
    assert f"{AT_ONCE} pending spawns, throttling" in hub.log
    query = "SELECT user_name, job_events.reason FROM job_events JOIN jobs USING (job) ORDER BY job_events.id"
    crowd = [(user, reason) for user, reason in rows(hub, query) if user in CROWD]
    assert [user for user, reason in crowd if reason == "admitted"] == CROWD
    assert {reason for _, reason in crowd}.isdisjoint({"start-failing", "start-failed", "start-refused"})


def test_who_is_in_two_teams_says_who_pays_once_and_who_is_in_none_is_everybody(hub: SharesHub) -> None:
    for team in ("text", "vision"):
        pod = hub.runs("both", gpus=1, gpu_type="two", team=team)
        assert team_of(pod) == team
        hub.ends("both")
        assert team_of(hub.runs("both")) == team, "the next start is charged likewise"
        hub.ends("both")
        with Plain(hub, "both") as person:
            form = person.visit("/hub/spawn/both/another").text
        assert re.findall(r'<option value="(text|vision)"\s+selected', form) == [team]
    assert hub.start_server("both", gpus=1, gpu_type="two", team="wide").status_code == 400
    assert team_of(hub.runs("nobody", gpus=0)) == "default"
    hub.ends("nobody")
    said = hub.refusal("nobody", hub.start_server("nobody", gpus=1, gpu_type="two"))
    assert said.startswith("Team Everybody")


@pytest.mark.parametrize(
    ("options", "cpu", "memory"),
    [
        ({"gpus": 0}, "100m", "96Mi"),
        ({"gpus": 3, "gpu_type": "one"}, "150m", "192Mi"),
        ({"gpus": 3, "gpu_type": "one", "cpu": "0.1", "memory": "100Mi"}, "100m", "100Mi"),
    ],
    ids=["no GPU", "three GPUs", "less than comes with three"],
)
def test_cpu_and_memory_come_with_each_gpu(hub: SharesHub, options: dict[str, Any], cpu: str, memory: str) -> None:
    pod = hub.runs("carl", **options)
    resources = pod["spec"]["containers"][0]["resources"]
    for kind in ("limits", "requests"):
        assert (resources[kind]["cpu"], resources[kind]["memory"]) == (cpu, memory)


def test_nobody_gets_more_cpu_or_memory_than_comes_with_their_gpus(hub: SharesHub) -> None:
    answer = hub.start_server("carl", gpus=2, gpu_type="one", cpu="0.2", memory="1Gi")
    assert answer.status_code == 400, answer.text
    assert answer.json()["message"] == (
        "CPUs must be between 100m and 100m for 2 × one; you asked for 200m. "
        "Memory must be between 64Mi and 128Mi for 2 × one; you asked for 1Gi."
    )
    assert not hub.servers()
