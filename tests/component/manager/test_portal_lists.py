"""The portal's pages of the queue, the cluster, one job, and of administrators: what each reader sees."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from dlspawner.clients.hub import HubRejected, HubUnavailable
from dlspawner.core.decisions import Reason
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.http.api.start_jobs import BLOCKED, LOG_IN, NOT_ENDED, NOT_FOR_OTHERS
from dlspawner.manager.http.portal import lists
from dlspawner.manager.http.portal.base import NO_JOB
from dlspawner.manager.http.portal.lists import OTHERWISE, REASONS, QueuedReason, queued_rows
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import as_ended
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.portals import Portal, portals
from tests.component.manager.test_portal_views import NOW, JobState, job
from tests.component.manager.test_portal_views import world as world_of
from tests.component.manager.world import World


@pytest.fixture
async def portal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        yield made


async def test_everybody_sees_the_queue_and_nobody_whose_jobs_wait(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8, server="held"))
    await portal.waits(wants("alice", gpus=2, server="secret-project"))
    page = await portal.read("bob", "queue")
    assert page.status == 200
    assert "1 of 1 somebody’s Everybody 2 GPUs of type gpu just now not known Its team's quota is in use." in page.text
    assert "alice" not in page.body
    assert "secret-project" not in page.body


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("alice", "secret-project (yours)"),
        ("vera", "secret-project of alice"),
        ("root-admin", "secret-project of alice"),
        ("lars", "somebody’s"),
    ],
    ids=["its owner", "the team's admin", "an administrator", "another team's admin"],
)
async def test_who_may_see_a_job_reads_whose_it_is_and_why_it_waits(portal: Portal, user: str, shown: str) -> None:
    await portal.runs(wants("holder", gpus=8))
    await portal.waits(wants("alice", server="secret-project"))
    page = await portal.read(user, "queue")
    assert shown in page.text
    sentence = "Team Everybody uses 8 of its 8 GPUs of type gpu; this job needs 1."
    assert (sentence in page.text) == (user != "lars")


async def test_a_persons_own_jobs_come_first_with_their_places(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8))
    await portal.waits(wants("bob", server="first"))
    await portal.waits(wants("alice", server="mine"))
    page = await portal.read("alice", "queue")
    assert "Mine mine number 2 of 2 that wait for the same" in page.text
    assert 'href="/services/jobs/wait/alice/mine"' in page.body


async def test_an_empty_queue_says_so_and_pages_beyond_the_end_are_empty(portal: Portal) -> None:
    assert "Nothing waits." in (await portal.read("alice", "queue")).text
    for begin in ("50", "-1", "x", "99999999999"):
        assert (await portal.read("alice", f"queue?from={begin}")).status == 200


@pytest.mark.parametrize("kind", list(Reason), ids=lambda kind: kind.value)
def test_what_others_read_of_a_reason_never_says_what_its_person_has(kind: Reason) -> None:
    waits = job(JobState.QUEUED)
    world = world_of(waits)
    telling = QueuedReason(lambda one: "You have 3 jobs.", lambda one: kind)
    (others,) = queued_rows(world, NOW, Viewer("bob"), [waits], telling)
    (admins,) = queued_rows(world, NOW, Viewer("vera", frozenset({"vision"})), [waits], telling)
    (own,) = queued_rows(world, NOW, Viewer("alice"), [waits], telling)
    assert own.why == "You have 3 jobs."
    assert "You" not in others.why
    assert (others.who, others.server, others.job) == ("", "", "")
    assert ("You" in admins.why) == (kind in REASONS)
    assert others.why.lower().rstrip(".") in {*REASONS.values(), OTHERWISE}


async def test_the_cluster_says_what_is_free_and_what_is_closed(portal: Portal) -> None:
    await portal.office.make_node("gpu-2", gpus=4)
    await portal.runs(wants("alice", gpus=3))
    await until(lambda: "gpu-2" in portal.served.book.nodes, "the node is seen")
    page = await portal.read("bob", "cluster")
    assert "GPU 9 of 12 free, at most 5 on one node" in page.text
    assert "None: every node takes jobs." in page.text
    node = portal.served.book.nodes["gpu-2"]
    portal.served.book.put_node(replace(node, cordoned=True))
    page = await portal.read("bob", "cluster")
    assert "GPU 5 of 12 free, at most 5 on one node; 4 on closed nodes" in page.text
    assert "gpu-2 cordoned: nothing new starts there, what runs goes on" in page.text
    portal.served.book.put_node(replace(node, ready=False))
    assert "gpu-2 does not answer" in (await portal.read("bob", "cluster")).text


async def test_the_page_of_a_job_tells_its_life(portal: Portal) -> None:
    question = await portal.runs(wants("alice", gpus=2, server="train"))
    page = await portal.read("alice", f"jobs/{question.job}")
    assert "Template Tiny Owner alice Team Everybody GPUs 2 GPUs of type gpu" in page.text
    assert "CPU and memory 0.05 CPU cores, 64 MiB memory Priority" in page.text
    assert "Nodes gpu-1" in page.text
    assert page.text.index("It runs.") < page.text.index("Its pod was made.") < page.text.index("It may start.")
    assert "train of alice" in (await portal.read("vera", f"jobs/{question.job}")).text


async def test_the_page_of_a_job_that_has_ended_stays(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8))
    question = await portal.waits(wants("alice", server="train"))
    await portal.read("alice", f"jobs/{question.job}/stop", "POST")
    page = await portal.read("alice", f"jobs/{question.job}")
    assert "ended It was cancelled before it ran." in page.text
    assert "Start again" in page.text
    assert "Start again" not in (await portal.read("vera", f"jobs/{question.job}")).text
    await portal.waits(wants("alice", server="train"))
    assert "Start again" not in (await portal.read("alice", f"jobs/{question.job}")).text, "another job came since"


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
async def test_who_may_start_a_job_again(portal: Portal, user: str, status: int, says: str, has_button: bool) -> None:
    job = await ended_of_alice(portal)
    assert ("Start again" in (await portal.read(user, f"jobs/{job}")).text) == has_button
    new = wants("alice", gpus=1, server="train")
    portal.hub.starts = lambda *_: asks_for(portal, new)
    answer = await portal.read(user, "start", "POST", {"server": "train", "job": job})
    assert (answer.status, says in answer.text) == (status, True), answer.text
    assert portal.hub.started == ([("alice", "train")] if status == 303 else [])
    if user == "root-admin":
        assert answer.location == f"/services/jobs/jobs/{new.job}"
        assert "train of alice" in (await portal.read(user, answer.location.removeprefix("/services/jobs/"))).text


async def test_an_administrator_reads_in_the_words_of_rest_why_a_job_does_not_start_again(portal: Portal) -> None:
    job, teams = await ended_of_alice(portal), portal.served.acting.settings.teams
    settings = portal.served.acting.settings

    async def refused() -> str:
        form = {"server": "train", "job": job}
        on_page = await portal.read("root-admin", "start", "POST", form)
        by_rest = await portal.read("root-admin", f"api/jobs/{job}/requeue", "POST")
        told = json.loads(by_rest.body)
        assert (on_page.status, told["detail"] in on_page.text) == (by_rest.status, True), (told, on_page.text)
        return str(told["detail"])

    portal.served.acting.settings = replace(settings, teams=replace(teams, blocked=frozenset({"alice"})))
    assert await refused() == BLOCKED.format(user="alice")
    assert "Start again" not in (await portal.read("root-admin", f"jobs/{job}")).text
    portal.served.acting.settings = settings
    portal.hub.starts = lambda *_: fails(HubRejected(403, "Your auth has expired. Login required."))
    assert await refused() == LOG_IN.format(user="alice")
    portal.hub.starts = lambda *_: fails(HubUnavailable("The Hub does not answer."))
    assert await refused() == "The Hub does not answer."
    later = await portal.waits(wants("alice", gpus=1, server="train"))
    job = later.job
    assert await refused() == NOT_ENDED


async def test_a_token_that_only_reads_starts_no_job_again(portal: Portal) -> None:
    job = await ended_of_alice(portal)
    token = await asyncio.to_thread(portal.world.token, "root-admin", ("read:servers", "access:services"))
    answer = await portal.read("root-admin", "start", "POST", {"server": "train", "job": job}, token=token)
    assert (answer.status, "scope servers" in answer.text, portal.hub.started) == (403, True, [])


async def ended_of_alice(portal: Portal) -> str:
    """A job of hers that has ended, of a server whose options the Hub has kept, while nothing is free."""
    await portal.runs(wants("holder", gpus=8))
    question = await portal.waits(wants("alice", gpus=1, server="train"))
    await portal.read("alice", f"jobs/{question.job}/stop", "POST")
    portal.hub.kept["alice", "train"] = {"template": "tiny", "gpus": 1}
    portal.knows("alice", "train")
    return question.job


async def asks_for(portal: Portal, question: AdmissionRequest) -> None:
    """What the Hub does on a start."""
    await portal.waits(question)


async def fails(problem: Exception) -> None:
    raise problem


@pytest.mark.parametrize("user", ["bob", "lars"])
async def test_the_page_of_anothers_job_is_like_one_that_does_not_exist(portal: Portal, user: str) -> None:
    question = await portal.runs(wants("alice"))
    answer, missing = await portal.read(user, f"jobs/{question.job}"), await portal.read(user, f"jobs/j-{'a' * 12}")
    assert (answer.status, answer.text) == (404, missing.text)


async def test_an_administrator_sees_all_jobs_and_finds_some(portal: Portal) -> None:
    await portal.runs(wants("alice", server="train"))
    await portal.runs(wants("bob", server="play"))
    page = await portal.read("root-admin", "all")
    assert ("train alice" in page.text, "play bob" in page.text) == (True, True)
    found = await portal.read("root-admin", "all?user=alice&state=running&team=&gpu_type=")
    assert ("train alice" in found.text, "play bob" in found.text) == (True, False)
    assert "No such jobs." in (await portal.read("root-admin", "all?user=nobody")).text
    wrong = await portal.read("root-admin", "all?state=nonsense")
    assert (wrong.status, "no such state" in wrong.text) == (422, True)


async def test_a_long_list_has_pages(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlspawner.manager.http.portal.lists.PER_PAGE", 1)
    await portal.runs(wants("alice", server="older"))
    await portal.runs(wants("alice", server="newer"))
    first = await portal.read("root-admin", "all?user=alice")
    assert ("newer alice" in first.text, "older alice" in first.text) == (True, False)
    link = first.body.split('<nav aria-label="Pages of jobs"><a href="/services/jobs/')[1].split('"')[0]
    second = await portal.read("root-admin", link.replace("&amp;", "&"))
    assert ("newer alice" in second.text, "older alice" in second.text) == (False, True)


async def test_a_team_admin_sees_the_jobs_and_members_of_that_team_only(portal: Portal) -> None:
    portal.hub.groups = {"language": frozenset({"zoe"}), "default": frozenset({"alice"})}
    await portal.runs(wants("alice", server="train"))
    vera, lars = await portal.read("vera", "teams"), await portal.read("lars", "teams")
    assert ("Everybody" in vera.text, "Members alice" in vera.text, "Language" in vera.text) == (True, True, False)
    assert ("Everybody" in lars.text, "Members zoe" in lars.text) == (False, True)
    assert "train alice" in (await portal.read("vera", "all")).text
    assert "train alice" not in (await portal.read("lars", "all")).text
    every = await portal.read("root-admin", "teams")
    assert ("Everybody" in every.text, "Language" in every.text) == (True, True)


async def test_a_team_whose_admins_can_approve_nothing_is_not_said_to_need_an_approval(portal: Portal) -> None:
    caps = ("soft: 4, hard: 4", "soft: 2, hard: 4", "soft: 2", "hard: 4", "soft: 1", "hard: 1")
    teams = [f"  team{at}: {{quota: {{gpu: 8}}, admins: [vera], user_caps: {{{one}}}}}" for at, one in enumerate(caps)]
    (portal.office.folder / "teams.yaml").write_text("\n".join(("teams:", *teams)))
    await until(lambda: portal.served.book.cluster_state.team("team5") is not None, "the new teams count")
    page = (await portal.read("vera", "teams")).body
    limits = re.findall(r"Limits of a member</dt>\s*<dd[^>]*>(.*?)</dd>", page, re.DOTALL)
    assert [" ".join(one.split()) for one in limits] == [
        *("at most 4 GPUs", "more than 2 GPUs need an approval; at most 4 GPUs"),
        *("more than 2 GPUs need an approval", "at most 4 GPUs"),
        *("more than 1 GPU needs an approval", "at most 1 GPU"),
    ]


@pytest.mark.parametrize(("at_once", "together"), [pytest.param(1, 1, id="one"), pytest.param(10, 2, id="all")])
async def test_the_hub_is_asked_about_so_many_teams_together(
    portal: Portal, monkeypatch: pytest.MonkeyPatch, at_once: int, together: int
) -> None:
    asking, most, enough = set[str](), [0], asyncio.Event()

    async def group(name: str) -> frozenset[str]:
        asking.add(name)
        most.append(len(asking))
        if len(asking) == together:
            enough.set()
        async with asyncio.timeout(20):
            await enough.wait()
        await asyncio.sleep(0)
        asking.remove(name)
        return frozenset({f"in-{name}"})

    monkeypatch.setattr(lists, "_QUESTIONS", at_once)
    monkeypatch.setattr(portal.hub, "group", group)
    page = await portal.read("root-admin", "teams")
    assert ("in-language" in page.text, "in-default" in page.text, max(most)) == (True, True, together)


async def test_while_the_hub_is_away_teams_are_shown_without_members(portal: Portal) -> None:
    portal.hub.servers = None
    page = await portal.read("vera", "teams")
    assert (page.status, "The Hub does not say who they are." in page.text) == (200, True)


async def test_who_administers_nothing_has_no_page_of_teams_and_no_way_to_it(portal: Portal) -> None:
    assert (await portal.read("alice", "teams")).status == 404
    assert 'href="/services/jobs/teams"' not in (await portal.read("alice")).body
    assert 'href="/services/jobs/teams"' in (await portal.read("vera")).body


async def test_a_person_finds_all_jobs_they_ever_had_and_nobody_elses(portal: Portal) -> None:
    ended = []
    await portal.runs(wants("holder", gpus=8))
    for user, server in (("alice", "train"), ("alice", "train"), ("bob", "play")):
        ended.append(await portal.waits(wants(user, server=server)))
        await portal.read(user, f"jobs/{ended[-1].job}/stop", "POST")
    portal.hub.servers = set()  # they have removed these servers
    assert "train" not in (await portal.read("alice")).text
    first, second, bobs = (f'href="/services/jobs/jobs/{one.job}"' for one in ended)
    alice, bob = await portal.read("alice", "all"), await portal.read("bob", "all?user=alice&team=default")
    assert (alice.status, first in alice.body, second in alice.body, bobs in alice.body) == (200, True, True, False)
    assert alice.text.count("ended") == 3, "two jobs, and a choice of the filter"
    assert [link in bob.body for link in (first, second, bobs)] == [False] * 3
    assert bobs in (await portal.read("bob", "all")).body
    assert [(await portal.read("alice", f"jobs/{one.job}")).status for one in ended] == [200, 200, 404]


@pytest.mark.parametrize(
    ("user", "title", "by_person", "teams"),
    [
        ("alice", "All my jobs", False, {"default"}),
        ("vera", "Team’s jobs", True, {"default"}),
        ("root-admin", "All jobs", True, {"default", "language"}),
    ],
    ids=["a person", "a team's admin", "an administrator"],
)
async def test_the_list_of_all_jobs_has_the_name_and_filters_of_its_reader(
    portal: Portal, user: str, title: str, by_person: bool, teams: set[str]
) -> None:
    acting = portal.served.acting
    (tiny,) = acting.settings.templates
    secret = replace(tiny, name="secret", title="Of another team", who=("language",))
    acting.settings = replace(acting.settings, templates=(tiny, secret))
    page = await portal.read(user, "all")
    assert ("Of another team" in page.body) == (user == "root-admin")
    assert page.text.startswith(title)
    assert f'aria-current="page">{title}</a>' in page.body
    assert [word in page.body for word in ('name="user"', ">Person</label>")] == [by_person] * 2
    assert {one for one in ("default", "language") if f'<option value="{one}"' in page.body} == teams


@pytest.mark.parametrize("path", ["", "queue", "cluster", "teams", "all", f"jobs/j-{'a' * 12}"])
async def test_without_login_every_page_leads_to_it(portal: Portal, path: str) -> None:
    answer = await portal.read("", path)
    assert answer.status == 302
    assert "/hub/api/oauth2/authorize" in answer.location


async def test_jobs_without_gpus_can_be_chosen(portal: Portal) -> None:
    await portal.runs(wants("alice", gpus=0, server="small"))
    await portal.runs(wants("alice", gpus=2, server="large"))
    form = await portal.read("alice", "all")
    choice = re.search('<option value="([^"]+)">no GPU</option>', form.body)
    assert choice is not None
    page = await portal.read("alice", f"all?gpu_type={choice[1]}&team=")
    assert page.status == 200
    assert "small" in page.text
    assert "large" not in page.text
    assert f'<option value="{choice[1]}" selected>no GPU</option>' in page.body
    typed = (await portal.read("alice", "all?gpu_type=gpu")).text
    assert ("large" in typed, "small" in typed) == (True, False)


async def test_lists_and_the_job_itself_say_the_same_of_its_end_and_nobody_asks_for_each(portal: Portal) -> None:
    ends = [
        (EventReason.FAILED, "exit code 3"),
        (EventReason.FAILED, "exit code 137"),
        (EventReason.FINISHED, "of no interest"),
        (EventReason.NOT_CREATED, "no quota"),
    ]
    ids = [(await portal.runs(wants("alice", gpus=1, server=f"s{number}"))).job for number in range(len(ends))]
    book, statements = portal.served.book, list[str]()
    event.listen(portal.served.manager.store._engine, "before_cursor_execute", lambda *told: statements.append(told[2]))

    async def asked(path: str) -> tuple[str, int]:
        before = len(statements)
        return (await portal.read("alice", path)).body, len(statements) - before

    async def end_one(id_: str, reason: EventReason, detail: str) -> None:
        def write(turn: Transaction) -> None:
            record = turn.record(id_)
            assert record is not None
            turn.write(as_ended(record), reason, detail)

        await book.transact(write)

    await end_one(ids[0], *ends[0])
    first = (await asked("api/jobs"))[1], (await asked("all"))[1]
    for one, (reason, detail) in zip(ids[1:], ends[1:], strict=True):
        await end_one(one, reason, detail)
    listed, statements_of_list = await asked("api/jobs")
    page, statements_of_page = await asked("all")
    assert (statements_of_list, statements_of_page) == first, "so many as for one"
    whys = {one["id"]: one["why"] for one in json.loads(listed)["items"]}
    for one in ids:
        assert whys[one] == json.loads((await asked(f"api/jobs/{one}"))[0])["why"]
        assert whys[one] in (await portal.read("alice", f"jobs/{one}")).text
        assert whys[one] in page
    assert [whys[one] for one in ids] == [
        "Its program has failed: exit code 3",
        "Its program has failed: exit code 137",
        "Its program has ended.",
        "The cluster refused its pod: no quota",
    ]


async def test_every_job_says_how_it_ended_in_the_words_of_its_page(portal: Portal) -> None:
    for server, reason in (("good", EventReason.FINISHED), ("bad", EventReason.FAILED)):
        book, job = portal.served.book, (await portal.runs(wants("alice", gpus=1, server=server))).job
        await book.transact(lambda turn, job=job, reason=reason: turn.write(as_ended(turn.record(job)), reason, ""))  # type: ignore[misc]
        sentence = reason.end_text.replace(":", ".")
        assert sentence in (await portal.read("alice", f"jobs/{job}")).text
    text = (await portal.read("alice", "all")).text
    assert re.search(r"good .{,80}ended Its program has ended[.]", text)
    assert re.search(r"bad .{,80}ended Its program has failed[.]", text)
