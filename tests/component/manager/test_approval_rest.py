"""Who may see and decide what waits for an approval, by real tokens of a real Hub; REST, and the page."""

from __future__ import annotations

import asyncio
import base64
import html
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dlspawner import cli
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from tests.component.manager.api_client import asked, decides, set_caps
from tests.component.manager.manager_harness import ask as ask_desk
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.noticing import Served, offices, serving
from tests.component.manager.queue_helpers import cancelled, state
from tests.component.manager.world import World


@pytest.fixture
async def served(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with offices(tmp_path, f"sqlite:///{tmp_path / 'm.sqlite'}") as office:
        await office.make_node()
        set_caps(office)
        async with serving(office, world) as found:
            yield found


async def ask(
    served: Served, token: str | None, path: str, method: str = "GET", **more: Any
) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"token {token}"} if token else {}
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, f"{served.url}/api/{path}", headers=headers, allow_redirects=False, **more) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def waits(served: Served, user: str = "alice", gpus: int = 3, **more: Any) -> AdmissionRequest:
    question = wants(user, gpus=gpus, **more)
    assert (await ask_desk(served.acting, question)).reason == "approval"
    return question


def ids(answer: tuple[int, dict[str, Any]]) -> list[str]:
    assert answer[0] == 200, answer
    return [one["job"] for one in answer[1]["items"]]


OWN = ("access:services!service=jobs", "servers!user=vera", "read:servers!user=vera")
WHO: dict[str, Callable[[World], str | None]] = {
    "anonymous": lambda world: None,
    "unknown token": lambda world: "0123456789abcdef",
    "the owner": lambda world: world.token("alice"),
    "the owner's job": lambda world: world.server_token("alice", "train"),
    "somebody else": lambda world: world.token("bob"),
    "a team admin": lambda world: world.token("vera"),
    "a team admin's own token": lambda world: world.token("vera", OWN),
    "a team admin's token that only reads": lambda world: world.token("vera", (OWN[0], OWN[2])),
    "a team admin's token for the service alone": lambda world: world.token("vera", OWN[:1]),
    "a team admin's job": lambda world: world.server_token("vera", "train"),
    "an administrator of the Hub": lambda world: world.token("root-admin"),
    "the gateway": lambda world: world.tokens["gateway"],
    "another service": lambda world: world.tokens["other"],
}
#                          what a list, a word, a word about what is not there are answered
MAY: dict[str, tuple[int, int, int]] = {
    "anonymous": (401, 401, 401),
    "unknown token": (401, 401, 401),
    "the owner": (200, 403, 404),
    "the owner's job": (403, 403, 403),
    "somebody else": (0, 404, 404),
    "a team admin": (200, 200, 404),
    "a team admin's own token": (200, 200, 404),
    "a team admin's token that only reads": (200, 403, 403),
    "a team admin's token for the service alone": (403, 403, 403),
    "a team admin's job": (403, 403, 403),
    "an administrator of the Hub": (200, 200, 404),
    "the gateway": (200, 403, 403),
    "another service": (403, 403, 403),
}


@pytest.mark.parametrize("who", WHO)
async def test_who_sees_and_decides(world: World, served: Served, who: str) -> None:
    token, question = WHO[who](world), await waits(served)
    sees, may, nothing = MAY[who]
    status, content = await ask(served, token, "approvals")
    assert status == (sees or 200)
    assert [one["job"] for one in content.get("items", [])] == ([question.job] if sees == 200 else [])
    for word in ("approve", "deny"):
        assert (await ask(served, token, f"jobs/j-{'2' * 12}/{word}", "POST"))[0] == nothing
    assert (await ask(served, token, f"jobs/{question.job}/approve", "POST"))[0] == may
    assert (
        state(served.acting, question) is (JobState.QUEUED if may == 200 else JobState.PENDING_APPROVAL) or may == 200
    )


