"""A Manager that was stopped for a while: what it asks the Hub for would be about the server's next job by now."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import create_engine, text

from dlspawner.clients.hub import HubUnavailable
from dlspawner.manager.cluster import termination
from dlspawner.manager.cluster.termination import JobEnder
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import lifecycle
from tests.component.manager.leaving import StoppingHub
from tests.component.manager.manager_harness import Office, ask, settled, until, wants
from tests.component.manager.queue_helpers import record, service


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "_AGAIN_SECONDS", 0.1)


async def run(office: Office, acting: LeaderElector) -> str:
    """A job that runs."""
    question = wants()
    await ask(acting, question)
    await office.bind(await office.make_pod(question))
    await until(lambda: (found := record(acting, question)) and found.pods and found.pods[0].running, "it runs")
    return question.job


def take_over(office: Office) -> None:
    """Another Manager acts from now on; the one of before has slept and has not noticed yet."""
    engine = create_engine(office.db_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE leases SET identity = 'another', term = term + 1"))
    engine.dispose()


async def test_who_has_lost_the_lease_asks_the_hub_for_no_stop_that_was_decided_before(
    office: Office, db_url: str
) -> None:
    office.hub = hub = StoppingHub(cluster=office.cluster, troubles=[HubUnavailable("It is away.")] * 10_000)
    async with office.manager() as acting:
        job = await run(office, acting)
        await service(acting).store.transact(lambda turn: lifecycle.stop(turn, job, EventReason.IDLE, "It was idle."))
        await until(lambda: hub.asked, "the Hub is asked")
        take_over(office)
        asked = len(hub.asked)
        await until(lambda: acting.admission is None, "it notices")

        assert len(hub.asked) <= asked + 1, "but for the one that was on its way"


async def test_an_owners_stop_that_meets_the_end_of_the_lease_is_left_to_who_acts_by_then(office: Office) -> None:
    office.hub = hub = StoppingHub(cluster=office.cluster)
    async with office.manager() as acting:
        job = await run(office, acting)
        book, decided = service(acting).store, []
        turn = book.transact

        async def then_taken_over(work):  # type: ignore[no-untyped-def]
            decided.append(await turn(work))
            take_over(office)
            return decided[-1]

        book.transact = then_taken_over  # type: ignore[method-assign]

        assert await JobEnder(book, hub).end(book.records[job], "alice")  # type: ignore[arg-type]
        assert decided[0] is True
        assert hub.asked == []


async def test_a_stop_that_is_not_written_down_is_asked_of_nobody(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.hub = hub = StoppingHub(cluster=office.cluster)
    reached, fails, answers, ask_hub = asyncio.Event(), asyncio.Event(), [], termination.Terminator._ask_hub

    async def asks(stopper: termination.Terminator, wanted: JobRecord) -> bool:
        reached.set()
        answers.append(await ask_hub(stopper, wanted))
        return answers[-1]

    async def breaks(*_: object) -> None:
        await fails.wait()
        monkeypatch.undo()
        raise DatabaseUnavailable("It is away.")

    async with office.manager() as acting:
        job = await run(office, acting)
        await settled(acting)
        monkeypatch.setattr(termination.Terminator, "_ask_hub", asks)
        monkeypatch.setattr(acting.ledger, "write", breaks)
        stop = asyncio.create_task(
            service(acting).store.transact(lambda turn: lifecycle.stop(turn, job, EventReason.IDLE, "It was idle."))
        )
        await asyncio.wait_for(reached.wait(), 60)
        fails.set()
        with pytest.raises(DatabaseUnavailable):
            await stop
        await until(lambda: answers, "whether to ask was decided")

        assert (answers, hub.asked) == ([False], [])
        assert service(acting).store.records[job].stop is None
