"""Starts by REST while the Hub is away, repeated requests, and long lists of events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert

from dlspawner.clients.hub import HubUnavailable
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.db.jobs import MOST_EVENTS
from dlspawner.manager.db.tables import job_events
from tests.component.manager.manager_harness import wants
from tests.component.manager.portals import Portal


async def submit(portal: Portal, gpus: int) -> tuple[int, dict[str, Any]]:
    body = {"server": "train", "options": {"template": "tiny", "gpus": gpus}}
    return await portal.ask("alice", "jobs", "POST", body)


def is_away(portal: Portal, asks: AdmissionRequest | None = None) -> None:
    """The Hub does not answer, after it has asked for this job."""

    async def starts(user: str, server: str) -> None:
        if asks is not None:
            await portal.served.acting.ask(asks)
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


async def events(portal: Portal, job: str) -> Any:
    return (await portal.ask("alice", f"jobs/{job}/events"))[1]


async def test_list_of_very_many_events_is_shortened(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8, server="held"))
    job = (await portal.waits(wants("alice", gpus=2, server="train"))).job
    store = portal.served.acting.ledger._store

    async def add(count: int) -> None:
        row = {"job": job, "at": datetime.now(UTC), "state": "queued", "reason": "test", "detail": ""}
        await store.write(lambda connection: connection.execute(insert(job_events), [row] * count))

    few = await events(portal, job)
    assert (len(few["items"]), few["shortened"]) == (1, False)
    await add(MOST_EVENTS - 1)
    all_of_them = await events(portal, job)
    assert (len(all_of_them["items"]), all_of_them["shortened"]) == (MOST_EVENTS, False)
    assert all_of_them["items"][0] == few["items"][0]
    await add(1)
    latest = await events(portal, job)
    assert (len(latest["items"]), latest["shortened"]) == (MOST_EVENTS, True)
    assert {one["reason"] for one in latest["items"]} == {"test"}