async def test_nobody_approves_their_own_but_an_administrator_of_the_hub(world: World, served: Served) -> None:
    admins = await waits(served, "vera")
    status, problem = await ask(served, world.token("vera"), f"jobs/{admins.job}/approve", "POST")
    assert (status, problem["detail"].startswith("Nobody approves or denies their own request")) == (403, True)
    assert (await ask(served, world.token("victor"), f"jobs/{admins.job}/approve", "POST"))[0] == 200
    hubs = await waits(served, "root-admin")
    assert (await ask(served, world.token("root-admin"), f"jobs/{hubs.job}/approve", "POST"))[0] == 200


async def test_the_first_word_counts_and_the_second_reads_whose_it_was(world: World, served: Served) -> None:
    question = await waits(served)
    path, body = f"jobs/{question.job}/", {"reason": "For the paper"}
    answers = await asyncio.gather(
        ask(served, world.token("vera"), path + "approve", "POST", json=body),
        ask(served, world.token("victor"), path + "deny", "POST", json=body),
    )
    assert sorted(status for status, _ in answers) == [200, 409]
    won = next(content for status, content in answers if status == 200)
    lost = next(content for status, content in answers if status == 409)
    assert (won["reason"], won["may_decide"]) == ("For the paper", False)
    assert lost["detail"] == f"It was {won['state']} already, by {won['by']}: For the paper."


async def test_what_was_asked_for_meanwhile_is_not_what_was_read(world: World, served: Served) -> None:
    question, token = await waits(served), world.token("vera")
    (read,) = (await ask(served, token, "approvals?mine=decide"))[1]["items"]
    await waits(served, gpus=5, job=question.job)
    path, body = f"jobs/{question.job}/approve", {"request": read["id"]}
    status, problem = await ask(served, token, path, "POST", json=body)
    assert (status, problem["detail"]) == (
        409,
        "It has been changed since you looked: look again at what is asked for now.",
    )
    assert state(served.acting, question) is JobState.PENDING_APPROVAL


async def test_what_waits_for_no_approval_and_what_does_not_any_more(world: World, served: Served) -> None:
    token, small = world.token("vera"), wants(gpus=1)
    await ask_desk(served.acting, small)
    assert (await ask(served, token, f"jobs/{small.job}/approve", "POST"))[1]["detail"] == (
        "This job waits for no approval."
    )
    question = await waits(served, "bob")
    assert await cancelled(served.acting, "bob")
    status, problem = await ask(served, token, f"jobs/{question.job}/deny", "POST")
    assert (status, problem["detail"]) == (409, "Nobody has to decide it any more: it was withdrawn.")


async def test_the_list_has_filters_and_pages(world: World, served: Served) -> None:
    token = world.token("vera")
    first, second, third = [await waits(served, user) for user in ("alice", "bob", "vera")]
    await decides(served.acting, asked(served.acting, first))
    everything = [third.job, second.job, first.job]
    assert ids(await ask(served, token, "approvals")) == everything
    assert ids(await ask(served, token, "approvals?mine=decide")) == [second.job]
    assert ids(await ask(served, token, "approvals?mine=decide&user=bob&kind=soft-cap&state=waiting")) == [second.job]
    for nobody_s in ("user=carl", "kind=special", "state=approved", f"job={first.job}", "team=language"):
        assert ids(await ask(served, token, f"approvals?mine=decide&{nobody_s}")) == []
    for wrong in ("mine=decide&kind=nonsense", f"cursor={BEFORE_ALL_TIME}"):
        assert (await ask(served, token, f"approvals?{wrong}"))[0] == 422
    assert ids(await ask(served, token, "approvals?mine=asked")) == [third.job]
    assert ids(await ask(served, token, "approvals?mine=asked&user=bob")) == []
    assert ids(await ask(served, token, "approvals?state=waiting")) == everything[:2]
    assert ids(await ask(served, token, "approvals?state=approved&state=denied")) == [first.job]
    assert ids(await ask(served, token, "approvals?user=bob&team=default&kind=soft-cap")) == [second.job]
    assert ids(await ask(served, token, "approvals?kind=special")) == []
    assert ids(await ask(served, token, f"approvals?job={first.job}")) == [first.job]
    pages, cursor = [], ""
    while cursor is not None:
        status, page = await ask(served, token, f"approvals?limit=1&cursor={cursor}")
        assert status == 200
        pages += [one["job"] for one in page["items"]]
        cursor = page["next"]
    assert pages == everything


