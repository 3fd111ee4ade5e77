"""A real Hub is killed after it was told that a job may start, and before it has asked for the pod."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.manager.quota import GPUS, QuotaHub, running
from tests.e2e.people import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]
# While a file is there the Hub's requests for pods take for ever; a reservation lasts longer than the test.
SLOW = """
import asyncio
from pathlib import Path
from dlspawner.spawner.kube.pods import PodRequests

made = PodRequests.create
async def create(self, *args, **more):
    if Path({slow!r}).exists():
        await asyncio.sleep(3600)
    return await made(self, *args, **more)
PodRequests.create = create
"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return tmp_path / "slow"


@pytest.fixture
def hub(tmp_path: Path, slow: Path) -> Iterator[QuotaHub]:
    settings = ("--Manager.lease_seconds=3", "--Manager.reservation_seconds=900")
    url = f"sqlite:///{tmp_path / 'manager.sqlite'}"
    made = QuotaHub(tmp_path / "hub", db_url=url, settings=settings, extra=SLOW.format(slow=str(slow)))
    made.state.mkdir()
    with running(made):
        yield made


def reasons(hub: QuotaHub, user: str) -> list[str]:
    with sqlite3.connect(hub.db_url.removeprefix("sqlite:///")) as database:
        query = (
            "SELECT job_events.reason FROM job_events JOIN jobs USING (job) WHERE user_name = ? ORDER BY job_events.id"
        )
        return [reason for (reason,) in database.execute(query, [user])]


@pytest.mark.parametrize("waited", [True, False])
def test_its_gpus_are_not_kept_for_nobody_and_who_had_waited_starts(hub: QuotaHub, slow: Path, waited: bool) -> None:
    hub.add_users(["holder", "alice", "bob"])
    if waited:
        hub.start_server("holder", gpus=GPUS)
        wait_for(lambda: hub.ready() == ["holder/"], "all GPUs are held", 60)
        assert hub.start_server("alice", gpus=GPUS).status_code in {202, 429}
        wait_for(lambda: reasons(hub, "alice") == ["queued"], "she waits", 60)
    slow.touch()
    if waited:
        hub.api("DELETE", "/users/holder/server")
    else:
        assert hub.start_server("alice", gpus=GPUS).status_code == 202
    wait_for(lambda: reasons(hub, "alice")[-1:] == ["admitted"], "she may start", 60)
    hub.kill("hub")
    slow.unlink()
    hub.start_hub()

    if waited:
        wait_for(lambda: hub.ready() == ["alice/"], "she starts by herself", 120)
        told = reasons(hub, "alice")
        assert told[: told.index("pod-never-created") + 2] == [
            "queued",
            "scheduled",
            "admitted",
            "start-abandoned",
            "pod-never-created",
            "scheduled",
        ]
        return
    wait_for(
        lambda: reasons(hub, "alice") == ["admitted", "start-abandoned", "pod-never-created"], "her start is over", 120
    )
    assert "The Hub was restarted before the job was there" in hub.log
    assert hub.start_server("bob", gpus=GPUS).status_code in {201, 202}
    wait_for(lambda: hub.ready() == ["bob/"], "the GPUs are free", 60)
