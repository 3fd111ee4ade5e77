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
from tests.harness.restarted import SECONDS, WITHOUT_TEMPLATES, RestartedHub, hub_of, with_tiny
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
def with_templates(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[RestartedHub]:
    state = tmp_path_factory.mktemp("hub")
    with running(hub_of(state, templates=templates)) as hub:
        yield killed_everywhere(RestartedHub(hub, "alice", templates=True))


@pytest.fixture(scope="module")
def without_templates(tmp_path_factory: pytest.TempPathFactory, with_templates: RestartedHub) -> Iterator[RestartedHub]:
    state = tmp_path_factory.mktemp("hub")
    made = hub_of(state, WITHOUT_TEMPLATES, cluster=with_templates.hub.kubeconfig)
    with running(made, cluster=False) as hub:
        yield killed_everywhere(RestartedHub(hub, "bob", templates=False))


@pytest.fixture(params=["with_templates", "without_templates"])
def restarted(request: pytest.FixtureRequest) -> RestartedHub:
    found: RestartedHub = request.getfixturevalue(request.param)
    return found


def killed_everywhere(restarted: RestartedHub) -> RestartedHub:
    """Kills the Hub once with a server at every point of the table, and starts it again."""
    restarted.held.mkdir()
    assert restarted.api("POST", f"/users/{restarted.user}").status_code == 201
    stopping = [hub_breakpoints.BEFORE_DELETION, hub_breakpoints.AFTER_DELETION]
    for server in ("ready", *stopping):
        restarted.start(server)
    for server in ("ready", *stopping):
        wait_for(lambda name=server: restarted.ready(name), f"{server} is ready: {restarted.hub.log[-5000:]}", SECONDS)
    for server in stopping:
        restarted.api("DELETE", f"/users/{restarted.user}/servers/{server}")
    rest = [point for point in POINTS if point not in ("ready", hub_breakpoints.COMMITTED, *stopping)]
    for server in rest:
        answer = restarted.start(server)
        assert answer.status_code in {201, 202}, answer.text
    for server in (*stopping, *rest):
        path = restarted.held / server
        wait_for(path.exists, f"{server} is held: {restarted.hub.log[-5000:]}", SECONDS)
    with contextlib.suppress(requests.ConnectionError):
        restarted.start(hub_breakpoints.COMMITTED)
    wait_for(lambda: restarted.hub.running["hub"].poll() is not None, "the Hub has killed itself", SECONDS)
    restarted.create((restarted.held / hub_breakpoints.ON_ITS_WAY).read_text())
    earlier = json.loads((restarted.held / hub_breakpoints.LATE).read_text())
    earlier["metadata"]["name"] = restarted.pod_name(hub_breakpoints.REPLACED)
    for variable in earlier["spec"]["containers"][0]["env"]:
        if variable["name"] == "JUPYTERHUB_API_TOKEN":
            variable["value"] = "0" * 32  # of a server that was stopped
    restarted.create(json.dumps(earlier))
    restarted.kill()
    (restarted.held / hub_breakpoints.FREE).touch()
    restarted.hub.start_hub()
    restarted.settled()
    return restarted


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_a_hub_killed_at_this_point_comes_back(restarted: RestartedHub, point: str) -> None:
    server = restarted.servers().get(point, {"stopped": True})

    assert server["stopped"] is not POINTS[point]
    assert (restarted.uid(point) is not None) is POINTS[point]
    if POINTS[point]:
        assert restarted.uid(point) == restarted.before[point]
        assert server["ready"]


@pytest.mark.faults
def test_a_hub_killed_between_the_pods_of_a_job_makes_the_others(with_templates: RestartedHub) -> None:
    restarted = with_templates
    (restarted.held / hub_breakpoints.FREE).unlink()
    options = {"user_options": {"template": "distributed", "workers": 4, "gpus": 0}}
    restarted.api("POST", f"/users/{restarted.user}/servers/{hub_breakpoints.FURTHER_POD}", options)
    wait_for((restarted.held / hub_breakpoints.FURTHER_POD).exists, "it is held", SECONDS)
    label = f"dlspawner.dev/server={hub_breakpoints.FURTHER_POD}"

    def pods() -> dict[str, str]:
        found = json.loads(restarted.hub.kubectl("get", "pods", "-l", label, "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    wait_for(lambda: len(pods()) == 4, "all but one are made", SECONDS)
    before = pods()
    restarted.kill()
    (restarted.held / hub_breakpoints.FREE).touch()
    restarted.hub.start_hub()
    wait_for(lambda: restarted.ready(hub_breakpoints.FURTHER_POD), "it is ready", SECONDS)
    after = pods()
    assert len(after) == 5
    assert before.items() <= after.items(), "none is made anew"

    restarted.api("DELETE", f"/users/{restarted.user}/servers/{hub_breakpoints.FURTHER_POD}")
    wait_for(lambda: not pods(), "all of them are gone", SECONDS)
    restarted.settled()


def test_a_late_pod_is_deleted_and_a_pod_of_another_hub_is_not(restarted: RestartedHub) -> None:
    """The pod appears after the restarted Hub has seen that there is none."""
    late = (restarted.held / hub_breakpoints.LATE).read_text()
    other = json.loads(late)
    other["metadata"]["name"] = f"jupyter-{restarted.user}x"
    for variable in other["spec"]["containers"][0]["env"]:
        if variable["name"] == "JUPYTERHUB_API_URL":
            variable["value"] = "http://another-hub:8081/hub/api"
    restarted.create(json.dumps(other))
    restarted.create(late)

    wait_for(lambda: restarted.uid(hub_breakpoints.LATE) is None, "the late pod is ended", SECONDS)
    restarted.settled()
    assert json.loads(restarted.hub.kubectl("get", "pod", other["metadata"]["name"], "-o", "json"))["status"]["phase"]
    restarted.hub.kubectl("delete", "pod", other["metadata"]["name"], "--wait=false")


@pytest.fixture
def left_alone(restarted: RestartedHub) -> RestartedHub:
    """A Hub that was down while one pod ended, one was removed and one waited for a node."""
    if restarted.left:
        return restarted
    restarted.left = True
    for server in ("finished", "removed"):
        restarted.start(server)
    for server in ("finished", "removed"):
        wait_for(lambda name=server: restarted.ready(name), f"{server} is ready", SECONDS)
    restarted.waiting.add("pending")
    restarted.start("pending")
    wait_for(lambda: restarted.uid("pending"), "the pod that waits", SECONDS)
    restarted.kill()
    address = restarted.pods()[restarted.pod_name("finished")]["status"]["podIP"]
    with contextlib.suppress(requests.ConnectionError):
        requests.get(f"http://{address}:8888/end", timeout=30)
    restarted.hub.kubectl("delete", "pod", restarted.pod_name("removed"))
    wait_for(lambda: restarted.pods()[restarted.pod_name("finished")]["status"]["phase"] == "Succeeded", "it ended")
    restarted.hub.start_hub()
    wait_for(lambda: restarted.servers()["pending"]["pending"] == "spawn", "the start goes on", SECONDS)
    return restarted


@pytest.mark.parametrize(
    ("server", "reason"), [("finished", "The job has finished"), ("removed", "removed from outside the Hub")]
)
def test_a_server_that_ended_while_the_hub_was_down_has_a_reason(
    left_alone: RestartedHub, server: str, reason: str
) -> None:
    wait_for(lambda: left_alone.servers()[server]["stopped"], f"{server} is known to have ended", SECONDS)

    assert reason in left_alone.servers()[server]["state"]["dlspawner_ended"]
    wait_for(lambda: left_alone.uid(server) is None, "its pod is gone", SECONDS)


def test_a_resumed_start_shows_its_progress_and_can_be_stopped(left_alone: RestartedHub) -> None:
    assert left_alone.uid("pending") == left_alone.before["pending"]
    if left_alone.templates:
        assert any("No node" in event["message"] for event in left_alone.progress("pending"))
    answer = left_alone.api("DELETE", f"/users/{left_alone.user}/servers/pending")

    assert answer.status_code in {202, 204}, answer.text
    left_alone.waiting.clear()
    wait_for(lambda: left_alone.uid("pending") is None, "the pod is gone", SECONDS)
    left_alone.settled()
