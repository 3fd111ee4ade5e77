"""Who reads which notices, by real tokens of a real Hub; waiting for changes; the buttons."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dlspawner.core.text import time
from dlspawner.manager.model.notice import CannotKeep, Notice, NoticeKind
from dlspawner.manager.state.notify import post, post_to_admins
from tests.component.manager.manager_harness import until
from tests.component.manager.noticing import Served, job_of, offices, serving
from tests.component.manager.world import World


@pytest.fixture
async def served(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with offices(tmp_path, f"sqlite:///{tmp_path / 'm.sqlite'}") as office, serving(office, world) as found:
        yield found


async def ask(served: Served, token: str | None, path: str, method: str = "GET") -> tuple[int, Any]:
    headers = {"Authorization": f"token {token}"} if token else {}
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, f"{served.url}/api/{path}", headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.json(content_type=None) if answer.status != 204 else None


async def told(
    served: Served, user: str, server: str = "train", kind: NoticeKind = NoticeKind.IDLE, **more: Any
) -> Notice:
    job = job_of(user, server, number=2 + len(user + server) % 5)
    return await served.book.transact(lambda turn: post(turn, job, kind, f"about {user}/{server}", **more))


WHO: dict[str, Callable[[World], str | None]] = {
    "anonymous": lambda world: None,
    "unknown token": lambda world: "0123456789abcdef",
    "alice": lambda world: world.token("alice"),
    "alice, token that may not use the service": lambda world: world.token("alice", ("self",)),
    "alice's server": lambda world: world.server_token("alice", "train"),
    "alice's other server": lambda world: world.server_token("alice", "other"),
    "bob": lambda world: world.token("bob"),
    "bob's server of the same name": lambda world: world.server_token("bob", "train"),
    "admin": lambda world: world.token("root-admin"),
    "gateway": lambda world: world.tokens["gateway"],
    "other service": lambda world: world.tokens["other"],
}
#                                             what they read, may they answer alice/train's
MAY: dict[str, tuple[str, int]] = {
    "anonymous": ("401", 401),
    "unknown token": ("401", 401),
    "alice": ("about alice/train, about alice/second", 204),
    "alice, token that may not use the service": ("403", 403),
    "alice's server": ("about alice/train", 204),
    "alice's other server": ("", 404),
    "bob": ("about bob/train", 404),
    "bob's server of the same name": ("about bob/train", 404),
    "admin": ("a file is broken", 404),
    "gateway": ("about alice/train, about alice/second, about bob/train, a file is broken", 404),
    "other service": ("403", 403),
}


@pytest.mark.parametrize("who", WHO)
async def test_who_reads_and_answers_what(world: World, served: Served, who: str) -> None:
    token = await asyncio.to_thread(WHO[who], world)
    mine = await told(served, "alice")
    await told(served, "alice", "second")
    await told(served, "bob")
    await served.book.transact(lambda turn: post_to_admins(turn, NoticeKind.CONFIG_INVALID, "a file is broken"))
    status, answer = await ask(served, token, "notices")
    read = ", ".join(one["text"] for one in answer["notices"]) if status == 200 else str(status)
    answered, _ = await ask(served, token, f"notices/{mine.id}/seen", "POST")
    kept, _ = await ask(served, token, f"notices/{mine.id}/keep", "POST")
    assert (read, answered) == MAY[who]
    assert kept == (409 if answered == 204 else answered)


async def test_the_hub_reads_anybodys_and_nobody_elses_token_does(world: World, served: Served) -> None:
    await told(served, "alice")
    await served.book.transact(lambda turn: post_to_admins(turn, NoticeKind.CONFIG_INVALID, "a file is broken"))
    path = "internal/users/alice/notices"
    for query, texts in (("", ["about alice/train"]), ("?admin=1", ["about alice/train", "a file is broken"])):
        status, answer = await ask(served, served.hubs_token, path + query)
        assert (status, [one["text"] for one in answer["notices"]]) == (200, texts)
    for token in (world.tokens["gateway"], await asyncio.to_thread(world.token, "alice"), None):
        assert (await ask(served, token, path))[0] == 403


async def test_a_notice_says_what_its_reader_needs_and_nothing_of_the_cause(world: World, served: Served) -> None:
    posted = await told(served, "alice", until=served.manager.now(), cause="j-somebodyelse", keep=True)
    token = await asyncio.to_thread(world.token, "alice")
    ((one,),) = [answer["notices"] for _, answer in [await ask(served, token, "notices")]]
    assert posted.until is not None
    assert one == {
        "id": posted.id,
        "kind": "idle",
        "level": "warning",
        "sentence": "about alice/train (now)",
        "text": "about alice/train",
        "job": posted.job,
        "user": "alice",
        "server": "train",
        "posted": time(posted.posted),
        "until": time(posted.until),
        "ends": None,
        "keep": True,
        "seen": False,
        "page": None,
    }


async def test_a_notice_is_a_whole_sentence_and_leaves_the_time_open_for_other_time_zones(
    world: World, served: Served
) -> None:
    end, text = served.manager.now() + timedelta(hours=2), "It will be stopped {when}."
    await served.book.transact(lambda turn: post(turn, job_of(), NoticeKind.IDLE, text, until=end))
    token = await asyncio.to_thread(world.token, "alice")
    [one] = (await ask(served, token, "notices"))[1]["notices"]
    assert re.fullmatch(r"It will be stopped at \d\d:\d\d UTC, in 2 hours\.", one["sentence"])
    assert (one["text"], one["until"]) == (text, time(end))


async def test_a_reader_who_waits_is_answered_by_the_change_and_not_before(world: World, served: Served) -> None:
    token = await asyncio.to_thread(world.server_token, "alice", "train")
    _, empty = await ask(served, token, "notices?wait=60")
    waiting = asyncio.create_task(ask(served, token, f"notices?after={empty['version']}&wait=60"))
    board = served.book.notices
    await until(lambda: bool(board._readers), "it waits")
    await told(served, "alice", "second")  # wakes the reader of alice's, who sees that it is not about its own server
    await until(lambda: bool(board._readers), "it waits again")
    assert not waiting.done()
    await told(served, "alice")
    status, answer = await waiting
    assert (status, [one["text"] for one in answer["notices"]]) == (200, ["about alice/train"])
    assert board._readers == {}


async def test_a_reader_who_waits_in_vain_gets_the_list_that_it_has(world: World, served: Served) -> None:
    token = await asyncio.to_thread(world.token, "alice")
    _, first = await ask(served, token, "notices")
    assert await ask(served, token, f"notices?after={first['version']}&wait=0.01") == (200, first)


async def test_a_reader_who_goes_away_leaves_nothing_behind(world: World, served: Served) -> None:
    token, board = await asyncio.to_thread(world.token, "alice"), served.book.notices
    _, first = await ask(served, token, "notices")
    waiting = asyncio.create_task(ask(served, token, f"notices?after={first['version']}&wait=60"))
    await until(lambda: bool(board._readers), "it waits")
    waiting.cancel()
    await asyncio.wait({waiting})
    await until(lambda: not board._readers, "it is forgotten")
    await served.manager.running.wait()


@pytest.mark.parametrize("wait", ["301", "nan"])
async def test_a_wait_that_is_no_time_is_refused(world: World, served: Served, wait: str) -> None:
    token = await asyncio.to_thread(world.token, "alice")
    assert (await ask(served, token, f"notices?wait={wait}"))[0] == 422


async def test_what_was_seen_stays_open_and_says_so(world: World, served: Served) -> None:
    token, posted = await asyncio.to_thread(world.token, "alice"), await told(served, "alice")
    for _ in range(2):
        assert (await ask(served, token, f"notices/{posted.id}/seen", "POST"))[0] == 204
    _, answer = await ask(served, token, "notices")
    assert [one["seen"] for one in answer["notices"]] == [True]


async def test_keep_alive_does_what_the_judge_of_idleness_says_and_ends_the_notice(
    world: World, served: Served
) -> None:
    kept: list[str] = []

    async def keep_alive(job: str) -> str:
        kept.append(job)
        return "Kept."

    served.book.keep_alive = keep_alive
    token, posted = (
        await asyncio.to_thread(world.server_token, "alice", "train"),
        await told(served, "alice", keep=True),
    )
    assert await ask(served, token, f"notices/{posted.id}/keep", "POST") == (200, {"said": "Kept."})
    assert kept == [posted.job]
    assert (await ask(served, token, "notices"))[1]["notices"] == []
    assert (await ask(served, token, f"notices/{posted.id}/keep", "POST"))[0] == 404


async def test_keep_alive_beyond_its_cap_is_refused_with_the_sentence(world: World, served: Served) -> None:
    async def keep_alive(job: str) -> str:
        raise CannotKeep("Not longer than a day.")

    served.book.keep_alive = keep_alive
    token, posted = await asyncio.to_thread(world.token, "alice"), await told(served, "alice", keep=True)
    status, answer = await ask(served, token, f"notices/{posted.id}/keep", "POST")
    assert (status, answer["detail"]) == (409, "Not longer than a day.")


async def test_a_manager_that_does_not_act_says_so_to_those_who_wait(world: World, served: Served) -> None:
    token, board = await asyncio.to_thread(world.token, "alice"), served.book.notices
    _, first = await ask(served, token, "notices")
    waiting = asyncio.create_task(ask(served, token, f"notices?after={first['version']}&wait=60"))
    await until(lambda: bool(board._readers), "it waits")
    board.close()
    assert (await waiting)[0] == 503
