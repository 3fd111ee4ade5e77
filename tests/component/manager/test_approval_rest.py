"""Approval requests in REST, on the page and at the command line, with tokens of a real Hub."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import pytest

from dlspawner import cli
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from tests.component.manager.api_client import TEAMS, asked, decides
from tests.component.manager.manager_harness import until, wants
from tests.component.manager.noticing import Served
from tests.component.manager.real_hub import RealHub


@pytest.fixture
def teams_yaml() -> str:
    return TEAMS % (2, 6)


async def waits(served: Served, user: str = "alice", gpus: int = 3, **more: Any) -> AdmissionRequest:
    job = wants(user, gpus=gpus, **more)
    assert (await served.leader.ask(job)).reason == "approval"
    return job


def ids(answer: tuple[int, dict[str, Any]]) -> list[str]:
    assert answer[0] == 200, answer
    return [one["job"] for one in answer[1]["items"]]


async def test_token_of_a_team_admin_that_only_reads_decides_nothing(real_hub: RealHub, served: Served) -> None:
    reader = real_hub.token("vera", ("access:services!service=jobs", "read:servers!user=vera"))
    job = await waits(served)
    assert ids(await served.ask(reader, "approvals")) == [job.job]
    for word in ("approve", "deny"):
        assert (await served.ask(reader, f"jobs/{job.job}/{word}", "POST"))[0] == 403
    assert served.leader.state(job) is JobState.PENDING_APPROVAL


async def test_own_request_is_decided_by_administrators_of_the_hub_only(real_hub: RealHub, served: Served) -> None:
    admins = await waits(served, "vera")
    status, problem = await served.ask(real_hub.token("vera"), f"jobs/{admins.job}/approve", "POST")
    assert (status, problem["detail"].startswith("Your own request is for another admin")) == (403, True)
    assert (await served.ask(real_hub.token("victor"), f"jobs/{admins.job}/approve", "POST"))[0] == 200
    hubs = await waits(served, "root-admin")
    assert (await served.ask(real_hub.token("root-admin"), f"jobs/{hubs.job}/approve", "POST"))[0] == 200


async def test_first_decision_counts_and_the_second_names_it(real_hub: RealHub, served: Served) -> None:
    job = await waits(served)
    path, body = f"jobs/{job.job}/", {"reason": "For the paper"}
    answers = await asyncio.gather(
        served.ask(real_hub.token("vera"), path + "approve", "POST", body),
        served.ask(real_hub.token("victor"), path + "deny", "POST", body),
    )
    assert sorted(status for status, _ in answers) == [200, 409]
    won = next(content for status, content in answers if status == 200)
    lost = next(content for status, content in answers if status == 409)
    assert (won["reason"], won["may_decide"]) == ("For the paper", False)
    assert lost["detail"] == f"It was {won['state']} already, by {won['by']}: For the paper."


async def test_decision_about_a_job_without_an_open_request_is_refused(real_hub: RealHub, served: Served) -> None:
    token, small = real_hub.token("vera"), wants(gpus=1)
    await served.leader.ask(small)
    assert (await served.ask(token, f"jobs/{small.job}/approve", "POST"))[1]["detail"] == (
        "This job waits for no approval."
    )
    job = await waits(served, "bob")
    assert await served.leader.cancel("bob")
    status, problem = await served.ask(token, f"jobs/{job.job}/deny", "POST")
    assert (status, problem["detail"]) == (409, "It was withdrawn, so there is nothing to decide.")


async def test_list_has_filters_and_pages(real_hub: RealHub, served: Served) -> None:
    token = real_hub.token("vera")
    first, second, third = [await waits(served, user) for user in ("alice", "bob", "vera")]
    await decides(served.leader, asked(served.leader, first))
    everything = [third.job, second.job, first.job]
    assert ids(await served.ask(token, "approvals")) == everything
    assert ids(await served.ask(token, "approvals?mine=decide")) == [second.job]
    assert ids(await served.ask(token, "approvals?mine=decide&user=bob&kind=soft-cap&state=waiting")) == [second.job]
    for nobody_s in ("user=carl", "kind=special", "state=approved", f"job={first.job}", "team=language"):
        assert ids(await served.ask(token, f"approvals?mine=decide&{nobody_s}")) == []
    for wrong in ("mine=decide&kind=nonsense", f"cursor={BEFORE_ALL_TIME}"):
        assert (await served.ask(token, f"approvals?{wrong}"))[0] == 422
    assert ids(await served.ask(token, "approvals?mine=asked")) == [third.job]
    assert ids(await served.ask(token, "approvals?mine=asked&user=bob")) == []
    assert ids(await served.ask(token, "approvals?state=waiting")) == everything[:2]
    assert ids(await served.ask(token, "approvals?state=approved&state=denied")) == [first.job]
    assert ids(await served.ask(token, "approvals?user=bob&team=default&kind=soft-cap")) == [second.job]
    assert ids(await served.ask(token, "approvals?kind=special")) == []
    assert ids(await served.ask(token, f"approvals?job={first.job}")) == [first.job]
    pages, cursor = [], ""
    while cursor is not None:
        status, page = await served.ask(token, f"approvals?limit=1&cursor={cursor}")
        assert status == 200
        pages += [one["job"] for one in page["items"]]
        cursor = page["next"]
    assert pages == everything


BEFORE_ALL_TIME = base64.urlsafe_b64encode(b"0001-01-01T00:00:00+14:00 ab").decode()


# The page


async def read(served: Served, token: str, page: str = "approvals", **form: str) -> tuple[int, str, str]:
    """Status, the text that a reader sees, and where it leads."""
    found = await served.read(token, page, "POST" if form else "GET", data=form or None)
    return found.status, found.text.replace(" ,", ",").replace(" .", "."), found.location


async def test_page_shows_the_request_and_what_user_and_team_hold(real_hub: RealHub, served: Served) -> None:
    await served.leader.ask(wants(gpus=1, server="small"))
    await waits(served)
    status, text, _ = await read(served, real_hub.token("vera"))
    assert status == 200
    assert "alice asks for 3 GPUs of type gpu on the default server, team Everybody." in text
    assert "Team Everybody gives one person at most 2 GPUs without approval; alice holds 1." in text
    assert "alice holds 1. The team uses 1 of its 8 GPUs of type gpu." in text
    assert "Approve 3 GPUs of type gpu for alice" in text
    _, text, _ = await read(served, real_hub.token("alice"))
    assert "vera or victor can approve it for team Everybody." in text
    assert "Approve 3 GPUs" not in text
    assert "Waiting for you" not in text
    _, text, _ = await read(served, real_hub.token("bob"))
    assert "alice" not in text
    assert "None of your requests needs an approval." in text


async def test_buttons_decide_and_the_page_says_what_was_done(real_hub: RealHub, served: Served) -> None:
    token, job = real_hub.token("vera"), await waits(served)
    request = asked(served.leader, job)
    assert request is not None
    status, _, place = await read(served, token, f"approvals/{request.id}/deny", reason="<b>Not now</b>")
    assert (status, place) == (303, f"/services/jobs/approvals?done={request.id}")
    _, text, _ = await read(served, token, f"approvals?done={request.id}")
    assert "You have denied 3 GPUs of type gpu to alice." in text
    assert "By vera: “<b>Not now</b>”" in text
    _, text, _ = await read(served, real_hub.token("alice"), f"approvals?done={request.id}")
    assert "You have denied" not in text
    status, text, _ = await read(served, real_hub.token("victor"), f"approvals/{request.id}/approve", reason="But yes")
    assert (status, "It was denied already, by vera: <b>Not now</b>." in text) == (409, True)
    for path in ("wait/alice/", f"jobs/{job.job}"):
        status, text, _ = await read(served, real_hub.token("alice"), path)
        assert (status, "Denied by vera: <b>Not now</b>" in text) == (200, True), path


async def test_page_is_bounded(real_hub: RealHub, served: Served) -> None:
    questions = [await waits(served, f"user{number}") for number in range(101)]
    _, text, _ = await read(served, real_hub.token("vera"))
    assert "Waiting for you (101)" in text
    assert "1 more is shown" in text
    for one in questions:
        await decides(served.leader, asked(served.leader, one))
    page = await read(served, real_hub.token("vera"))
    assert page[1].count("approved") == 50
    assert "Earlier ones" in page[1]


# Who is told that something waits for them


async def told(served: Served, real_hub: RealHub, user: str) -> list[str]:
    """What this person's pages say of open requests, with the link to them."""
    text = (await read(served, real_hub.token(user), "notices"))[1]
    return re.findall(r"(\d+ requests? waits? for your approval\.) See them", text)


