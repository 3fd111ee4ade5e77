"""A Hub that is killed at any moment finds every pod again; none is doubled, none is orphaned.

Two Hubs share the cluster and its namespace: one with job templates, one without.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.e2e.people import wait_for
from tests.harness import hub_breakpoints
from tests.harness.restarted import SECONDS, WITHOUT_TEMPLATES, World, hub_of, with_tiny
from tests.harness.spawner_hub import running

pytestmark = pytest.mark.slow

# Where the Hub is killed -> whether the server exists afterwards.
POINTS = {
    hub_breakpoints.BEFORE_CLAIM: False,
    hub_breakpoints.BEFORE_POD: False,
    hub_breakpoints.ON_ITS_WAY: True,
    hub_breakpoints.LATE: False,
    hub_breakpoints.REPLACED: False,
    hub_breakpoints.ANSWERED: True,
    hub_breakpoints.BEFORE_SECRET: True,
    hub_breakpoints.BEFORE_SERVICE: True,
    hub_breakpoints.RUNNING: True,
    hub_breakpoints.STARTED: True,
    hub_breakpoints.COMMITTED: True,
    hub_breakpoints.BEFORE_ROUTE: True,
    hub_breakpoints.BEFORE_DELETION: True,
    hub_breakpoints.AFTER_DELETION: False,
    "ready": True,
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tiny(tmp_path_factory.mktemp("templates"))


@pytest.fixture(scope="module")
def with_templates(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[World]:
    state = tmp_path_factory.mktemp("hub")
    with running(hub_of(state, templates=templates)) as hub:
        yield killed_everywhere(World(hub, "alice", templates=True))


@pytest.fixture(scope="module")
def without_templates(tmp_path_factory: pytest.TempPathFactory, with_templates: World) -> Iterator[World]:
    state = tmp_path_factory.mktemp("hub")
    made = hub_of(state, WITHOUT_TEMPLATES, cluster=with_templates.hub.kubeconfig)
    with running(made, cluster=False) as hub:
        yield killed_everywhere(World(hub, "bob", templates=False))


@pytest.fixture(params=["with_templates", "without_templates"])
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.getfixturevalue(request.param)
    return found


def killed_everywhere(world: World) -> World:
    """Kills the Hub once with a server at every point of the table, and starts it again."""
    world.held.mkdir()
    assert world.api("POST", f"/users/{world.user}").status_code == 201
    stopping = [hub_breakpoints.BEFORE_DELETION, hub_breakpoints.AFTER_DELETION]
    for server in ("ready", *stopping):
        world.start(server)
    for server in ("ready", *stopping):
        wait_for(lambda name=server: world.ready(name), f"{server} is ready: {world.hub.log[-5000:]}", SECONDS)
    for server in stopping:
        world.api("DELETE", f"/users/{world.user}/servers/{server}")
    rest = [point for point in POINTS if point not in ("ready", hub_breakpoints.COMMITTED, *stopping)]
    for server in rest:
        answer = world.start(server)
        assert answer.status_code in {201, 202}, answer.text
    for server in (*stopping, *rest):
        path = world.held / server
        wait_for(path.exists, f"{server} is held: {world.hub.log[-5000:]}", SECONDS)
    with contextlib.suppress(requests.ConnectionError):
        world.start(hub_breakpoints.COMMITTED)
    wait_for(lambda: world.hub.running["hub"].poll() is not None, "the Hub has killed itself", SECONDS)
    world.create((world.held / hub_breakpoints.ON_ITS_WAY).read_text())
    earlier = json.loads((world.held / hub_breakpoints.LATE).read_text())
    earlier["metadata"]["name"] = world.pod_name(hub_breakpoints.REPLACED)
    for variable in earlier["spec"]["containers"][0]["env"]:
        if variable["name"] == "JUPYTERHUB_API_TOKEN":
            variable["value"] = "0" * 32  # of a server that was stopped
    world.create(json.dumps(earlier))
    world.kill()
    (world.held / hub_breakpoints.FREE).touch()
    world.hub.start_hub()
    world.settled()
    return world


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_a_hub_killed_at_this_point_comes_back(world: World, point: str) -> None:
    server = world.servers().get(point, {"stopped": True})

    assert server["stopped"] is not POINTS[point]
    assert (world.uid(point) is not None) is POINTS[point]
    if POINTS[point]:
        assert world.uid(point) == world.before[point]
        assert server["ready"]


@pytest.mark.faults
def test_a_hub_killed_between_the_pods_of_a_job_makes_the_others(with_templates: World) -> None:
    world = with_templates
    (world.held / hub_breakpoints.FREE).unlink()
    options = {"user_options": {"template": "distributed", "workers": 4, "gpus": 0}}
    world.api("POST", f"/users/{world.user}/servers/{hub_breakpoints.FURTHER_POD}", options)
    wait_for((world.held / hub_breakpoints.FURTHER_POD).exists, "it is held", SECONDS)
    label = f"dlspawner.dev/server={hub_breakpoints.FURTHER_POD}"

    def pods() -> dict[str, str]:
        found = json.loads(world.hub.kubectl("get", "pods", "-l", label, "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    wait_for(lambda: len(pods()) == 4, "all but one are made", SECONDS)
    before = pods()
    world.kill()
    (world.held / hub_breakpoints.FREE).touch()
    world.hub.start_hub()
    wait_for(lambda: world.ready(hub_breakpoints.FURTHER_POD), "it is ready", SECONDS)
    after = pods()
    assert len(after) == 5
    assert before.items() <= after.items(), "none is made anew"

    world.api("DELETE", f"/users/{world.user}/servers/{hub_breakpoints.FURTHER_POD}")
    wait_for(lambda: not pods(), "all of them are gone", SECONDS)
    world.settled()


def test_a_late_pod_is_deleted_and_a_pod_of_another_hub_is_not(world: World) -> None:
    """The pod appears after the restarted Hub has seen that there is none."""
    late = (world.held / hub_breakpoints.LATE).read_text()
    other = json.loads(late)
    other["metadata"]["name"] = f"jupyter-{world.user}x"
    for variable in other["spec"]["containers"][0]["env"]:
        if variable["name"] == "JUPYTERHUB_API_URL":
            variable["value"] = "http://another-hub:8081/hub/api"
    world.create(json.dumps(other))
    world.create(late)

    wait_for(lambda: world.uid(hub_breakpoints.LATE) is None, "the late pod is ended", SECONDS)
    world.settled()
    assert json.loads(world.hub.kubectl("get", "pod", other["metadata"]["name"], "-o", "json"))["status"]["phase"]
    world.hub.kubectl("delete", "pod", other["metadata"]["name"], "--wait=false")


@pytest.fixture
def left_alone(world: World) -> World:
    """A Hub that was down while one pod ended, one was removed and one waited for a node."""
    if world.left:
        return world
    world.left = True
    for server in ("finished", "removed"):
        world.start(server)
    for server in ("finished", "removed"):
        wait_for(lambda name=server: world.ready(name), f"{server} is ready", SECONDS)
    world.waiting.add("pending")
    world.start("pending")
    wait_for(lambda: world.uid("pending"), "the pod that waits", SECONDS)
    world.kill()
    address = world.pods()[world.pod_name("finished")]["status"]["podIP"]
    with contextlib.suppress(requests.ConnectionError):
        requests.get(f"http://{address}:8888/end", timeout=30)
    world.hub.kubectl("delete", "pod", world.pod_name("removed"))
    wait_for(lambda: world.pods()[world.pod_name("finished")]["status"]["phase"] == "Succeeded", "it ended")
    world.hub.start_hub()
    wait_for(lambda: world.servers()["pending"]["pending"] == "spawn", "the start goes on", SECONDS)
    return world


@pytest.mark.parametrize(
    ("server", "reason"), [("finished", "The job has finished"), ("removed", "removed from outside the Hub")]
)
def test_a_server_that_ended_while_the_hub_was_down_has_a_reason(left_alone: World, server: str, reason: str) -> None:
    wait_for(lambda: left_alone.servers()[server]["stopped"], f"{server} is known to have ended", SECONDS)

    assert reason in left_alone.servers()[server]["state"]["dlspawner_ended"]
    wait_for(lambda: left_alone.uid(server) is None, "its pod is gone", SECONDS)


def test_a_resumed_start_shows_its_progress_and_can_be_stopped(left_alone: World) -> None:
    assert left_alone.uid("pending") == left_alone.before["pending"]
    if left_alone.templates:
        assert any("No node" in event["message"] for event in left_alone.progress("pending"))
    answer = left_alone.api("DELETE", f"/users/{left_alone.user}/servers/pending")

    assert answer.status_code in {202, 204}, answer.text
    left_alone.waiting.clear()
    wait_for(lambda: left_alone.uid("pending") is None, "the pod is gone", SECONDS)
    left_alone.settled()
