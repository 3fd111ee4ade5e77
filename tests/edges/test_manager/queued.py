"""Jobs that wait, and the Hub that a test plays for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dlspawner.core.jobs import State
from dlspawner.manager.acting import Acting
from dlspawner.manager.cancelling import cancel
from dlspawner.manager.desk import Desk, Question
from dlspawner.manager.records import Record
from tests.edges.test_manager.office import Office, ask, settled, wants


def desk(acting: Acting) -> Desk:
    assert acting.desk is not None
    return acting.desk


def record(acting: Acting, question: Question) -> Record | None:
    return desk(acting).book.records.get(question.job)


def state(acting: Acting, question: Question) -> State:
    found = record(acting, question)
    return State.ENDED if found is None else found.job.state


def told(acting: Acting, *questions: Question) -> bool:
    """Whether all of them may have a pod now, and the Hub knows."""
    found = [record(acting, question) for question in questions]
    return all(one is not None and one.reserved and not one.due for one in found)


def is_due(acting: Acting, question: Question) -> bool:
    found = record(acting, question)
    return found is not None and found.due


async def reasons(acting: Acting, question: Question) -> list[str]:
    await settled(acting)
    return [reason for _, _, reason in await acting.ledger.events(question.job)]


async def cancelled(acting: Acting, user: str = "alice") -> bool:
    """Whether there was something to cancel."""
    return await desk(acting).book.turn(lambda turn: cancel(turn, user, "", user))


def plays(office: Office, acting: Acting, *questions: Question) -> None:
    """A Hub whose spawner asks for the waiting job as soon as it is told to start it."""
    by_user = {one.user: one for one in questions}
    office.hub.servers = {(one.user, one.server) for one in questions}

    async def starts(user: str, server: str) -> None:
        await ask(acting, by_user[user])

    office.hub.starts = starts


def says(office: Office, error: Exception, *questions: Question) -> None:
    """A Hub that answers every start like this."""
    office.hub.servers = {(one.user, one.server) for one in questions}

    async def starts(user: str, server: str) -> None:
        raise error

    office.hub.starts = starts


async def full(acting: Acting) -> Callable[[], Awaitable[None]]:
    """All eight GPUs are reserved; the answer gives them back."""
    holder = wants("holder", gpus=8)
    assert (await ask(acting, holder)).decision == "admit"

    async def give_back() -> None:
        await desk(acting).release(holder.job, "holder")

    return give_back
