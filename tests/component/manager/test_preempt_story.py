"""Preemption from the owner's request to the borrower's return, on the embedded cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.manager.quota import GPUS, OPTIONS, PATIENT, TEMPLATE, Sampler, gpus_of, running
from tests.component.manager.rest import SCOPES, RestHub
from tests.component.manager.test_queue_hub import Plain
from tests.e2e.people import wait_for

pytestmark = pytest.mark.slow
POLICY = """
scheduling:
  notice_seconds: 60
  min_run_seconds: 0
  priority_classes: {guaranteed: dlspawner-guaranteed, preemptible: dlspawner-preemptible}
"""
TEAMS = """
teams:
  owners: {title: Owners, members: [owner], quota: {gpu: %d}}
  default: {title: Everybody, quota: {gpu: 0}}
"""
NODES = f"nodes: [{{name: gpus, cpu: 32, memory: 64Gi, gpus: {{nvidia.com/gpu: {GPUS}}}}}]"
SECONDS = 240.0


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RestHub]:
    """All GPUs belong to the team *owners*; everybody else may borrow them."""
    made = RestHub(tmp_path, extra=SCOPES + PATIENT, policy=POLICY, teams=TEAMS, nodes=tmp_path / "nodes.yaml")
    made.own_templates = {"tiny": {**TEMPLATE, "options": OPTIONS}}
    (tmp_path / "nodes.yaml").write_text(NODES)
    with running(made):
        yield made


def live(hub: RestHub, user: str) -> list[tuple[str, str]]:
    """The id and submit time of the user's jobs that have not ended."""
    return [(one["id"], one["submitted"]) for one in hub.items(user, "jobs?state=live")]


def holds(hub: RestHub) -> dict[str, int]:
    """GPUs by the user whose pod holds them."""
    found = {pod["metadata"]["annotations"]["hub.jupyter.org/username"]: gpus_of(pod) for pod in hub.pods()}
    return {user: gpus for user, gpus in found.items() if gpus}


def reads_at_home(hub: RestHub, user: str, words: str) -> None:
    """The user reads these words there, from a Manager that the page waits for two seconds at most."""
    with Plain(hub, user) as person:
        wait_for(lambda: words in person.visit("/services/jobs/").text, f"{user} reads: {words}", 30)


def test_owner_gets_gpus_back_after_notice_and_the_borrower_waits(hub: RestHub) -> None:
    hub.add_users(["borrower", "other", "owner"])
    half = GPUS // 2
    for user, requeue in (("borrower", True), ("other", False)):
        hub.runs(user, half, preemptible=True, requeue=requeue)
    assert {pod["metadata"]["labels"]["preemption"] for pod in hub.pods()} == {"allow"}
    assert {pod["spec"]["priorityClassName"] for pod in hub.pods()} == {"dlspawner-preemptible"}
    first = live(hub, "borrower")

    with Sampler(hub) as sampler:
        answer = hub.start_server("owner", team="owners", gpus=GPUS)
        assert answer.status_code == 429, answer.text
        notices = wait_for(lambda: hub.ask("borrower", "GET", "notices").json()["notices"], "notice", SECONDS)
        assert [one["kind"] for one in notices] == ["preempted"]
        assert "Owners" in notices[0]["text"]
        assert holds(hub) == {"borrower": half, "other": half}
        reads_at_home(hub, "other", "preemptible")
        wait_for(lambda: "owner/" in hub.ready(), "the owner has them", SECONDS)
    assert holds(hub) == {"owner": GPUS}
    assert sampler.most == GPUS
    reads_at_home(hub, "other", "stopped")
    reads_at_home(hub, "borrower", "in the queue")
    assert live(hub, "borrower") == first, "the same job, with its first submit time"
    assert live(hub, "other") == []

    hub.api("DELETE", "/users/owner/server")
    wait_for(lambda: "borrower/" in hub.ready(), "who asked to wait is back", SECONDS)
    assert holds(hub) == {"borrower": half}
    assert live(hub, "borrower") == first
    assert "Traceback" not in hub.log