async def test_team_admins_are_told_of_open_requests_of_others(real_hub: RealHub, served: Served) -> None:
    job = await waits(served)
    assert await told(served, real_hub, "vera") == ["1 request waits for your approval."]
    await waits(served, "vera")
    assert await told(served, real_hub, "vera") == ["1 request waits for your approval."], (
        "her own is not hers to decide"
    )
    assert await told(served, real_hub, "victor") == ["2 requests wait for your approval."]
    assert await told(served, real_hub, "root-admin") == [], "others can"
    assert await told(served, real_hub, "bob") == []
    assert "See them" not in (await read(served, real_hub.token("vera")))[1], "the page itself says more"
    await decides(served.leader, asked(served.leader, job), by="victor")
    assert await told(served, real_hub, "vera") == []


async def test_request_that_no_team_admin_can_decide_is_told_to_the_hubs_admins(
    real_hub: RealHub, served: Served
) -> None:
    await waits(served)
    file = served.leader.files.teams
    file.write_text(file.read_text().replace("[vera, victor]", "[alice]"))
    await until(lambda: not served.store.cluster_state.teams.teams[0].admins[1:], "the file was read")
    assert await told(served, real_hub, "root-admin") == ["1 request waits for your approval."]
    assert await told(served, real_hub, "vera") == await told(served, real_hub, "alice") == []
    assert "an administrator of the Hub can approve it" in (await read(served, real_hub.token("alice")))[1]


