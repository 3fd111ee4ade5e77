"""A Hub that was killed after it was told that a job may start, and before it made the pod."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dlspawner.core.job import JobState
from dlspawner.manager.admission import dispatcher
from tests.component.manager.manager_harness import Office, ask, settled, until, wants
from tests.component.manager.queue_helpers import full, plays, reasons, record, state, told

AFTER_ALL_REQUESTS = timedelta(
    seconds=dispatcher._ADMITTED_SECONDS + 3 + 3
)  # 3 is how long a request may be on its way


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "_LOST_LOOK_SECONDS", 0.1)


async def test_who_waited_is_in_its_place_again_long_before_the_reservation_ends(office: Office, db_url: str) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        before = record(acting, waits)
        plays(office, acting, waits)
        await give_back()
        await until(lambda: told(acting, waits), "it may have a pod")
        office.clock.moved += timedelta(seconds=dispatcher._ADMITTED_SECONDS)

        async def lost() -> bool:
            return "start-abandoned" in await reasons(acting, waits)

        await until(lost, "the Hub starts no such server")
        office.clock.moved += AFTER_ALL_REQUESTS

        async def again() -> bool:
            return (await reasons(acting, waits)).count("scheduled") == 2

        await until(again, "it waits again, and its turn comes")
        assert (await reasons(acting, waits))[:5] == [
            "queued",
            "scheduled",
            "admitted",
            "start-abandoned",
            "pod-never-created",
        ]
        after = record(acting, waits)
        assert before is not None
        assert after is not None
        assert after.job.submitted == before.job.submitted


async def test_who_never_waited_gives_the_gpus_back(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        office.hub.servers, office.hub.starts = {("alice", "")}, never
        office.clock.moved += timedelta(seconds=dispatcher._ADMITTED_SECONDS)

        async def lost() -> bool:
            return "start-abandoned" in await reasons(acting, question)

        await until(lost, "the Hub starts no such server")
        assert state(acting, question) is JobState.STARTING, "a request for its pod may be on its way"
        office.clock.moved += AFTER_ALL_REQUESTS
        await until(lambda: state(acting, question) is JobState.ENDED, "it has ended")
        assert (await ask(acting, wants("bob", gpus=8))).decision == "admit"


async def test_what_the_hub_starts_keeps_its_reservation(office: Office) -> None:
    question = wants()
    async with office.manager() as acting:
        await ask(acting, question)
        office.hub.servers = office.hub.pending = {("alice", "")}
        office.hub.starts = never
        deadline = (record(acting, question) or pytest.fail("it is reserved")).deadline
        office.clock.moved += timedelta(seconds=dispatcher._ADMITTED_SECONDS)
        lists = office.hub.lists
        await until(lambda: office.hub.lists > lists + 1, "the Hub was asked twice")
        await settled(acting)
        assert (record(acting, question) or pytest.fail("it is reserved")).deadline == deadline


async def test_a_hub_that_does_not_answer_proves_nothing(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    question = wants()
    async with office.manager() as acting:
        await ask(acting, question)
        office.clock.moved += timedelta(seconds=dispatcher._ADMITTED_SECONDS)
        await until(lambda: "check of admitted starts has to wait" in caplog.text, "the Hub was asked")
        assert await reasons(acting, question) == ["admitted"]


async def never(user: str, server: str) -> None:
    raise AssertionError("nobody is started here")
