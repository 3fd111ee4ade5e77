"""The transitions of a job with very many: the latest are told, and that they are not all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from dlspawner.manager.db.jobs import MOST_EVENTS
from dlspawner.manager.db.tables import job_events
from tests.component.manager.manager_harness import wants
from tests.component.manager.portals import Portal, portals
from tests.component.manager.world import World


@pytest.fixture
async def portal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Portal]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
    async with portals(world, tmp_path) as made:
        yield made


async def told(portal: Portal, job: str) -> Any:
    answer = await portal.read("alice", f"api/jobs/{job}/events")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


async def test_a_life_of_very_many_transitions_is_said_to_be_shortened(portal: Portal) -> None:
    await portal.runs(wants("holder", gpus=8, server="held"))
    job = (await portal.waits(wants("alice", gpus=2, server="train"))).job
    store = portal.served.acting.ledger._store

    async def add(count: int) -> None:
        row = {"job": job, "at": datetime.now(UTC), "state": "queued", "reason": "test", "detail": ""}
        await store.write(lambda connection: connection.execute(insert(job_events), [row] * count))

    few = await told(portal, job)
    assert (len(few["items"]), few["shortened"]) == (1, False)
    await add(MOST_EVENTS - 1)
    all_of_them = await told(portal, job)
    assert (len(all_of_them["items"]), all_of_them["shortened"]) == (MOST_EVENTS, False)
    assert all_of_them["items"][0] == few["items"][0]
    await add(1)
    latest = await told(portal, job)
    assert (len(latest["items"]), latest["shortened"]) == (MOST_EVENTS, True)
    assert {one["reason"] for one in latest["items"]} == {"test"}
