"""Jobs, cluster, quota and queue by REST, through a real Hub with real tokens and jobs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import requests

from tests.component.manager import rest
from tests.component.manager.rest import RestHub

FIELDS = {
    *("id", "user", "server", "team", "team_title", "template", "state", "reason", "why", "position", "priority"),
    *("preemptible", "gpus", "gpu_type", "cpu", "memory_bytes", "nodes", "submitted", "started", "ended", "endpoints"),
    *("stop", "notice", "approval", "estimate"),
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestHub]:
    yield from rest.made(tmp_path_factory.mktemp("rest"))


@pytest.fixture(autouse=True)
def nothing_left(hub: RestHub) -> Iterator[None]:
    yield
    hub.clear()


def waits(hub: RestHub, user: str, gpus: int, server: str = "") -> dict[str, Any]:
    path = f"/users/{user}/servers/{server}" if server else f"/users/{user}/server"
    answer = hub.api("POST", path, {"user_options": {"template": "tiny", "gpus": gpus}})
    assert answer.status_code in {201, 202, 429}, answer.text  # a busy Hub answers before the Manager does
    return hub.until(user, "queued", server)


def test_job_from_start_to_end(hub: RestHub) -> None:
    job = hub.runs("alice", 2, "train")
    assert set(job) == FIELDS
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
    assert ended["why"] in {"Its program has ended.", "It was stopped."}
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


def test_filters_and_pages_return_all_jobs_once(hub: RestHub) -> None:
    for server in ("a", "b", "c"):
        hub.runs("bob", 1, server)
    hub.api("DELETE", "/users/bob/servers/b")
    hub.until("bob", "ended", "b")
    mine = hub.items("bob", "jobs?limit=2")
    assert [one["server"] for one in mine][:3] == ["c", "b", "a"]
    assert len({one["id"] for one in mine}) == len(mine)
    assert [one["server"] for one in hub.items("bob", "jobs?state=live&limit=1")] == ["c", "a"]
    assert [one["server"] for one in hub.items("bob", "jobs?state=ended&server=b")][:1] == ["b"]
    assert hub.items("bob", "jobs?team=vision") == []
    assert {one["server"] for one in hub.items("bob", "jobs?template=tiny&gpu_type=gpu&preemptible=false")} >= {"a"}
    assert hub.items("bob", f"jobs?until={mine[-1]['submitted']}") == []
    assert [one["server"] for one in hub.items("bob", f"jobs?since={mine[0]['submitted']}")] == ["c"]
    for query in ("stat=live", "limit=2&limit=3", "user=%ff", "cursor=-1"):
        answer = hub.ask("bob", "GET", f"jobs?{query}")
        assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json"), query


def test_cluster_shows_free_gpus_and_cordoned_nodes(hub: RestHub) -> None:
    before = hub.ask("bob", "GET", "cluster").json()
    [kind] = before["gpu_types"]
    assert kind["free"] == kind["total"] == sum(on["total"] for node in before["nodes"] for on in node["gpus"])
    job = hub.runs("alice", 2)
    [kind] = hub.ask("bob", "GET", "cluster").json()["gpu_types"]
    assert kind["free"] == kind["total"] - 2
    hub.kubectl("cordon", *(node["name"] for node in before["nodes"]))
    try:
        rest.wait_for(lambda: hub.ask("bob", "GET", "cluster").json()["gpu_types"][0]["free"] == 0, "all are closed")
        told = hub.ask("bob", "GET", "cluster").json()
        assert {node["state"] for node in told["nodes"]} == {"cordoned"}
        assert told["gpu_types"][0]["unschedulable"] == kind["total"]
        assert told["gpu_types"][0]["most_on_one_node"] == 0
    finally:
        hub.kubectl("uncordon", *(node["name"] for node in before["nodes"]))
    assert job["nodes"][0] in {node["name"] for node in before["nodes"]}


def test_quota_of_own_teams(hub: RestHub) -> None:
    hub.runs("alice", 3)
    vision = {
        **{"team": "vision", "title": "Vision", "gpu_type": "gpu", "entitled": 4, "used": 3, "borrowed": 0, "free": 1},
        "borrow_limit": None,
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
    browser = requests.Session()
    form = browser.get(f"{hub.url}/hub/login", timeout=60).text
    token = re.search(r'name="_xsrf"\s+value="([^"]+)"', form)
    assert token is not None
    body = {"username": "alice", "password": hub.password, "_xsrf": token[1]}
    browser.post(f"{hub.url}/hub/login", data=body, timeout=60)
    page = browser.get(f"{hub.url}/services/jobs/history?by=user", timeout=60)
    link = re.search(r'href="([^"]+gpu-hours[.]csv[^"]*)">CSV', page.text)
    assert link is not None, page.text
    headers = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}
    table = browser.get(hub.url + html.unescape(link[1]), headers=headers, timeout=60)
    assert table.text.startswith("day,user,requested,allocated,measured,used,reclaimed"), table.text
