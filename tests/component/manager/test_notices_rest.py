"""Notices by REST and on pages, with real tokens of a real Hub."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from dlspawner.manager.culling.culler import Culler
from dlspawner.manager.model.notice import CannotKeep, Notice, NoticeKind
from dlspawner.manager.state.notify import post, post_to_admins
from tests.component.manager.manager_harness import until
from tests.component.manager.noticing import Served, job_of
from tests.component.manager.real_hub import RealHub


async def told(
    served: Served, user: str, server: str = "train", kind: NoticeKind = NoticeKind.IDLE, **more: Any
) -> Notice:
    job = job_of(user, server, number=2 + len(user + server) % 5)
    return await served.leader.transact(post, job, kind, f"about {user}/{server}", **more)


WHO: dict[str, Callable[[RealHub], str | None]] = {
    "alice": lambda real_hub: real_hub.token("alice"),
    "alice's server": lambda real_hub: real_hub.server_token("alice", "train"),
    "alice's other server": lambda real_hub: real_hub.server_token("alice", "other"),
    "bob": lambda real_hub: real_hub.token("bob"),
    "bob's server of the same name": lambda real_hub: real_hub.server_token("bob", "train"),
    "admin": lambda real_hub: real_hub.token("root-admin"),
    "gateway": lambda real_hub: real_hub.tokens["gateway"],
}
#                                             what they read, may they answer alice/train's
MAY: dict[str, tuple[str, int]] = {
    "alice": ("about alice/train, about alice/second", 204),
    "alice's server": ("about alice/train", 204),
    "alice's other server": ("", 404),
    "bob": ("about bob/train", 404),
    "bob's server of the same name": ("about bob/train", 404),
    "admin": ("a file is broken", 404),
    "gateway": ("about alice/train, about alice/second, about bob/train, a file is broken", 404),
}


@pytest.mark.parametrize("who", WHO)
async def test_notices_of_a_token(real_hub: RealHub, served: Served, who: str) -> None:
    token = await asyncio.to_thread(WHO[who], real_hub)
    mine = await told(served, "alice")
    await told(served, "alice", "second")
    await told(served, "bob")
    await served.leader.transact(post_to_admins, NoticeKind.CONFIG_INVALID, "a file is broken")
    status, answer = await served.ask(token, "notices")
    read = ", ".join(one["text"] for one in answer["notices"]) if status == 200 else str(status)
    answered, _ = await served.ask(token, f"notices/{mine.id}/seen", "POST")
    kept, _ = await served.ask(token, f"notices/{mine.id}/keep", "POST")
    assert (read, answered) == MAY[who]
    assert kept == (409 if answered == 204 else answered)


async def test_fields_of_a_notice(real_hub: RealHub, served: Served) -> None:
    posted = await told(served, "alice", until=served.manager.now(), cause="j-somebodyelse", keep=True)
    token = await asyncio.to_thread(real_hub.token, "alice")
    ((one,),) = [answer["notices"] for _, answer in [await served.ask(token, "notices")]]
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
        "posted": posted.posted.isoformat().replace("+00:00", "Z"),
        "until": posted.until.isoformat().replace("+00:00", "Z"),
        "ends": None,
        "keep": True,
        "seen": False,
        "page": None,
    }


async def test_waiting_reader_is_answered_by_a_change_of_its_notices(real_hub: RealHub, served: Served) -> None:
    token = await asyncio.to_thread(real_hub.server_token, "alice", "train")
    _, empty = await served.ask(token, "notices?wait=60")
    waiting = asyncio.create_task(served.ask(token, f"notices?after={empty['version']}&wait=60"))
    board = served.store.notices
    await until(lambda: bool(board._readers), "it waits")
    await told(served, "alice", "second")  # wakes the reader of alice's, who sees that it is not about its own server
    await until(lambda: bool(board._readers), "it waits again")
    assert not waiting.done()
    await told(served, "alice")
    status, answer = await waiting
    assert (status, [one["text"] for one in answer["notices"]]) == (200, ["about alice/train"])
    assert board._readers == {}


async def test_wait_ends_with_its_time_or_its_reader(real_hub: RealHub, served: Served) -> None:
    token, notices = await asyncio.to_thread(real_hub.token, "alice"), served.store.notices
    _, first = await served.ask(token, "notices")
    assert await served.ask(token, f"notices?after={first['version']}&wait=0.01") == (200, first)
    waiting = asyncio.create_task(served.ask(token, f"notices?after={first['version']}&wait=60"))
    await until(lambda: bool(notices._readers), "it waits")
    waiting.cancel()
    await asyncio.wait({waiting})
    await until(lambda: not notices._readers, "it is forgotten")
    await served.manager.running.wait()


async def test_keep_alive_withdraws_the_notice(
    real_hub: RealHub, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []

    async def keep_alive(_: Culler, job: str) -> str:
        kept.append(job)
        return "Kept."

    monkeypatch.setattr(Culler, "keep_alive", keep_alive)
    token, posted = (
        await asyncio.to_thread(real_hub.server_token, "alice", "train"),
        await told(served, "alice", keep=True),
    )
    for _ in range(2):
        assert (await served.ask(token, f"notices/{posted.id}/seen", "POST"))[0] == 204
    assert [one["seen"] for one in (await served.ask(token, "notices"))[1]["notices"]] == [True], "and it stays"
    assert await served.ask(token, f"notices/{posted.id}/keep", "POST") == (200, {"said": "Kept."})
    assert kept == [posted.job]
    assert (await served.ask(token, "notices"))[1]["notices"] == []
    assert (await served.ask(token, f"notices/{posted.id}/keep", "POST"))[0] == 404


async def test_waiting_reader_is_refused_when_the_leader_stops(real_hub: RealHub, served: Served) -> None:
    token, board = await asyncio.to_thread(real_hub.token, "alice"), served.store.notices
    _, first = await served.ask(token, "notices")
    waiting = asyncio.create_task(served.ask(token, f"notices?after={first['version']}&wait=60"))
    await until(lambda: bool(board._readers), "it waits")
    board.close()
    assert (await waiting)[0] == 503


async def read(served: Served, token: str, page: str, method: str = "GET") -> tuple[int, str]:
    """Status and the text that a reader sees."""
    found = await served.read(token, page, method)
    return found.status, found.text


@pytest.mark.parametrize("page", ["notices", "keys"])
async def test_every_page_shows_notices_of_its_viewer(real_hub: RealHub, served: Served, page: str) -> None:
    await told(served, "alice", until=served.manager.now() + timedelta(minutes=10, seconds=20), keep=True)
    await told(served, "bob")
    status, text = await read(served, real_hub.token("alice"), page)
    assert status == 200
    assert re.search(r"train : about alice/train \(at \d\d:\d\d UTC, in 10 minutes\) Keep it running", text)
    assert "bob" not in text


async def test_button_keeps_a_job_or_says_why_not(
    real_hub: RealHub, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep_alive(_: Culler, job: str) -> str:
        if job == not_kept.job:
            raise CannotKeep("That was long enough.")
        return "It is kept for 2 h."

    monkeypatch.setattr(Culler, "keep_alive", keep_alive)
    token = real_hub.token("alice")
    kept, not_kept = await told(served, "alice", keep=True), await told(served, "alice", "second", keep=True)
    status, text = await read(served, token, f"notices/{kept.id}/keep", "POST")
    assert (status, "It is kept for 2 h." in text, "about alice/train" in text) == (200, True, False)
    status, text = await read(served, token, f"notices/{not_kept.id}/keep", "POST")
    assert (status, "That was long enough." in text, "about alice/second" in text) == (409, True, True)
    status, text = await read(served, token, f"notices/{'0' * 16}/keep", "POST")
    assert (status, "There is no such notice of yours" in text) == (404, True)
