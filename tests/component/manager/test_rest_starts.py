"""What a start by REST is answered with when the Hub is away, and requests that are sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dlspawner.clients.hub import HubUnavailable
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.model.job_history import NO_NAME
from tests.component.manager.manager_harness import ask, until, wants
from tests.component.manager.portals import Portal, portals
from tests.component.manager.world import World


@pytest.fixture
async def portal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        yield made


async def post(portal: Portal, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    token = await asyncio.to_thread(portal.world.token, "alice")
    url, headers = f"{portal.served.url}/api/{path}", {"Authorization": f"token {token}"}
    async with aiohttp.ClientSession() as session, session.post(url, headers=headers, json=body) as answer:
        return answer.status, await answer.json()


async def submit(portal: Portal, gpus: int) -> tuple[int, dict[str, Any]]:
    return await post(portal, "jobs", {"server": "train", "options": {"template": "tiny", "gpus": gpus}})


@pytest.mark.parametrize("server", ["../x", "Train", "-x", "x" * 31])
async def test_a_name_that_no_job_gets_is_refused_before_the_hub_is_asked(portal: Portal, server: str) -> None:
    asked: list[str] = []

    async def starts(user: str, server: str) -> None:
        asked.append(server)
        raise HubUnavailable("The Hub does not answer.")

    portal.hub.starts = starts
    wanted = {"server": server, "options": {"template": "tiny", "gpus": 1}}
    status, told = await post(portal, "jobs", wanted)
    assert (status, told["detail"], asked) == (422, NO_NAME, [])
    await portal.runs(wants("bob", gpus=8))
    await portal.waits(wants("alice", gpus=1, server=server))
    status, told = await post(portal, "jobs", wanted)
    assert (status, asked) == (503, [server]), "the Hub has a server of this name"


def is_away(portal: Portal, asks: AdmissionRequest | None = None) -> None:
    """The Hub does not answer, after it has asked for this job."""

    async def starts(user: str, server: str) -> None:
        if asks is not None:
            await ask(portal.served.acting, asks)
        raise HubUnavailable("The Hub does not answer.")

    portal.hub.starts = starts


async def test_a_job_that_waited_before_is_no_answer_to_a_start_that_never_reached_the_hub(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await portal.waits(wants("alice", gpus=8, server="train"))
    is_away(portal)
    for _ in range(2):
        status, told = await submit(portal, 1)
        assert (status, "does not answer" in told["detail"]) == (503, True), told
    is_away(portal, wants("alice", gpus=1, server="train"))
    status, told = await submit(portal, 1)
    assert (status, told["gpus"], told["id"] != older.job) == (202, 1, True)


async def test_who_asks_again_for_what_waits_is_answered_with_it_also_when_the_hubs_answer_is_lost(
    portal: Portal,
) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await portal.waits(wants("alice", gpus=8, server="train"))
    is_away(portal, older)
    status, told = await submit(portal, 8)
    assert (status, told["id"], told["state"]) == (202, older.job, "queued")


async def test_a_job_whose_turn_came_meanwhile_is_no_answer_either(portal: Portal) -> None:
    """The Hub asks for it because the Manager told it to."""
    first = await portal.runs(wants("bob", gpus=8))
    older = await portal.waits(wants("alice", gpus=8, server="train"))
    portal.knows("alice", "train")
    is_away(portal)
    assert (await submit(portal, 1))[0] == 503

    async def starts(user: str, server: str) -> None:
        await ask(portal.served.acting, older)

    portal.hub.starts = starts
    await portal.office.delete({"metadata": {"name": f"jupyter-{first.user}"}}, grace=0)
    record = portal.served.book.records
    await until(
        lambda: record[older.job].job.state is JobState.STARTING and not record[older.job].awaiting_start,
        "its turn came",
    )
    assert (await submit(portal, 1))[0] == 409


async def test_restart_that_is_sent_again_starts_one_job(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await portal.waits(wants("alice", gpus=1, server="train"))
    portal.hub.kept["alice", "train"] = {"template": "tiny", "gpus": 1}
    portal.knows("alice", "train")
    token = await asyncio.to_thread(portal.world.token, "alice")
    assert (await portal.read("alice", f"api/jobs/{older.job}/cancel", "POST", token=token)).status == 204
    newer = wants("alice", gpus=1, server="train")
    is_away(portal, newer)
    path = f"jobs/{older.job}/requeue"
    status, told = await post(portal, path)
    assert (status, told["id"]) == (202, newer.job)
    status, told = await post(portal, path)
    assert (status, told["id"]) == (202, newer.job)


async def test_an_answer_without_a_body_is_of_no_type(portal: Portal) -> None:
    running, waiting = await portal.runs(wants("bob", gpus=8)), await portal.waits(wants("alice", gpus=1))
    portal.knows("alice", "")
    for job, status in ((running, 202), (waiting, 204)):
        token = await asyncio.to_thread(portal.world.token, job.user)
        answer = await portal.read(job.user, f"api/jobs/{job.job}", "DELETE", token=token)
        assert (answer.status, answer.body, answer.headers.get("Content-Type")) == (status, "", None)
