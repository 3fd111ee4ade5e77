"""Logs by REST and on the page of a job; jobs run on the embedded cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.http.api import logs
from dlspawner.manager.logs import reader
from dlspawner.manager.logs.reader import ReadLimiter, TooManyReads
from tests.component.manager.manager_harness import until
from tests.component.manager.noticing import serving
from tests.component.manager.portals import TEAMS, Portal, Read
from tests.component.manager.printing import WAITS, PrintingHarness, job, printed, printing, shown, until_ended
from tests.component.manager.real_hub import RealHub

HOSTILE = r"printf '\033[2J\033]0;x\007</script><script>alert(1)</script>\377\n'"


@dataclass
class Reading(Portal):
    """A portal whose jobs print."""

    harness: PrintingHarness

    async def prints(self, script: str, user: str = "alice") -> AdmissionRequest:
        """A job that has printed, and said done, and goes on."""
        request = job(user)
        await self.harness.start(self.served.leader, request, f"{script}; echo done; {WAITS}")
        await shown(self.served.leader, request, "done")
        return request

    async def ended(self, request: AdmissionRequest) -> None:
        await self.harness.delete({"metadata": {"name": f"jupyter-{request.user}"}})
        await until_ended(self.served.leader, request)
        await printed(self.served.leader.repository, request, "goodbye")

    async def log(self, user: str, request: AdmissionRequest, query: str = "") -> Read:
        return await self.read(user, f"api/jobs/{request.job}/log{query}")

    async def page(self, user: str, request: AdmissionRequest, query: str = "") -> Read:
        return await self.read(user, f"jobs/{request.job}/log{query}")


@pytest.fixture
async def reading(real_hub: RealHub, tmp_path: Path) -> AsyncIterator[Reading]:
    async with printing(tmp_path, f"sqlite:///{tmp_path / 'm.sqlite'}") as harness:
        (tmp_path / "teams.yaml").write_text(TEAMS)
        harness.hub.servers = {("alice", "")}
        async with serving(harness, real_hub) as served:
            yield Reading(harness, served, real_hub)


async def test_log_comes_from_the_cluster_and_after_the_end_from_the_database(reading: Reading) -> None:
    request = await reading.prints("echo hello")
    assert (await reading.log("alice", request)).body == "hello\ndone\n"
    await reading.ended(request)
    assert (await reading.log("alice", request)).body == "hello\ndone\ngoodbye\n"
    page = await reading.page("alice", request)
    assert "hello done goodbye" in page.text

    async def told(path: str) -> bool:
        return "Scheduled on node" in (await reading.read("vera", path)).body

    await until(lambda: told(f"jobs/{request.job}"), "its page says where it ran")
    await until(lambda: told(f"api/jobs/{request.job}/pod-events"), "programs are told so, too")
    seen = await reading.read("root-admin", f"jobs/{request.job}")
    assert (seen.status, "Scheduled on node" in seen.body) == (200, False), "only that there is the job"
    assert "running" not in page.text
    assert f'href="/services/jobs/jobs/{request.job}/log"' in (await reading.read("alice", f"jobs/{request.job}")).body


async def test_log_is_followed_until_its_end(reading: Reading) -> None:
    request = await reading.prints("echo hello")
    token = await asyncio.to_thread(reading.real_hub.token, "alice")
    url = f"{reading.served.url}/api/jobs/{request.job}/log?follow=true"
    log_reader = reading.served.leader.log_reader
    assert log_reader is not None
    async with aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as session:
        answers = [await session.get(url) for _ in range(4)]
        assert await answers[0].content.readline() == b"hello\n"
        assert await answers[0].content.readline() == b"done\n"
        refused = await session.get(url)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "60")
        answers[1].close()
        await until(lambda: len(log_reader.followers) == 3, "it is free again")
        await reading.harness.delete({"metadata": {"name": "jupyter-alice"}})
        assert await answers[0].content.read() == b"goodbye\n"
    await until(lambda: not log_reader.followers, "nobody follows")


async def test_followed_log_goes_on_for_the_same_reader_only(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FOLLOW_SECONDS", 0.5)
    request, place = job("alice"), "a" * 32
    await reading.harness.start(reading.served.leader, request, f"echo first; sleep 3; echo second; {WAITS}")
    await shown(reading.served.leader, request, "first")
    lines = (await reading.log("alice", request, f"?follow=true&place={place}")).body

    async def all_lines() -> bool:
        nonlocal lines
        lines += (await reading.log("alice", request, f"?follow=true&after={place}&place={place}")).body
        return lines.endswith("second\n")

    await until(all_lines, "what was printed between two requests")
    assert lines == "first\nsecond\n"
    assert (await reading.log("vera", request, f"?follow=true&after={place}")).status == 410
    assert (await reading.log("bob", request, f"?follow=true&after={place}")).status == 404
    await reading.ended(request)
    gone = await reading.log("alice", request, f"?follow=true&after={place}")
    assert (gone.status, "begins with its last lines" in gone.body) == (410, True)


async def test_reads_of_one_user_beyond_their_share_are_refused_and_delay_no_other_user() -> None:
    limiter, ends = ReadLimiter(), asyncio.Event()

    async def read(who: str) -> None:
        async with limiter.wait_for_slot(who):
            await ends.wait()

    hers = [asyncio.create_task(read("alice")) for _ in range(reader.AT_ONCE + reader.WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyReads, match="You are reading 4 logs"):
        await read("alice")
    async with limiter.wait_for_slot("bob"):
        assert not any(one.done() for one in hers)
    ends.set()
    await asyncio.gather(*hers, read("alice"))


async def test_read_that_is_refused_says_when_to_ask_again(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    request = await reading.prints("echo hello")
    monkeypatch.setattr(reader, "WAITING", -reader.AT_ONCE)
    answer = await reading.log("alice", request)
    assert (answer.status, answer.headers["Retry-After"]) == (429, "2")
    assert (await reading.page("alice", request)).status == 429


async def test_lines_are_counted_searched_and_shown_as_text(reading: Reading) -> None:
    body = "echo MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDKx0+yZ1nSbV7g"
    key = f"echo -----BEGIN PRIVATE KEY-----; for n in $(seq 30); do {body}; done; echo -----END PRIVATE KEY-----"
    request = await reading.prints(f"{key}; {HOSTILE}; seq 1 3000; echo One MORE thing")
    assert (await reading.log("alice", request, "?tail=2")).body == "One MORE thing\ndone\n"
    assert len((await reading.log("alice", request)).body.splitlines()) == 1000
    whole = (await reading.page("alice", request, "?download=1&tail=0")).body
    assert whole.startswith("[secret]\n</script><script>alert(1)</script>\ufffd\n1\n")
    assert whole == (await reading.log("alice", request, "?tail=0")).body
    assert (await reading.log("alice", request, "?search=one%20more")).body == "One MORE thing\n"
    assert (await reading.log("alice", request, "?search=299&tail=3")).body == "2997\n2998\n2999\n"
    page = await reading.page("alice", request, "?search=alert")
    assert "&lt;script&gt;alert(1)" in page.body
    assert "<script>alert" not in page.body
    assert "No line has these words." in (await reading.page("alice", request, "?search=nowhere")).text


async def test_unknown_container_or_run_is_not_found(reading: Reading) -> None:
    request = await reading.prints("echo hello")
    for query in ("?container=nobody", "?run=7", "?previous=true"):
        assert (await reading.log("alice", request, query)).status == 404, query


async def test_events_are_searched_by_rest_and_on_the_page(reading: Reading) -> None:
    request = await reading.prints("echo hello")
    api, page = f"api/jobs/{request.job}", f"jobs/{request.job}"

    async def found(path: str) -> list[str]:
        answer = await reading.read("alice", f"{api}/{path}")
        assert answer.status == 200, answer.body
        return [one.get("sentence") or one["reason"] for one in json.loads(answer.body)["items"]]

    async def placed() -> bool:
        return any("Scheduled on node" in one for one in await found("pod-events"))

    await until(placed, "its node is known")
    assert len(await found("pod-events?search=SCHEDULED%20on")) == 1
    assert await found("events?search=Admit") == ["admitted"]
    for kind in ("events", "pod-events"):
        assert await found(f"{kind}?search=nowhere") == []
        assert (await reading.read("alice", f"{api}/{kind}?serach=x")).status == 422
    some = await reading.read("alice", f"{page}?search=ADMIT")
    assert ("Admitted" in some.text, "Running" in some.text, "Show all" in some.text) == (True, False, True)
    assert "No matching entries." in (await reading.read("alice", f"{page}?search=nowhere")).text
    assert (await reading.read("alice", f"{page}?search={'x' * 201}")).status == 422
    assert "Scheduled on" not in (await reading.read("root-admin", f"{page}?search=scheduled")).text, (
        "not theirs to read"
    )


async def test_queued_job_has_no_log(reading: Reading) -> None:
    request = job("alice")
    await reading.served.leader.ask(request)
    assert "There is no log: the job has not started yet" in (await reading.page("alice", request)).text
    assert (await reading.log("alice", request)).status == 404
