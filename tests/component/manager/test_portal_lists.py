"""The portal's pages of the queue, the cluster, one job, all jobs and teams, for each viewer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert

from dlspawner.clients.hub import HubRejected, HubUnavailable
from dlspawner.core.config import ExtendedResource
from dlspawner.core.decisions import Reason
from dlspawner.core.nodes import Taint
from dlspawner.core.units import GPU
from dlspawner.manager.db.jobs import MOST_EVENTS
from dlspawner.manager.db.tables import job_events
from dlspawner.manager.http.api.start_jobs import BLOCKED, LOG_IN, NOT_ENDED, NOT_FOR_OTHERS
from dlspawner.manager.http.portal.base import NO_JOB
from dlspawner.manager.http.portal.lists import OTHERWISE, REASONS, queued_rows
from dlspawner.manager.model.access import Viewer
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import Portal
from tests.component.manager.test_portal_jobs import ended
from tests.component.manager.test_portal_views import NOW, JobState, job
from tests.component.manager.test_portal_views import cluster_state as cluster_state_of


@pytest.mark.parametrize("kind", list(Reason), ids=lambda kind: kind.value)
def test_reason_for_others_has_no_figures_of_the_owner(kind: Reason) -> None:
    waits = job(JobState.QUEUED)
    state = cluster_state_of(waits)
    looks: Any = SimpleNamespace(why=lambda *_: "You have 3 jobs.", reason=lambda *_: kind, estimate=lambda *_: None)
    (others,) = queued_rows(state, NOW, Viewer("bob"), [waits], looks)
    (admins,) = queued_rows(state, NOW, Viewer("vera", frozenset({"vision"})), [waits], looks)
    (own,) = queued_rows(state, NOW, Viewer("alice"), [waits], looks)
    assert own.why == "You have 3 jobs."
    assert "You" not in others.why
    assert (others.who, others.server, others.job) == ("", "", "")
    assert ("You" in admins.why) == (kind in REASONS)
    assert others.why.lower().rstrip(".") in {*REASONS.values(), OTHERWISE}


async def test_cluster_page_shows_free_and_closed_nodes(portal: Portal) -> None:
    await portal.harness.make_node("gpu-2", gpus=4)
    await portal.runs(wants("alice", gpus=3))
    await until(lambda: "gpu-2" in portal.served.store.nodes, "the node is seen")
    page = await portal.read("bob", "cluster")
    assert "GPU 9 of 12 free, at most 5 on one node" in page.text
    before = (await portal.ask("bob", "cluster"))[1]["gpu_types"][0]
    assert (before["total"], before["free"], before["most_on_one_node"], before["unschedulable"]) == (12, 9, 5, 0)
    assert "None: every node takes jobs." in page.text
    assert page.body.count('role="listitem" class="guaranteed"') == 3
    assert ("team Everybody" in page.text, "alice / " in page.text) == (True, False), "only her team is told to others"
    assert "alice / default server" in (await portal.read("alice", "cluster")).text
    node = portal.served.store.nodes["gpu-2"]
    portal.served.store.put_node(replace(node, cordoned=True))
    page = await portal.read("bob", "cluster")
    assert "GPU 5 of 12 free, at most 5 on one node; 4 on closed nodes" in page.text
    assert page.body.count('role="listitem" class="closed"') == 4
    assert "gpu-2 cordoned: nothing new starts there, what runs goes on" in page.text
    told = (await portal.ask("bob", "cluster"))[1]
    assert {node["name"]: node["state"] for node in told["nodes"]}["gpu-2"] == "cordoned"
    assert (told["gpu_types"][0]["free"], told["gpu_types"][0]["unschedulable"]) == (5, 4)
    real_hub = portal.served.store.cluster_state
    real_hub.configure(
        replace(real_hub.cluster, extended_resources=(ExtendedResource("rdma/hca", "Adapters"),)), real_hub.teams
    )
    portal.served.store.put_node(replace(node, gpus=(*node.gpus, ("rdma/hca", 4 * GPU))))
    assert "4 of 4 Adapters" in (await portal.read("bob", "cluster")).text
    portal.served.store.put_node(replace(node, ready=False, taints=(Taint("maintenance", "disk"),)))
    page = await portal.read("bob", "cluster")
    assert "gpu-2 unhealthy taint maintenance=disk: NoSchedule" in page.text
    assert [" ready " in (await portal.read("bob", f"cluster?type={kind}")).text for kind in ("", "gpu", "none")] == [
        True,
        True,
        False,
    ]
    assert "gpu-2 does not answer" in page.text


async def test_cluster_page_draws_borrowed_gpus_in_one_colour(portal: Portal) -> None:
    await portal.runs(wants("alice", gpus=3))
    await portal.runs(wants("bob", gpus=2, preemptible=True))
    body = (await portal.read("alice", "cluster")).body
    assert body.count('role="listitem" class="borrowed"') == 2
    assert '<rect class="borrowed" x="37.5%" y="0" height="100%" width="25.0%" />' in body


@pytest.mark.parametrize(
    ("user", "status", "says", "has_button"),
    [
        ("alice", 303, "", True),
        ("vera", 403, NOT_FOR_OTHERS, False),
        ("lars", 404, NO_JOB, False),
        ("bob", 404, NO_JOB, False),
        ("root-admin", 303, "", True),
    ],
    ids=["its owner", "the team's admin", "another team's admin", "another person", "an administrator"],
)
async def test_restart_is_for_owner_and_admin(
    portal: Portal, user: str, status: int, says: str, has_button: bool
) -> None:
    job = await ended_of_alice(portal)
    assert ("Start again" in (await portal.read(user, f"jobs/{job}")).text) == has_button
    new = wants("alice", gpus=1, server="train")

    async def starts(user: str, server: str) -> None:
        await portal.waits(new)

    portal.hub.starts = starts
    answer = await portal.read(user, "start", "POST", {"server": "train", "job": job})
    assert (answer.status, says in answer.text) == (status, True), answer.text
    assert portal.hub.started == ([("alice", "train")] if status == 303 else [])
    assert (await portal.read(user, "start", "POST", {"server": "other", "job": job})).status == 404
    if user == "root-admin":
        assert answer.location == f"/services/jobs/jobs/{new.job}"
        assert "alice / train" in (await portal.read(user, answer.location.removeprefix("/services/jobs/"))).text


async def test_refusal_of_a_restart_is_the_same_by_page_and_rest(portal: Portal) -> None:
    job, teams = await ended_of_alice(portal), portal.served.leader.settings.teams
    settings = portal.served.leader.settings

    async def refused() -> str:
        form = {"server": "train", "job": job}
        on_page = await portal.read("root-admin", "start", "POST", form)
        by_rest = await portal.read("root-admin", f"api/jobs/{job}/requeue", "POST")
        told = json.loads(by_rest.body)
        assert (on_page.status, told["detail"] in on_page.text) == (by_rest.status, True), (told, on_page.text)
        return str(told["detail"])

    portal.served.leader.settings = replace(settings, teams=replace(teams, blocked=frozenset({"alice"})))
    assert await refused() == BLOCKED.format(user="alice")
    assert "Start again" not in (await portal.read("root-admin", f"jobs/{job}")).text
    portal.served.leader.settings = settings
    portal.hub.refuses(HubRejected(403, "Your auth has expired. Login required."))
    assert await refused() == LOG_IN.format(user="alice")
    portal.hub.refuses(HubUnavailable("The Hub does not answer."))
    assert await refused() == "The Hub does not answer."
    later = await portal.waits(wants("alice", gpus=1, server="train"))
    assert "Start again" not in (await portal.read("alice", f"jobs/{job}")).text, "another job came since"
    job = later.job
    assert await refused() == NOT_ENDED


async def ended_of_alice(portal: Portal) -> str:
    """An ended job of a server whose options the Hub has kept; no GPU is free."""
    await portal.runs(wants("holder", gpus=8))
    return (await ended(portal, 1)).job


async def test_long_list_has_pages(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlspawner.manager.http.portal.lists.PER_PAGE", 1)
    await portal.runs(wants("alice", server="older"))
    await portal.runs(wants("alice", server="newer"))
    first = await portal.read("root-admin", "all?user=alice")
    assert ("newer alice" in first.text, "older alice" in first.text) == (True, False)
    link = first.body.split('<nav aria-label="Pages of jobs"><a href="/services/jobs/')[1].split('"')[0]
    second = await portal.read("root-admin", link.replace("&amp;", "&"))
    assert ("newer alice" in second.text, "older alice" in second.text) == (False, True)


@pytest.mark.parametrize(
    ("user", "title", "by_person", "teams"),
    [
        ("alice", "History", False, {"default"}),
        ("vera", "Team jobs", True, {"default"}),
        ("root-admin", "All jobs", True, {"default", "language"}),
    ],
    ids=["a person", "a team's admin", "an administrator"],
)
async def test_list_of_all_jobs_has_title_and_filters_of_its_viewer(
    portal: Portal, user: str, title: str, by_person: bool, teams: set[str]
) -> None:
    portal.offers("secret", title="Of another team", who=("language",))
    page = await portal.read(user, "all")
    assert ("Of another team" in page.body) == (user == "root-admin")
    assert page.text.startswith(title)
    assert f'aria-current="page">{title}</a>' in page.body
    assert [word in page.body for word in ('name="user"', ">Person</label>")] == [by_person] * 2
    assert {one for one in ("default", "language") if f'<option value="{one}"' in page.body} == teams


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("alice", "secret-project (yours)"),
        ("vera", "alice / secret-project"),
        ("root-admin", "alice / secret-project"),
        ("lars", "another user’s"),
    ],
    ids=["its owner", "the team's admin", "an administrator", "another team's admin"],
)
async def test_queue_shows_owner_and_reason_to_those_who_may_see_the_job(portal: Portal, user: str, shown: str) -> None:
    assert "The queue is empty." in (await portal.read(user, "queue")).text
    await portal.runs(wants("holder", gpus=8))
    await portal.waits(wants("bob", server="first"))
    await portal.waits(wants("alice", gpus=2, server="secret-project"))
    page = await portal.read(user, "queue")
    assert shown in page.text
    assert ("this job needs 2." in page.text) == (user != "lars")
    if user == "lars":
        anonymous = "2 of 2 another user’s Everybody 2 GPUs of type gpu just now not known Its team's quota is in use."
        assert anonymous in page.text
        assert ("alice" in page.body, "secret-project" in page.body) == (False, False)
    if user == "alice":
        assert "Your jobs secret-project number 2 of 2" in page.text
        assert 'href="/services/jobs/wait/alice/secret-project"' in page.body
    for begin in ("50", "-1", "x", "99999999999"):
        assert (await portal.read(user, f"queue?from={begin}")).status == 200


async def test_page_of_a_job(portal: Portal) -> None:
    request = await portal.runs(wants("alice", gpus=2, server="train"))
    page = await portal.read("alice", f"jobs/{request.job}")
    assert "Template Tiny Owner alice Team Everybody GPUs 2 GPUs of type gpu" in page.text
    assert "CPU and memory 0.05 CPU cores, 64 MiB memory Priority" in page.text
    assert "Nodes gpu-1" in page.text
    assert page.text.index("UTC Running") < page.text.index("Pod created") < page.text.index("Admitted")
    assert "alice / train" in (await portal.read("vera", f"jobs/{request.job}")).text
    for user in ("bob", "lars"):
        foreign, missing = [await portal.read(user, f"jobs/{one}") for one in (request.job, f"j-{'a' * 12}")]
        assert (foreign.status, foreign.text) == (404, missing.text)


async def test_list_of_all_jobs_has_filters_and_own_jobs_of_removed_servers(portal: Portal) -> None:
    await portal.runs(wants("alice", gpus=0, server="small"))
    await portal.runs(wants("alice", gpus=8, server="large"))
    ended = await portal.waits(wants("alice", server="removed"))
    await portal.read("alice", f"jobs/{ended.job}/stop", "POST")
    await portal.runs(wants("bob", gpus=0, server="play"))
    portal.hub.servers = set()
    assert "removed" not in (await portal.read("alice")).text

    async def found(user: str, query: str = "") -> str:
        page = await portal.read(user, f"all?{query}")
        assert page.status == 200
        return " ".join(one for one in ("small", "large", "removed", "play") if f">{one}</a>" in page.body)

    assert await found("alice") == "small large removed"
    assert await found("vera") == "small large removed play"
    assert await found("root-admin", "user=alice&state=running&team=&gpu_type=") == "small large"
    assert await found("alice", "gpu_type=gpu&state=running") == "large"
    form = await portal.read("alice", "all")
    choice = re.search('<option value="([^"]+)">no GPU</option>', form.body)
    assert choice is not None
    assert await found("alice", f"gpu_type={choice[1]}&team=") == "small"
    wrong = await portal.read("root-admin", "all?state=nonsense")
    assert (wrong.status, "no such state" in wrong.text) == (422, True)


async def test_teams_are_shown_to_their_admins(portal: Portal) -> None:
    portal.hub.groups = {"language": frozenset({"zoe"}), "default": frozenset({"alice"})}
    vera, lars = await portal.read("vera", "teams"), await portal.read("lars", "teams")
    assert ("Everybody" in vera.text, "Members alice" in vera.text, "Language" in vera.text) == (True, True, False)
    assert ("Everybody" in lars.text, "Members zoe" in lars.text) == (False, True)
    every = await portal.read("root-admin", "teams")
    assert ("Everybody" in every.text, "Language" in every.text) == (True, True)
    assert (await portal.read("alice", "teams")).status == 404
    links = ['href="/services/jobs/teams"' in (await portal.read(user)).body for user in ("alice", "vera")]
    assert links == [False, True]
    portal.hub.servers = None
    assert "Members not known: the Hub does not answer" in (await portal.read("vera", "teams")).text


async def test_list_of_very_many_events_is_shortened(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8, server="held"))
    job = (await portal.waits(wants("alice", gpus=2, server="train"))).job
    store = portal.served.leader.repository._database

    async def add(count: int) -> None:
        row = {"job": job, "at": datetime.now(UTC), "state": "queued", "reason": "test", "detail": ""}
        await store.write(lambda connection: connection.execute(insert(job_events), [row] * count))

    async def events() -> Any:
        return (await portal.ask("alice", f"jobs/{job}/events"))[1]

    few = await events()
    assert (len(few["items"]), few["shortened"]) == (1, False)
    await add(MOST_EVENTS - 1)
    all_of_them = await events()
    assert (len(all_of_them["items"]), all_of_them["shortened"]) == (MOST_EVENTS, False)
    assert all_of_them["items"][0] == few["items"][0]
    await add(1)
    latest = await events()
    assert (len(latest["items"]), latest["shortened"]) == (MOST_EVENTS, True)
    assert {one["reason"] for one in latest["items"]} == {"test"}
