"""Jobs that wait, and the Hub that a test plays for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest, AdmissionService
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state.lifecycle import cancel_request
from tests.component.manager.manager_harness import Office, ask, settled, wants


def desk(acting: LeaderElector) -> AdmissionService:
    assert acting.admission is not None
    return acting.admission


def record(acting: LeaderElector, question: AdmissionRequest) -> JobRecord | None:
    return desk(acting).store.records.get(question.job)


def state(acting: LeaderElector, question: AdmissionRequest) -> JobState:
    found = record(acting, question)
    return JobState.ENDED if found is None else found.job.state


def told(acting: LeaderElector, *questions: AdmissionRequest) -> bool:
    """Whether all of them may have a pod now, and the Hub knows."""
    found = [record(acting, question) for question in questions]
    return all(one is not None and one.reserved and not one.awaiting_start for one in found)


def is_due(acting: LeaderElector, question: AdmissionRequest) -> bool:
    found = record(acting, question)
    return found is not None and found.awaiting_start


async def reasons(acting: LeaderElector, question: AdmissionRequest) -> list[str]:
    await settled(acting)
    return [reason for _, _, reason in await acting.ledger.events(question.job)]


async def cancelled(acting: LeaderElector, user: str = "alice") -> bool:
    """Whether there was something to cancel."""
    return await desk(acting).store.transact(lambda turn: cancel_request(turn, user, "", user))


def plays(office: Office, acting: LeaderElector, *questions: AdmissionRequest) -> None:
    """A Hub whose spawner asks for the waiting job as soon as it is told to start it."""
    by_user = {one.user: one for one in questions}
    office.hub.servers = {(one.user, one.server) for one in questions}

    async def starts(user: str, server: str) -> None:
        await ask(acting, by_user[user])

    office.hub.starts = starts


def says(office: Office, error: Exception, *questions: AdmissionRequest) -> None:
    """A Hub that answers every start like this."""
    office.hub.servers = {(one.user, one.server) for one in questions}

    async def starts(user: str, server: str) -> None:
        raise error

    office.hub.starts = starts


async def full(acting: LeaderElector) -> Callable[[], Awaitable[None]]:
    """All eight GPUs are reserved; the answer gives them back."""
    holder = wants("holder", gpus=8)
    assert (await ask(acting, holder)).decision == "admit"

    async def give_back() -> None:
        await desk(acting).release_reservation(holder.job, "holder")

    return give_back
