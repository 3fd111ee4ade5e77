"""DLSpawner without templates, in a real Hub on the embedded cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from dlspawner.spawner.lifecycle import RESTARTS
from tests.bench.spawn import RESPONDER
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person, new_name, running

PROFILES = f"""
c.DLSpawner.templates_dir = ""
c.KubeSpawner.cmd = ["python3", "-S", "-c", {RESPONDER!r}]
c.KubeSpawner.default_url = "/lab"
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 300}}  # no start is answered before it is over
c.KubeSpawner.profile_list = [
    {{"display_name": "Plain"}},
    {{"display_name": "Fails", "kubespawner_override": {{"cmd": ["sh", "-c", "echo no such data >&2; exit 3"]}}}},
]
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running(Hub(tmp_path_factory.mktemp("base"), extra=PROFILES)) as hub:
        yield hub


@pytest.fixture
def person(hub: Hub) -> Person:
    return Person(hub, new_name("eve"))


def test_the_log_says_why_a_server_does_not_run(hub: Hub, person: Person) -> None:
    assert person.start("", profile="fails").status_code == 422
    wait_for(lambda: "failed with exit code 3" in hub.log, "the reason is logged", 30)
    wait_for(lambda: not person.server("").get("pending"), "the start has ended")
    assert "Traceback" not in hub.log


def ended_while_starting(hub: Hub, person: Person, end: Callable[[], object]) -> requests.Response:
    """The answer to a start that is ended so before the answer, while its pod waits for a node."""
    pod = f"pod/{person.pod_name('patient')}"
    hub.kubectl("taint", "nodes", "--all", "node.kubernetes.io/tests=:NoSchedule")
    try:
        with ThreadPoolExecutor(1) as executor:
            start = executor.submit(person.start, "patient", profile="plain")
            wait_for(lambda: start.done() or pod in hub.kubectl("get", "pods", "-o", "name").split(), "the pod", 50)
            end()
            return start.result(60)
    finally:
        hub.kubectl("taint", "nodes", "--all", "node.kubernetes.io/tests-")


def test_the_answer_to_a_start_says_that_the_server_was_stopped(hub: Hub, person: Person) -> None:
    def stop() -> None:
        assert person.api("DELETE", person.server_path("patient")).status_code in {202, 204}

    found = ended_while_starting(hub, person, stop)
    assert (found.status_code, found.json()["message"]) == (500, "The server was stopped before it had started.")


def test_the_answer_to_a_start_says_that_the_hub_is_restarted_and_the_start_goes_on(hub: Hub, person: Person) -> None:
    found = ended_while_starting(hub, person, lambda: hub.stop("hub"))
    hub.start_hub()
    assert (found.status_code, found.json()["message"]) == (503, RESTARTS)
    wait_for(lambda: person.server("patient").get("ready"), "the start has gone on", 60)
