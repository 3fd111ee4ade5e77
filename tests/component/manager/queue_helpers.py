"""Jobs of a Manager, by their admission requests, and the answers of the Hub to starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest, AdmissionService
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.notice import Notice, Recipient
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import lifecycle
from tests.component.manager.manager_harness import Office, ask, settled, until, wants

AFTER_RESERVATION = timedelta(seconds=70)


def service(leader: LeaderElector) -> AdmissionService:
    assert leader.admission is not None
    return leader.admission


def record(leader: LeaderElector, request: AdmissionRequest) -> JobRecord:
    return service(leader).store.records[request.job]


def state(leader: LeaderElector, request: AdmissionRequest) -> JobState:
    found = service(leader).store.records.get(request.job)
    return JobState.ENDED if found is None else found.job.state


def states(leader: LeaderElector) -> dict[str, JobState]:
    """The state of every job that has not ended."""
    return {job: found.job.state for job, found in service(leader).store.records.items()}


def started(leader: LeaderElector, *requests: AdmissionRequest) -> bool:
    """True if the Hub may make the pods of all these jobs, and knows it."""
    found = [service(leader).store.records.get(request.job) for request in requests]
    return all(one is not None and one.reserved and not one.awaiting_start for one in found)


def is_due(leader: LeaderElector, request: AdmissionRequest) -> bool:
    found = service(leader).store.records.get(request.job)
    return found is not None and found.awaiting_start


async def until_state(leader: LeaderElector, request: AdmissionRequest, wanted: JobState) -> None:
    await until(lambda: state(leader, request) is wanted, f"it is {wanted}")


async def reasons(leader: LeaderElector, request: AdmissionRequest) -> list[str]:
    """The reasons of all events of a job."""
    await settled(leader)
    return [reason for _, _, reason in await leader.ledger.events(request.job)]


async def until_reason(leader: LeaderElector, request: AdmissionRequest, reason: str, count: int = 1) -> None:
    async def written() -> bool:
        return (await reasons(leader, request)).count(reason) >= count

    await until(written, f"{count} × {reason}")


def notices(leader: LeaderElector, user: str = "alice") -> list[Notice]:
    store = service(leader).store
    return [*store.notices.read(Recipient(user), store.now())]


async def run_job(office: Office, leader: LeaderElector, request: AdmissionRequest) -> None:
    """Admits the job and lets its pod run."""
    assert (await ask(leader, request)).decision == "admit"
    await office.bind(await office.make_pod(request))
    await until_state(leader, request, JobState.RUNNING)


async def cancel(leader: LeaderElector, user: str = "alice") -> bool:
    """Cancels the request for the user's default server; True if there was one."""
    return await service(leader).store.transact(
        lambda transaction: lifecycle.cancel_request(transaction, user, "", user)
    )


async def stop(leader: LeaderElector, job: str, reason: EventReason, sentence: str = "Others need it.") -> bool:
    return await service(leader).store.transact(lambda transaction: lifecycle.stop(transaction, job, reason, sentence))


def hub_starts(office: Office, leader: LeaderElector, *requests: AdmissionRequest) -> None:
    """The Hub sends the admission request as soon as it is asked for a start."""
    by_user = {one.user: one for one in requests}
    office.hub.servers = {(one.user, one.server) for one in requests}

    async def starts(user: str, server: str) -> None:
        await ask(leader, by_user[user])

    office.hub.starts = starts


def hub_refuses(office: Office, error: Exception, *requests: AdmissionRequest) -> None:
    """The Hub answers every start with this error."""
    office.hub.servers = {(one.user, one.server) for one in requests}

    async def starts(user: str, server: str) -> None:
        raise error

    office.hub.starts = starts


async def hold_all_gpus(leader: LeaderElector) -> Callable[[], Awaitable[None]]:
    """Reserves all eight GPUs; the result releases them."""
    holder = wants("holder", gpus=8)
    assert (await ask(leader, holder)).decision == "admit"

    async def release() -> None:
        await service(leader).release_reservation(holder.job, "holder")

    return release


async def queue_and_release(
    office: Office, leader: LeaderElector, *requests: AdmissionRequest, error: Exception | None = None
) -> None:
    """Queues the jobs behind one with all GPUs, which ends; the Hub starts them, or refuses them with the error."""
    release = await hold_all_gpus(leader)
    for request in requests:
        assert (await ask(leader, request)).decision == "wait"
    if error is None:
        hub_starts(office, leader, *requests)
    else:
        hub_refuses(office, error, *requests)
    await release()


async def until_due(leader: LeaderElector, request: AdmissionRequest) -> None:
    """Queues the job behind one with all GPUs, which ends; the Hub does not answer."""
    release = await hold_all_gpus(leader)
    await ask(leader, request)
    await release()
    await until(lambda: is_due(leader, request), "it is scheduled")
