"""Starts that come to nothing: counted whoever acts, not repeated at once; no more under way than the Hub takes."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from dlspawner.clients.hub import HubFailed
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import desk, full, is_due, plays, reasons, says, state, told


async def has_failed(acting: LeaderElector, question: AdmissionRequest, times: int) -> bool:
    """Whether that is written down: the next Manager knows no more of it than that."""
    return (await reasons(acting, question)).count("start-failing") == times


async def test_failures_of_the_hub_are_counted_whichever_manager_acts(office: Office, db_url: str) -> None:
    waits = wants()
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        says(office, HubFailed("The Hub failed (status 500)."), waits)
        await give_back()
        await until(partial(has_failed, acting, waits, 1), "the Hub has failed")
    async with office.manager() as second:
        await until(partial(has_failed, second, waits, 2), "it has failed again")
    async with office.manager() as third:
        await until(lambda: state(third, waits) is JobState.ENDED, "it has ended")

        assert (await reasons(third, waits))[-1] == "start-failed"
        assert len(office.hub.started) == 3


async def test_a_start_that_the_hub_took_and_gave_up_is_not_repeated_at_once(office: Office) -> None:
    waits = wants()
    office.hub.servers = {("alice", "")}

    async def takes(_user: str, _server: str) -> None:
        """It answers 202, and fails before its spawner has asked."""

    office.hub.starts = takes
    async with office.manager() as acting:
        give_back = await full(acting)
        await ask(acting, waits)
        await give_back()

        async def over() -> bool:
            return "start-timeout" in await reasons(acting, waits)

        await until(over, "its turn is over, long before the reservation")
        assert office.hub.started == [("alice", "")]
        assert state(acting, waits) is JobState.QUEUED
        plays(office, acting, waits)
        office.clock.moved += timedelta(minutes=5)
        await until(lambda: told(acting, waits), "it starts later")


async def test_no_more_starts_are_under_way_than_the_hub_takes_until_their_pods_are_there(office: Office) -> None:
    office.max_concurrent_starts = 2
    questions = [wants(f"u{number}") for number in range(6)]
    async with office.manager() as acting:
        give_back = await full(acting)
        for question in questions:
            await ask(acting, question)
        plays(office, acting, *questions)
        await give_back()

        def started() -> list[str]:
            return [
                one.user for one in questions if state(acting, one) is JobState.STARTING and not is_due(acting, one)
            ]

        for number in (2, 4):
            await until(lambda number=number: len(started()) == number, "as many are started as may be")  # type: ignore[misc]
            assert (await ask(acting, wants("new"))).reason == "turn"
            await desk(acting).store.transact(desk(acting)._queue.schedule)
            assert not any(is_due(acting, one) for one in questions), "no more, although there is room"
            for one in questions[number - 2 : number]:
                await office.make_pod(one)
        await until(lambda: len(started()) == 6, "all are started")