BEFORE_ALL_TIME = base64.urlsafe_b64encode(b"0001-01-01T00:00:00+14:00 ab").decode()


@pytest.mark.parametrize(
    ("body", "status"),
    [("[]", 400), ('{"why": "x"}', 422), ("{", 400)],
    ids=["a list", "no such field", "no JSON"],
)
async def test_a_word_that_cannot_be_decides_nothing(world: World, served: Served, body: str, status: int) -> None:
    question, token = await waits(served), world.token("vera")
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{served.url}/api/jobs/{question.job}/approve", data=body, headers=headers) as answer,
    ):
        assert answer.status == status
    assert state(served.acting, question) is JobState.PENDING_APPROVAL


# The page


async def read(served: Served, token: str, page: str = "approvals", **form: str) -> tuple[int, str, str]:
    """Status, the text that a reader sees, and where it leads."""
    headers = {"Authorization": f"token {token}"}
    method = "POST" if form else "GET"
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(
            method, f"{served.url}/{page}", headers=headers, allow_redirects=False, data=form or None
        ) as answer,
    ):
        main = re.search(r"<main.*</main>", await answer.text(), re.DOTALL)
        # A comma after a link stands right behind it.
        text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main[0].replace("</a>", ""))).split()) if main else ""
        return answer.status, text, answer.headers.get("Location", "")


async def test_the_page_says_who_asks_for_what_and_what_they_have_now(world: World, served: Served) -> None:
    await ask_desk(served.acting, wants(gpus=1, server="small"))
    await waits(served)
    status, text, _ = await read(served, world.token("vera"))
    assert status == 200
    assert "alice asks for 3 GPUs of type gpu on the default server, team Everybody." in text
    assert "Team Everybody gives one person at most 2 GPUs without approval; alice holds 1." in text
    assert "alice holds 1. The team uses 1 of its 8 GPUs of type gpu." in text
    assert "Approve 3 GPUs of type gpu for alice" in text
    _, text, _ = await read(served, world.token("alice"))
    assert "vera or victor can approve it for team Everybody." in text
    assert "Approve 3 GPUs" not in text
    assert "Waiting for you" not in text
    _, text, _ = await read(served, world.token("bob"))
    assert "alice" not in text
    assert "No request of yours waits for an approval." in text


async def test_what_the_person_has_now_is_said_where_it_is_not_what_they_had(world: World, served: Served) -> None:
    small = wants(gpus=1, server="small")
    await ask_desk(served.acting, small)
    await waits(served)
    assert served.acting.admission is not None
    await served.acting.admission.release_reservation(small.job, "alice")
    _, text, _ = await read(served, world.token("vera"))
    assert "alice holds 1." in text, "when it was asked for"
    assert "alice holds 0 GPUs for team Everybody now; the team uses 0 of its 8 GPUs of type gpu." in text


