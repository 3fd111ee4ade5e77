"""Starts by REST that the Hub does not answer in time, and repeated requests."""

from __future__ import annotations

from typing import Any

from dlspawner.clients.hub import HubUnavailable
from dlspawner.manager.admission.service import AdmissionRequest
from tests.component.manager.manager_harness import wants
from tests.component.manager.portals import Portal


async def submit(portal: Portal, gpus: int) -> tuple[int, dict[str, Any]]:
    body = {"server": "train", "options": {"template": "tiny", "gpus": gpus}}
    return await portal.ask("alice", "jobs", "POST", body)


def is_away(portal: Portal, asks: AdmissionRequest | None = None) -> None:
    """The Hub does not answer, after it has asked for this job."""

    async def starts(user: str, server: str) -> None:
        if asks is not None:
            await portal.served.leader.ask(asks)
        raise HubUnavailable("The Hub does not answer.")

    portal.hub.starts = starts


async def test_older_queued_job_does_not_answer_a_start_that_did_not_reach_the_hub(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await portal.waits(wants("alice", gpus=8, server="train"))
    is_away(portal)
    for _ in range(2):
        status, told = await submit(portal, 1)
        assert (status, "does not answer" in told["detail"]) == (503, True), told
    is_away(portal, wants("alice", gpus=1, server="train"))
    status, told = await submit(portal, 1)
    assert (status, told["gpus"], told["id"] != older.job) == (202, 1, True)


async def test_repeated_start_whose_answer_was_lost_is_answered_with_the_queued_job(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await portal.waits(wants("alice", gpus=8, server="train"))
    is_away(portal, older)
    status, told = await submit(portal, 8)
    assert (status, told["id"], told["state"]) == (202, older.job, "queued")


async def test_repeated_restart_starts_one_job(portal: Portal) -> None:
    await portal.runs(wants("bob", gpus=8))
    older = await portal.waits(wants("alice", gpus=1, server="train"))
    portal.hub.kept["alice", "train"] = {"template": "tiny", "gpus": 1}
    portal.knows("alice", "train")
    assert await portal.ask("alice", f"jobs/{older.job}/cancel", "POST") == (204, None)
    newer = wants("alice", gpus=1, server="train")
    is_away(portal, newer)
    for _ in range(2):
        status, told = await portal.ask("alice", f"jobs/{older.job}/requeue", "POST")
        assert (status, told["id"]) == (202, newer.job)
