"""What people are told, on the Manager's pages."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from dlspawner.manager.model.notice import CannotKeep, NoticeKind
from tests.component.manager.manager_harness import until
from tests.component.manager.noticing import Served, offices, serving
from tests.component.manager.test_notices_rest import told
from tests.component.manager.world import World


@pytest.fixture
async def served(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with offices(tmp_path, f"sqlite:///{tmp_path / 'm.sqlite'}") as office, serving(office, world) as found:
        yield found


async def read(served: Served, token: str, page: str, method: str = "GET") -> tuple[int, str]:
    """Status and the text that a reader sees."""
    headers = {"Authorization": f"token {token}"}
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, f"{served.url}/{page}", headers=headers, allow_redirects=False) as answer,
    ):
        main = re.search(r"<main.*</main>", await answer.text(), re.DOTALL)
        return answer.status, " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main[0])).split()) if main else ""


@pytest.mark.parametrize("page", ["notices", "keys"])
async def test_every_page_says_what_its_reader_is_told_and_when(world: World, served: Served, page: str) -> None:
    await told(served, "alice", until=served.manager.now() + timedelta(minutes=10, seconds=20), keep=True)
    await told(served, "bob")
    status, text = await read(served, world.token("alice"), page)
    assert status == 200
    assert re.search(r"train : about alice/train \(at \d\d:\d\d UTC, in 10 minutes\) Keep it running", text)
    assert "bob" not in text


async def test_a_job_has_no_pages(world: World, served: Served) -> None:
    assert (await read(served, world.server_token("alice", "train"), "notices"))[0] in {403, 404}


async def test_the_button_keeps_a_job_or_says_why_not(world: World, served: Served) -> None:
    async def keep_alive(job: str) -> str:
        if job == not_kept.job:
            raise CannotKeep("That was long enough.")
        return "It is kept for 2 h."

    served.book.keep_alive = keep_alive
    token = world.token("alice")
    kept, not_kept = await told(served, "alice", keep=True), await told(served, "alice", "second", keep=True)
    status, text = await read(served, token, f"notices/{kept.id}/keep", "POST")
    assert (status, "It is kept for 2 h." in text, "about alice/train" in text) == (200, True, False)
    status, text = await read(served, token, f"notices/{not_kept.id}/keep", "POST")
    assert (status, "That was long enough." in text, "about alice/second" in text) == (409, True, True)
    status, text = await read(served, token, f"notices/{'0' * 16}/keep", "POST")
    assert (status, "There is no such notice of yours" in text) == (404, True)


async def test_a_file_that_breaks_is_told_to_administrators_until_it_is_whole(world: World, served: Served) -> None:
    file = served.acting.files.teams
    good = file.read_text()
    file.write_text("teams: [")
    board = served.book.notices
    await until(lambda: board.pending(("", NoticeKind.CONFIG_INVALID)) is not None, "administrators are told")
    await served.book.transact(lambda _: None)  # and it is on the disk, so that readers are told, too
    _, text = await read(served, world.token("root-admin"), "keys")
    assert "teams.yaml has a mistake: the last good version of all files stays in use." in text
    assert "cluster.yaml" not in text
    assert "last good version" not in (await read(served, world.token("alice"), "keys"))[1]
    file.write_text(good + "\n")
    await until(lambda: board.pending(("", NoticeKind.CONFIG_INVALID)) is None, "it is taken back")
