"""Jobs, cluster, quota and queue by REST, through a real Hub that makes real pods."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
import requests

from tests.component.manager import rest
from tests.component.manager.rest import RestHub
from tests.component.manager.test_queue_hub import Plain
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import new_name

pytestmark = pytest.mark.usefixtures("nothing_left")
ONE = {"template": "tiny", "gpus": 1}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestHub]:
    yield from rest.made(tmp_path_factory.mktemp("rest"))


def waits(hub: RestHub, user: str, gpus: int, server: str = "") -> dict[str, Any]:
    path = f"/users/{user}/servers/{server}" if server else f"/users/{user}/server"
    answer = hub.api("POST", path, {"user_options": {"template": "tiny", "gpus": gpus}})
    assert answer.status_code in {201, 202, 429}, answer.text  # a busy Hub answers before the Manager does
    return hub.until(user, "queued", server)


def test_job_from_start_to_end(hub: RestHub) -> None:
    job = hub.runs("alice", 2, "train")
    assert {name: job[name] for name in ("user", "server", "team", "template", "gpus", "gpu_type", "cpu")} == {
        **{"user": "alice", "server": "train", "team": "vision", "template": "tiny", "gpus": 2, "gpu_type": "gpu"},
        "cpu": 0.1,
    }
    assert job["team_title"] == "Vision"
    assert (job["memory_bytes"], job["priority"], job["stop"], job["ended"]) == (128 * 2**20, "test", None, None)
    assert datetime.fromisoformat(job["submitted"]) <= datetime.fromisoformat(job["started"])
    assert job["endpoints"] == [{"name": "notebook", "protocol": "http", "url": "/user/alice/train/"}]
    detail = hub.ask("alice", "GET", f"jobs/{job['id']}").json()
    assert detail.items() >= job.items()
    assert detail["pods"] == ["jupyter-alice--train"]
    hub.api("DELETE", "/users/alice/servers/train")
    ended = hub.until("alice", "ended", "train")
    assert (ended["id"], ended["endpoints"]) == (job["id"], [])
    assert ended["why"] == "This job was stopped on the Hub. The files are kept."
    assert ended["ended"] >= ended["started"]
    events = hub.ask("alice", "GET", f"jobs/{job['id']}/events").json()["items"]
    assert (events[0]["reason"], events[0]["state"]) == ("admitted", "starting")
    assert (events[-1]["reason"], events[-1]["state"]) == (ended["reason"], "ended")


def test_queued_job_has_reason_position_and_alternatives(hub: RestHub) -> None:
    hub.runs("alice", 3)
    job = waits(hub, "vera", 4)
    assert (job["position"], job["nodes"], job["started"]) == (1, [], None)
    assert job["why"] == "Team Vision uses 3 of its 4 GPUs of type gpu; this job needs 4."
    detail = hub.ask("vera", "GET", f"jobs/{job['id']}").json()
    assert {"gpus": 1, "gpu_type": "gpu", "preemptible": False} in detail["alternatives"]
    assert detail["page"] == "/services/jobs/wait/vera/"
    queue = hub.ask("vera", "GET", "queue").json()
    assert [one["id"] for one in queue["items"]] == [job["id"]]
    assert (queue["waiting"], queue["others"]) == ([{"gpu_type": "gpu", "jobs": 1, "gpus": 4}], 0)
    others = hub.ask("bob", "GET", "queue").json()
    assert (others["items"], others["waiting"]) == ([], queue["waiting"]), "how many wait is no secret"
    assert others["others"] == 1


def test_quota_of_own_teams(hub: RestHub) -> None:
    hub.runs("alice", 3)
    vision = {
        **{"team": "vision", "title": "Vision", "gpu_type": "gpu", "entitled": 4, "used": 3, "borrowed": 0, "free": 1},
        "borrow_limit": None,
        "resource": None,
    }
    assert hub.ask("alice", "GET", "quota").json()["items"] == [vision]
    assert hub.ask("vera", "GET", "quota").json()["items"] == [vision]
    assert [one["team"] for one in hub.ask("bob", "GET", "quota").json()["items"]] == ["language"]
    assert [one["team"] for one in hub.ask("admin", "GET", "quota").json()["items"]] == [
        "vision",
        "language",
        "default",
    ]


def test_browser_follows_the_link_to_the_csv(hub: RestHub) -> None:
    with Plain(hub, "alice") as alice:
        page = alice.visit("/services/jobs/history?by=user")
        link = re.search(r'href="([^"]+gpu-hours[.]csv[^"]*)">CSV', page.text)
        assert link is not None, page.text
        headers = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}
        table = alice.http.get(hub.url + html.unescape(link[1]), headers=headers, timeout=60)
    assert table.text.startswith("day,user,requested,allocated,measured,used,reclaimed"), table.text


def submit(hub: RestHub, who: str, name: str, **body: Any) -> requests.Response:
    return hub.ask(who, "POST", "jobs", {"server": name, "options": ONE, **body})


def submitted(hub: RestHub, user: str, server: str = "") -> list[str]:
    """All jobs that this server ever had."""
    return [job["id"] for job in hub.items(user, f"jobs?user={user}&server={server}")]


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
def test_refusal_is_a_sentence(hub: RestHub, body: dict[str, Any], status: int, sentence: str) -> None:
    answer = submit(hub, "alice", "refused", **body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json"), answer.text
    assert sentence in answer.json()["detail"]


def test_administrators_start_jobs_for_other_users_unless_blocked(hub: RestHub) -> None:
    assert submit(hub, "admin", "", user="bob").status_code in {201, 202}
    assert hub.until("bob", "running")["team"] == "language"
    assert submit(hub, "admin", "", user="nobody").status_code == 404
    for who in ("admin", "mallory"):
        answer = submit(hub, who, "", user="mallory")
        assert (answer.status_code, "may not start jobs" in answer.json()["detail"]) == (403, True)


def test_repeated_submit_returns_the_existing_job(hub: RestHub) -> None:
    server = new_name("s")
    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(lambda _: submit(hub, "alice", server), range(8))
    assert {one.status_code for one in (first, *others)} <= {201, 202}
    assert {one.json()["id"] for one in others} == {first.json()["id"]}
    assert first.headers["Location"] == f"/services/jobs/api/jobs/{first.json()['id']}"
    assert hub.until("alice", "running", server)["id"] == first.json()["id"]
    again = submit(hub, "alice", server)
    assert (again.status_code in {201, 202}, again.json()["id"]) == (True, first.json()["id"])
    other = submit(hub, "alice", server, options={"template": "tiny", "gpus": 2})
    assert (other.status_code, "runs, starts or stops already" in other.json()["detail"]) == (409, True)
    assert submitted(hub, "alice", server) == [first.json()["id"]]


def test_running_queued_and_ended_jobs_are_killed(hub: RestHub) -> None:
    running, waiting = new_name("s"), new_name("s")
    job = hub.runs("alice", 4, running)["id"]
    answer = submit(hub, "alice", waiting)
    waits = answer.json()["id"]
    assert (answer.status_code, answer.json()["state"], answer.json()["position"]) == (202, "queued", 1)
    assert "4 of its 4 GPUs" in answer.json()["why"]
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


def test_too_long_body_is_refused_through_the_proxy(hub: RestHub) -> None:
    token = {"Authorization": f"token {hub.token('alice')}", "Content-Type": "application/json"}
    for base in (hub.manager_url(), hub.url):
        for body in (b"x" * 30_000_000, iter([b"x" * 1_000_000] * 30)):
            answer = requests.post(f"{base}/services/jobs/api/jobs", data=body, headers=token, timeout=60)
            assert (answer.status_code, answer.headers["Content-Type"]) == (413, "application/problem+json")
            assert "longer than 256 KiB" in answer.json()["detail"]


def test_job_of_a_removed_server_starts_again_with_its_own_options(hub: RestHub) -> None:
    server = new_name("s")
    job = hub.runs("alice", 2, server)["id"]
    assert "has not ended" in hub.ask("alice", "POST", f"jobs/{job}/requeue").json()["detail"]
    assert hub.ask("vera", "DELETE", f"jobs/{job}").status_code == 202
    assert "vera has stopped this job" in hub.until("alice", "ended", server)["why"]
    wait_for(lambda: f"alice/{server}" not in hub.servers(), "it is stopped")
    assert submit(hub, "alice", server, options={"template": "tiny", "gpus": 8}).status_code == 403
    assert hub.api("DELETE", f"/users/alice/servers/{server}", {"remove": True}).status_code in {202, 204}
    for user in ("alice", "admin"):
        again = hub.ask(user, "POST", f"jobs/{job}/requeue")
        assert (again.status_code in {201, 202}, again.json().get("gpus")) == (True, 2), again.text
        assert again.json()["id"] != job
        hub.ask("alice", "DELETE", f"jobs/{again.json()['id']}")
        hub.until("alice", "ended", server)
        wait_for(lambda: f"alice/{server}" not in hub.servers(), "it is stopped")
