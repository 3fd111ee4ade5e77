"""Managers as processes: who answers the Hub, who stands by, and what is warned of. The Hub does not run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from dlspawner.core.link import derive_hub_token
from tests.component.manager.manager_harness import wants
from tests.component.manager.quota import QuotaHub
from tests.e2e.people import wait_for
from tests.harness.ports import free_port


@pytest.fixture
def hub(tmp_path: Path, database: str) -> Iterator[QuotaHub]:
    """A cluster, for Managers that tests start."""
    made = QuotaHub(tmp_path, db_url=database, settings=("--Manager.lease_seconds=3",))
    made.prepare()
    try:
        made.start_cluster()
        yield made
        for log in tmp_path.glob("manager*.log"):
            assert "Traceback" not in log.read_text()
    finally:
        for name in [*made.running][::-1]:
            made.stop(name)


def put(hub: QuotaHub, port: int, user: str = "alice", gpus: int = 1) -> requests.Response:
    request = wants(user, gpus)
    fields = ("user", "server", "team", "template", "preemptible", "priority", "requeue", "pods")
    body = {**{name: getattr(request, name) for name in fields}, "request_milliseconds": 3000}
    headers = {"Authorization": f"token {derive_hub_token('manager-token')}"}
    url = f"http://127.0.0.1:{port}/services/jobs/api/internal/jobs/{request.job}/admission"
    return requests.put(url, json={**body, "namespace": hub.namespace}, headers=headers, timeout=30)


def is_up(port: int, what: str) -> bool:
    return requests.get(f"http://127.0.0.1:{port}/services/jobs/{what}", timeout=30).ok


def test_one_answers_the_other_stands_by_and_takes_over_when_the_first_is_killed(hub: QuotaHub, db_url: str) -> None:
    first, second = hub.manager_port, free_port()
    hub.start_manager()
    wait_for(lambda: put(hub, first, gpus=8).status_code == 200, "it leads")
    hub.start_manager("manager-2", second)
    standing_by = put(hub, second)
    assert standing_by.status_code == 503
    assert "does not decide now" in standing_by.json()["detail"]
    assert standing_by.headers["Connection"] == "close", "or a client would keep asking this one"
    assert (is_up(first, "ready"), is_up(second, "ready"), is_up(second, "health")) == (True, False, True)
    hub.kill("manager")
    wait_for(lambda: put(hub, second).status_code == 200, "the other one leads", 60)
    assert is_up(second, "ready")
    answer = put(hub, second, "bob").json()
    assert (answer["decision"], answer["reason"]) == ("wait", "team-quota")


def test_a_way_that_the_network_policies_forbid_and_that_is_open_is_told(hub: QuotaHub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as forbidden:
        address = f"127.0.0.1:{forbidden.getsockname()[1]}"
        hub.settings = (*hub.settings, f"--Manager.forbidden_address={address}")
        hub.start_manager()
        said = f"No network plug-in enforces the NetworkPolicies: {address} answers"
        wait_for(lambda: said in (hub.state / "manager.log").read_text(), "it is told")
