"""DLSpawner without templates, through a real Hub on the embedded cluster: what BaseSpawner does for its users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person, new_name, running

RESPONDER = """
import os, signal, socket
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
s = socket.create_server((os.environ["POD_IP"], 8888))
while True:
    c, _ = s.accept()
    c.recv(65536)
    c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
    c.close()
"""

PROFILES = """
c.DLSpawner.templates_dir = ""
c.KubeSpawner.cmd = ["python3", "-S", "-c", RESPONDER]
c.KubeSpawner.default_url = "/lab"
c.KubeSpawner.pvc_name_template = "claim-{user_server}"
c.KubeSpawner.delete_pvc = True
async def told(spawner, pod):
    spawner.log.info("hook: %s has a uid: %s", pod["metadata"]["name"], bool(pod["metadata"]["uid"]))
SOON, ONCE = "sleep 1; exit 4", {"restart_policy": "Never"}
c.KubeSpawner.profile_list = [
    {"display_name": "Plain"},
    {"display_name": "Hook", "kubespawner_override": {"after_pod_created_hook": lambda spawner: told}},
    {"display_name": "Service", "kubespawner_override": {"services_enabled": True, "slow_spawn_message_threshold": 0}},
    {"display_name": "Fails", "kubespawner_override": {"cmd": ["sh", "-c", "echo no such data >&2; exit 3"]}},
    {"display_name": "Soon", "kubespawner_override": {"cmd": ["sh", "-c", SOON], "extra_pod_config": ONCE}},
]

import asyncio
from dlspawner.spawner.start_problems import StartMonitor
until_running = StartMonitor.until_running
async def until_ended(waiting, created):
    # Between our wait for a pod that runs and KubeSpawner's, the one of this profile ends.
    await until_running(waiting, created)
    while created["spec"]["containers"][0]["args"][-1] == SOON and all(
        one["ready"] for one in waiting.pods.watch.pods[waiting.pods.key]["status"]["containerStatuses"]
    ):
        await asyncio.sleep(0.05)
StartMonitor.until_running = until_ended
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    extra = f"RESPONDER = {RESPONDER!r}\n{PROFILES}"
    with running(Hub(tmp_path_factory.mktemp("base"), extra=extra)) as hub:
        yield hub


@pytest.fixture
def person(hub: Hub) -> Person:
    return Person(hub, new_name("eve"))


def launch(person: Person, profile: str) -> None:
    person.launch("", profile=profile)


def test_a_server_starts_answers_and_stops(person: Person) -> None:
    launch(person, "plain")
    assert person.get(f"/user/{person.name}/lab").text == "ok"
    person.stop("")


def test_the_hook_after_the_pods_creation_runs_once_and_is_waited_for(hub: Hub, person: Person) -> None:
    launch(person, "hook")
    assert hub.log.count(f"hook: jupyter-{person.name} has a uid: True") == 1
    person.stop("")


@pytest.mark.slow
def test_a_service_is_made_and_belongs_to_the_pod(hub: Hub, person: Person) -> None:
    # Nothing resolves its name here, so the Hub never reaches this server.
    assert person.start("", profile="service").status_code == 202
    wait_for(lambda: f"service/jupyter-{person.name}" in hub.kubectl("get", "services", "-o", "name"), "the Service")
    service = json.loads(hub.kubectl("get", "service", f"jupyter-{person.name}", "-o", "json"))
    assert service["metadata"]["ownerReferences"][0]["kind"] == "Pod"
    person.api("DELETE", person.server_path(""))


@pytest.mark.parametrize(("profile", "code"), [("fails", 3), ("soon", 4)], ids=["at once", "when it was seen running"])
def test_a_server_that_cannot_run_says_why(hub: Hub, person: Person, profile: str, code: int) -> None:
    assert person.start("", profile=profile).status_code in {202, 422}  # the start is told, or under way
    wait_for(lambda: f"failed with exit code {code}" in hub.log, "the reason is logged", 30)
    wait_for(lambda: not person.server("").get("pending"), "the start has ended")
    assert "Traceback" not in hub.log


@pytest.mark.slow
def test_a_pod_that_went_is_a_server_that_has_ended(hub: Hub, person: Person) -> None:
    launch(person, "plain")
    hub.kubectl("delete", "pod", f"jupyter-{person.name}", "--wait=false")
    wait_for(lambda: not person.server("").get("ready"), "the Hub has noticed", 60)
    wait_for(lambda: not person.server("").get("pending"), "its stop is over", 60)
    assert Path(hub.state / "hub.log").read_text().count("ended: exit_code") >= 1
    shown = person.get(f"/user/{person.name}/")
    assert "removed from outside the Hub" in shown.text, "JupyterHub's own page says why"
    launch(person, "plain")
    assert person.get(f"/user/{person.name}/lab").text == "ok"
    person.stop("")


def stopped_while_asking(hub: Hub, person: Person) -> requests.Response:
    """What whoever asks for a start is answered when it is stopped before they had an answer."""
    pod = f"pod/{person.pod_name('patient')}"
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(person.start, "patient", profile="plain")
        wait_for(
            lambda: asked.done() or pod in hub.kubectl("get", "pods", "-o", "name").split(), "its pod is there", 50
        )
        assert person.api("DELETE", person.server_path("patient")).status_code in {202, 204}
        answer = asked.result(60)
    wait_for(lambda: pod not in hub.kubectl("get", "pods", "-o", "name").split(), "it has stopped", 60)
    return answer


def test_who_still_waits_for_a_start_that_is_stopped_reads_that_it_was(hub: Hub, person: Person) -> None:
    hub.kubectl("taint", "nodes", "--all", "node.kubernetes.io/tests=:NoSchedule")
    try:  # a start that takes the Hub ten seconds is answered 202 before it can be stopped
        answers = (stopped_while_asking(hub, person) for _ in range(5))
        answer = next(one for one in answers if one.status_code != 202)
    finally:
        hub.kubectl("taint", "nodes", "--all", "node.kubernetes.io/tests-")
    assert (answer.status_code, answer.json()["message"]) == (500, "The server was stopped before it had started.")


def test_a_named_servers_own_claim_goes_with_the_server_and_the_others_stay(hub: Hub, person: Person) -> None:
    launch(person, "plain")
    person.launch("second", profile="plain")
    mine = {f"persistentvolumeclaim/claim-{person.name}", f"persistentvolumeclaim/claim-{person.name}--second"}

    def claims() -> set[str]:
        return mine & set(hub.kubectl("get", "persistentvolumeclaims", "-o", "name").split())

    assert claims() == mine
    person.stop("second")
    assert claims() == mine, "a stopped server keeps its claim"
    assert person.api("DELETE", person.server_path("second"), {"remove": True}).status_code in {202, 204}
    wait_for(
        lambda: claims() == {f"persistentvolumeclaim/claim-{person.name}"}, "the claim of the removed server is gone"
    )
    person.stop("")