async def test_job_shows_its_request_and_no_place(real_hub: RealHub, served: Served) -> None:
    job = await waits(served)
    for path in ("", f"jobs/{job.job}"):
        page = (await read(served, real_hub.token("alice"), path))[1]
        assert ("See the request" in page, "See its place" in page) == (True, False), path
    status, shown = await served.ask(real_hub.token("alice"), f"jobs/{job.job}")
    assert (status, shown["state"], shown["position"]) == (200, "pending-approval", None)
    assert shown["why"].startswith("Team Everybody gives one person at most 2 GPUs without approval")
    assert shown["alternatives"] == [{"gpus": 2, "gpu_type": "gpu", "preemptible": False}]
    assert (shown["approval"]["state"], shown["approval"]["by"]) == ("waiting", None)
    await decides(served.leader, asked(served.leader, job), why="Go")
    approval = (await served.ask(real_hub.token("alice"), f"jobs/{job.job}"))[1]["approval"]
    assert (approval["state"], approval["by"], approval["reason"]) == ("approved", "vera", "Go")
    (listed,) = (await served.ask(real_hub.token("alice"), "jobs?state=live"))[1]["items"]
    assert listed["approval"]["state"] == "approved"
    await served.leader.ask(wants("bob", gpus=1))
    assert (await served.ask(real_hub.token("bob"), "jobs?state=live"))[1]["items"][0]["approval"] is None


async def test_command_line_lists_and_decides_requests(
    real_hub: RealHub, served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLSPAWNER_URL", served.url.removesuffix("/services/jobs"))
    monkeypatch.setenv("DLSPAWNER_TOKEN", real_hub.token("vera"))

    async def run(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(cli.main, words)
        told = capsys.readouterr()
        return code, told.out + told.err

    first, second = await waits(served), await waits(served, "bob")
    one = asked(served.leader, first)
    assert one is not None
    code, table = await run("approvals")
    assert (code, table.count("waiting"), one.id in table) == (0, 2, True), table
    assert (await run("approve", first.job, "--request", "f" * 16))[0] != 0
    assert asked(served.leader, first) == one, "another request was meant"
    assert (await run("approve", first.job, "--request", one.id, "--reason", "fine"))[0] == 0
    assert asked(served.leader, first) is None
    assert (await run("deny", second.job))[0] == 0
    assert (await run("approve", second.job))[0] == 1
    code, told = await run("approvals")  # what was approved is tried: that nobody starts it is said as well
    assert (code, told.splitlines()[0]) == (0, "No request needs an approval; --all shows decided ones.")
    code, table = await run("approvals", "--all")
    assert (code, "approved" in table, "denied" in table) == (0, True, True), table
