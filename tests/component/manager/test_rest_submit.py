"""SubmitJob, KillJob, cancel and requeue, through a real Hub that makes real pods."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.component.manager import rest
from tests.component.manager.rest import RestHub
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import new_name

ONE = {"template": "tiny", "gpus": 1}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestHub]:
    yield from rest.made(tmp_path_factory.mktemp("submit"))


@pytest.fixture(autouse=True)
def nothing_left(hub: RestHub) -> Iterator[None]:
    yield
    hub.clear()
    for name in ("hub", "manager"):
        assert "Traceback" not in (hub.state / f"{name}.log").read_text()


def submit(hub: RestHub, who: str, name: str, **body: Any) -> requests.Response:
    return hub.ask(who, "POST", "jobs", {"server": name, "options": ONE, **body})


def submitted(hub: RestHub, user: str, server: str = "") -> list[str]:
    """All jobs that this server ever had."""
    return [job["id"] for job in hub.items(user, f"jobs?user={user}&server={server}")]


def test_a_submitted_job_starts_and_is_found_where_the_answer_says(hub: RestHub) -> None:
    server = new_name("s")
    answer = submit(hub, "alice", server, options={"template": "tiny", "gpus": 2})
    assert answer.status_code in {201, 202}, answer.text
    job = answer.json()
    assert (job["user"], job["server"], job["gpus"], job["team"]) == ("alice", server, 2, "vision")
    assert answer.headers["Location"] == f"/services/jobs/api/jobs/{job['id']}"
    assert hub.until("alice", "running", server)["id"] == job["id"]
    assert submit(hub, "alice", server).status_code == 409, "it runs already"


def test_what_cannot_start_now_is_accepted_and_waits(hub: RestHub) -> None:
    first, second = new_name("s"), new_name("s")
    hub.runs("alice", 4, first)
    answer = submit(hub, "alice", second)
    assert (answer.status_code, answer.json()["state"], answer.json()["position"]) == (202, "queued", 1)
    assert "4 of its 4 GPUs" in answer.json()["why"]
    hub.ask("alice", "DELETE", f"jobs/{hub.job('alice', first)['id']}")
    assert hub.until("alice", "running", second)["id"] == answer.json()["id"], "its turn came"


REFUSED = {
    "more than there can be": ({"options": {"template": "tiny", "gpus": 9}}, 422, "between 0 and 8"),
    "more than the quota": ({"options": {"template": "tiny", "gpus": 8}}, 403, "quota of 4 GPUs"),
    "an option that nobody knows": ({"options": {"template": "tiny", "gpu": 1}}, 422, "has no option “gpu”"),
    "a template that nobody knows": ({"options": {"template": "huge"}}, 422, "huge"),
    "somebody else's": ({"user": "bob"}, 403, "Only administrators"),
    "somebody else's, who is not there": ({"user": "nobody"}, 403, "Only administrators"),
    "a name that no job gets": ({"server": "../x"}, 422, "at most 30 small letters"),
}


@pytest.mark.parametrize(("body", "status", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_a_sentence(hub: RestHub, body: dict[str, Any], status: int, sentence: str) -> None:
    answer = submit(hub, "alice", "refused", **body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json"), answer.text
    assert sentence in answer.json()["detail"]


def test_administrators_start_jobs_for_others_and_nobody_for_who_is_blocked(hub: RestHub) -> None:
    assert submit(hub, "admin", "", user="bob").status_code in {201, 202}
    assert hub.until("bob", "running")["team"] == "language"
    assert submit(hub, "admin", "", user="nobody").status_code == 404
    for who in ("admin", "mallory"):
        answer = submit(hub, who, "", user="mallory")
        assert (answer.status_code, "may not start jobs" in answer.json()["detail"]) == (403, True)


def test_the_gateway_reads_who_is_blocked_and_nobody_else_may_ask(hub: RestHub) -> None:
    answer = hub.ask_with("gateway-token", "POST", "ssh-access", {"keys": [["alice", "SHA256:1"]]})
    assert (answer.status_code, answer.json()) == (
        200,
        {"blocked": ["mallory"], "gone": [["alice", "SHA256:1"]]},
    )
    for who in ("alice", "admin"):
        assert hub.ask(who, "POST", "ssh-access", {"keys": []}).status_code == 403


def test_same_submit_returns_the_job_that_is_there_also_after_a_restart(hub: RestHub) -> None:
    server = new_name("s")
    first = submit(hub, "alice", server)
    assert first.status_code in {201, 202}
    for restarts in (True, False):
        again = submit(hub, "alice", server)
        assert (again.status_code in {201, 202}, again.json()["id"]) == (True, first.json()["id"])
        if restarts:
            hub.stop("manager")
            hub.start_manager()
            wait_for(lambda: hub.ask("alice", "GET", "jobs").status_code == 200, "it acts again")
    other = submit(hub, "alice", server, options={"template": "tiny", "gpus": 2})
    assert (other.status_code, "runs, starts or stops already" in other.json()["detail"]) == (409, True)
    assert submitted(hub, "alice", server) == [first.json()["id"]]


def test_same_submits_at_the_same_moment_start_one_job(hub: RestHub) -> None:
    server = new_name("s")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(hub, "alice", server), range(8)))
    assert {one.status_code for one in answers} <= {201, 202}
    assert submitted(hub, "alice", server) == list({one.json()["id"] for one in answers})


def test_a_job_is_killed_wherever_it_stands(hub: RestHub) -> None:
    running, waiting = new_name("s"), new_name("s")
    job = hub.runs("alice", 4, running)["id"]
    waits = submit(hub, "alice", waiting).json()["id"]
    assert hub.ask("alice", "POST", f"jobs/{waits}/keep-alive").status_code == 409, "it does not run"
    assert hub.ask("alice", "DELETE", f"jobs/{waits}").status_code == 204
    assert hub.job("alice", waiting)["reason"] == "cancelled"
    assert hub.ask("alice", "POST", f"jobs/{job}/cancel").status_code == 409, "it runs"
    assert hub.ask("alice", "DELETE", f"jobs/{job}").status_code in {202, 204}
    hub.until("alice", "ended", running)
    for method, path in (("DELETE", f"jobs/{job}"), ("POST", f"jobs/{waits}/cancel")):
        assert hub.ask("alice", method, path).status_code == 204, "it had ended"
    kept = hub.ask("alice", "POST", f"jobs/{job}/keep-alive")
    assert (kept.status_code, kept.json()["detail"]) == (404, "You have no such job that runs.")


def test_a_team_admin_stops_a_job_and_its_owner_reads_who(hub: RestHub) -> None:
    server = new_name("s")
    job = hub.runs("alice", 1, server)["id"]
    assert hub.ask("bob", "DELETE", f"jobs/{job}").status_code == 404
    assert hub.ask("lars", "DELETE", f"jobs/{job}").status_code == 404
    reader = hub.token("vera", "read:servers!user=vera", "access:services!service=jobs")
    assert hub.ask_with(reader, "DELETE", f"jobs/{job}").status_code == 403
    assert hub.ask("vera", "DELETE", f"jobs/{job}").status_code == 202
    assert "vera has stopped this job" in hub.until("alice", "ended", server)["why"]


def test_an_ended_job_starts_again_with_its_options_as_a_new_one(hub: RestHub) -> None:
    server = new_name("s")
    job = hub.runs("alice", 3, server)["id"]
    assert "has not ended" in hub.ask("alice", "POST", f"jobs/{job}/requeue").json()["detail"]
    hub.ask("alice", "DELETE", f"jobs/{job}")
    hub.until("alice", "ended", server)
    wait_for(lambda: f"alice/{server}" not in hub.servers(), "the Hub knows, too")
    assert hub.ask("bob", "POST", f"jobs/{job}/requeue").status_code == 404
    again = hub.ask("alice", "POST", f"jobs/{job}/requeue")
    assert again.status_code in {201, 202}, again.text
    assert (again.json()["gpus"], again.json()["id"] != job) == (3, True)
    hub.ask("alice", "DELETE", f"jobs/{again.json()['id']}")
    hub.until("alice", "ended", server)


def test_admins_of_a_team_start_nothing_again_in_the_name_of_others(hub: RestHub) -> None:
    server = new_name("s")
    job = hub.runs("alice", 1, server)["id"]
    hub.ask("alice", "DELETE", f"jobs/{job}")
    hub.until("alice", "ended", server)
    wait_for(lambda: f"alice/{server}" not in hub.servers(), "the Hub knows, too")
    answer = hub.ask("vera", "POST", f"jobs/{job}/requeue")
    assert (answer.status_code, answer.json()["detail"]) == (
        403,
        "Only administrators of the Hub, and services, start jobs for other people.",
    )
    again = hub.ask("admin", "POST", f"jobs/{job}/requeue")
    assert again.status_code in {201, 202}, again.text
    hub.ask("alice", "DELETE", f"jobs/{again.json()['id']}")
    hub.until("alice", "ended", server)


def test_a_body_that_is_too_long_is_told_so_through_the_proxy(hub: RestHub) -> None:
    token = {"Authorization": f"token {hub.token('alice')}", "Content-Type": "application/json"}
    for base in (hub.manager_url(), hub.url):
        for body in (b"x" * 30_000_000, iter([b"x" * 1_000_000] * 30)):
            answer = requests.post(f"{base}/services/jobs/api/jobs", data=body, headers=token, timeout=60)
            assert (answer.status_code, answer.headers["Content-Type"]) == (413, "application/problem+json")
            assert "longer than 256 KiB" in answer.json()["detail"]


def test_job_of_a_removed_server_starts_again_with_its_own_options(hub: RestHub) -> None:
    server = new_name("s")
    job = hub.runs("alice", 2, server)["id"]
    hub.ask("alice", "DELETE", f"jobs/{job}")
    hub.until("alice", "ended", server)
    wait_for(lambda: f"alice/{server}" not in hub.servers(), "it is stopped")
    assert submit(hub, "alice", server, options={"template": "tiny", "gpus": 8}).status_code == 403
    assert hub.api("DELETE", f"/users/alice/servers/{server}", {"remove": True}).status_code in {202, 204}
    again = hub.ask("alice", "POST", f"jobs/{job}/requeue")
    assert (again.status_code in {201, 202}, again.json().get("gpus")) == (True, 2), again.text
    hub.ask("alice", "DELETE", f"jobs/{again.json()['id']}")
    hub.until("alice", "ended", server)