async def test_the_job_that_waits_is_a_way_to_its_page(world: World, served: Served) -> None:
    question = await waits(served)
    for user in ("vera", "alice"):
        headers = {"Authorization": f"token {world.token(user)}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(f"{served.url}/approvals") as answer:
                (link,) = re.findall(
                    r'<a href="/services/jobs/(jobs/[^"]*)">the default server</a>', await answer.text()
                )
            assert link == f"jobs/{question.job}"
            async with session.get(f"{served.url}/{link}") as answer:
                assert answer.status == 200


async def test_the_buttons_decide_and_the_page_says_what_was_done(world: World, served: Served) -> None:
    token, question = world.token("vera"), await waits(served)
    request = asked(served.acting, question)
    assert request is not None
    status, _, place = await read(served, token, f"approvals/{request.id}/deny", reason="<b>Not now</b>")
    assert (status, place) == (303, f"/services/jobs/approvals?done={request.id}")
    _, text, _ = await read(served, token, f"approvals?done={request.id}")
    assert "You have denied 3 GPUs of type gpu to alice." in text
    assert "By vera: “<b>Not now</b>”" in text
    _, text, _ = await read(served, world.token("alice"), f"approvals?done={request.id}")
    assert "You have denied" not in text
    status, text, _ = await read(served, world.token("victor"), f"approvals/{request.id}/approve", reason="But yes")
    assert (status, "It was denied already, by vera: <b>Not now</b>." in text) == (409, True)
    status, text, _ = await read(served, world.token("alice"), "wait/alice/")
    assert (status, "It was denied by vera: <b>Not now</b>" in text) == (200, True)


async def test_the_page_of_a_job_says_by_whom_it_was_approved_and_why(world: World, served: Served) -> None:
    question = await waits(served)
    request = asked(served.acting, question)
    assert request is not None
    await read(served, world.token("vera"), f"approvals/{request.id}/approve", reason="<b>The paper</b> is due.")
    status, text, _ = await read(served, world.token("alice"), f"jobs/{question.job}")
    assert status == 200
    assert "It was approved by vera: <b>The paper</b> is due." in text


async def test_the_wait_page_speaks_to_its_person_and_of_them_to_an_admin(world: World, served: Served) -> None:
    await waits(served)
    _, own, _ = await read(served, world.token("alice"), "wait/alice/")
    _, of_others, _ = await read(served, world.token("root-admin"), "wait/alice/")
    assert ("You are told what they say" in own, "alice is told what they say" in own) == (True, False)
    assert ("You are told" in of_others, "alice is told what they say" in of_others) == (False, True)


async def test_whose_buttons_they_are_not(world: World, served: Served) -> None:
    request = asked(served.acting, await waits(served))
    assert request is not None
    for user, expected in (("alice", 403), ("bob", 404)):
        assert (await read(served, world.token(user), f"approvals/{request.id}/approve", reason="x"))[0] == expected
    assert (await read(served, world.server_token("vera", "train")))[0] == 403
    assert (await read(served, world.tokens["gateway"]))[0] == 404


async def test_the_page_has_room_for_many(world: World, served: Served) -> None:
    questions = [await waits(served, f"user{number}") for number in range(101)]
    _, text, _ = await read(served, world.token("vera"))
    assert "Waiting for you (101)" in text
    assert "And 1 more" in text
    for one in questions:
        await decides(served.acting, asked(served.acting, one))
    page = await read(served, world.token("vera"))
    assert page[1].count("approved") == 50
    assert "Earlier ones" in page[1]


# Who is told that something waits for them


async def told(served: Served, world: World, user: str) -> list[str]:
    """What the Hub shows this person at home."""
    headers = {"Authorization": f"token {served.hubs_token}"}
    url = f"{served.url}/api/internal/users/{user}/notices?admin={int(user == 'root-admin')}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        found = (await answer.json())["notices"]
    on_pages = "approval. See them" in (await read(served, world.token(user), "notices"))[1]
    assert on_pages == any(one["page"] == "approvals" for one in found)
    return [one["text"] for one in found]


async def test_the_team_s_admins_are_told_what_waits_for_them_until_it_is_decided(world: World, served: Served) -> None:
    question = await waits(served)
    assert await told(served, world, "vera") == ["1 request waits for your approval."]
    await waits(served, "vera")
    assert await told(served, world, "vera") == ["1 request waits for your approval."], "her own is not hers to decide"
    assert await told(served, world, "victor") == ["2 requests wait for your approval."]
    assert await told(served, world, "root-admin") == [], "others can"
    assert await told(served, world, "bob") == []
    assert "See them" not in (await read(served, world.token("vera")))[1], "the page itself says more"
    await decides(served.acting, asked(served.acting, question), by="victor")
    assert await told(served, world, "vera") == []


async def test_what_no_admin_of_the_team_can_decide_is_told_to_the_hub_s(world: World, served: Served) -> None:
    await waits(served)
    file = served.acting.files.teams
    file.write_text(file.read_text().replace("[vera, victor]", "[alice]"))
    await until(lambda: not served.book.cluster_state.teams.teams[0].admins[1:], "the file was read")
    assert await told(served, world, "root-admin") == ["1 request waits for your approval."]
    assert await told(served, world, "vera") == await told(served, world, "alice") == []
    assert "an administrator of the Hub can approve it" in (await read(served, world.token("alice")))[1]


async def test_what_waits_for_an_approval_has_a_request_and_no_place(world: World, served: Served) -> None:
    question = await waits(served)
    paths = ("", f"jobs/{question.job}")
    for path in paths:
        page = (await read(served, world.token("alice"), path))[1]
        assert ("See the request" in page, "See its place" in page) == (True, False), path
    await decides(served.acting, asked(served.acting, question))
    for path in paths:
        assert "See the request" not in (await read(served, world.token("alice"), path))[1]


async def test_a_job_s_detail_says_that_it_waits_for_an_approval(world: World, served: Served) -> None:
    question = await waits(served)
    status, job = await ask(served, world.token("alice"), f"jobs/{question.job}")
    assert (status, job["state"], job["position"]) == (200, "pending-approval", None)
    assert job["why"].startswith("Team Everybody gives one person at most 2 GPUs without approval")
    assert job["alternatives"] == [{"gpus": 2, "gpu_type": "gpu", "preemptible": False}]
    assert (job["approval"]["state"], job["approval"]["by"]) == ("waiting", None)
    await decides(served.acting, asked(served.acting, question), why="Go")
    approval = (await ask(served, world.token("alice"), f"jobs/{question.job}"))[1]["approval"]
    assert (approval["state"], approval["by"], approval["reason"]) == ("approved", "vera", "Go")
    (listed,) = (await ask(served, world.token("alice"), "jobs?state=live"))[1]["items"]
    assert listed["approval"]["state"] == "approved"
    await ask_desk(served.acting, wants("bob", gpus=1))
    assert (await ask(served, world.token("bob"), "jobs?state=live"))[1]["items"][0]["approval"] is None


async def test_the_command_line_shows_what_waits_and_says_which_one_is_meant(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLSPAWNER_URL", served.url.removesuffix("/services/jobs"))
    monkeypatch.setenv("DLSPAWNER_TOKEN", world.token("vera"))

    async def run(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(cli.main, words)
        told = capsys.readouterr()
        return code, told.out + told.err

    first, second = await waits(served), await waits(served, "bob")
    one = asked(served.acting, first)
    assert one is not None
    code, table = await run("approvals")
    assert (code, table.count("waiting"), one.id in table) == (0, 2, True), table
    assert (await run("approve", first.job, "--request", "f" * 16))[0] != 0
    assert asked(served.acting, first) == one, "another request was meant"
    assert (await run("approve", first.job, "--request", one.id, "--reason", "fine"))[0] == 0
    assert asked(served.acting, first) is None
    assert (await run("deny", second.job))[0] == 0
    assert (await run("approve", second.job))[0] == 1
    code, told = await run("approvals")  # what was approved is tried: that nobody starts it is said as well
    assert (code, told.splitlines()[0]) == (0, "Nothing waits for an approval; --all shows what was decided.")
    code, table = await run("approvals", "--all")
    assert (code, "approved" in table, "denied" in table) == (0, True, True), table
