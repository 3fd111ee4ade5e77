"""Pages of jobs from both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dlspawner.core.job import Job, JobState
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import Database
from dlspawner.manager.model.access import Viewer
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.job_history import JobCursor, JobFilter, JobHistory
from dlspawner.manager.model.records import JobEvent, JobRecord, StopReason

BEGIN = datetime(2031, 5, 1, tzinfo=UTC)
ALL = Viewer("", all=True)
CHARGE = ResourceRequest("gpu", (PodRequest("nvidia.com/gpu", 1000, 50, 2**20),))


def job(number: int, minutes: int = 0, **more: object) -> Job:
    made = Job(f"j-{number:012d}", "alice", "vision", BEGIN + timedelta(minutes=minutes), CHARGE, template="tiny")
    return replace(made, **{"state": JobState.RUNNING, **more})  # type: ignore[arg-type]


@pytest.fixture
async def repository(db_url: str) -> AsyncIterator[JobRepository]:
    store = Database.open(db_url)
    made = JobRepository(store)
    assert await made.acquire("tests", 60) == 1
    yield made
    await store.close()


async def write(repository: JobRepository, *jobs: Job, reason: EventReason = EventReason.RUNNING) -> None:
    await repository.write(1, [JobEvent(JobRecord(one), BEGIN, reason, new=True) for one in jobs])


async def turn_pages(
    repository: JobRepository,
    viewer: Viewer = ALL,
    wanted: JobFilter | None = None,
    size: int = 2,
    meanwhile: Sequence[Job] = (),
) -> list[str]:
    found: list[str] = []
    after, new = None, list(meanwhile)
    while page := await repository.page(viewer, wanted or JobFilter(), after, size):
        found += [one.id for one in page]
        after = JobCursor(page[-1].submitted, page[-1].id)
        if new:
            await write(repository, new.pop())
    return found


async def test_pages_have_every_job_once_although_new_ones_come(repository: JobRepository) -> None:
    known = [job(number, minutes=number // 3) for number in range(10)]  # three at a time have the same submit time
    await write(repository, *known)
    later = [job(100 + number, minutes=60 + number) for number in range(5)]
    assert await turn_pages(repository, meanwhile=later) == [one.id for one in known[::-1]]


async def test_job_is_read_as_written(repository: JobRepository) -> None:
    notice, charge = (
        BEGIN + timedelta(hours=2),
        ResourceRequest("gpu", (PodRequest("nvidia.com/gpu", 2000, 50, 2**20),) * 2),
    )
    one = job(1, 7, server="train", priority=3, preemptible=True, requeue=True, started=BEGIN, notice=notice)
    one = replace(one, request=charge, nodes=("gpu-1", None), state=JobState.STOPPING)
    await repository.write(
        1, [JobEvent(JobRecord(one, stop=StopReason(EventReason.IDLE, "Idle.")), BEGIN, EventReason.IDLE, new=True)]
    )
    expected = JobHistory(
        id=one.id,
        user="alice",
        server="train",
        team="vision",
        template="tiny",
        priority=3,
        preemptible=True,
        requeue=True,
        state=JobState.STOPPING,
        reason="idle",
        gpu_type="gpu",
        gpus_milli=4000,
        cpu_milli=100,
        memory_bytes=2**21,
        nodes=("gpu-1", None),
        submitted=one.submitted,
        started=BEGIN,
        ended=None,
        notice=notice,
        stop=StopReason(EventReason.IDLE, "Idle."),
        stopped=BEGIN,
    )
    assert await repository.job_history(one.id) == expected
    assert await repository.page(ALL, JobFilter(), None, 2) == [expected]
    assert await repository.find_many([one.id]) == [expected]


async def test_viewer_reads_jobs(repository: JobRepository) -> None:
    mine, teams, others = job(1), job(2, user="bob", team="language"), job(3, user="carl")
    pod = replace(job(4), id="pod-4")
    await write(repository, mine, teams, others, pod)
    assert await turn_pages(repository, Viewer("alice")) == [mine.id]
    assert await turn_pages(repository, Viewer("alice", frozenset({"language"}))) == [teams.id, mine.id]
    assert await turn_pages(repository) == [others.id, teams.id, mine.id]


FILTERS = {
    "everything": (JobFilter(), {1, 2, 3}),
    "a user": (JobFilter(user="bob"), {2}),
    "a server": (JobFilter(server="train"), {3}),
    "the default server": (JobFilter(server=""), {1, 2}),
    "a team": (JobFilter(team="vision"), {1, 3}),
    "a template": (JobFilter(template="custom"), {3}),
    "a GPU type": (JobFilter(gpu_type="gpu"), {1, 3}),
    "no GPUs": (JobFilter(gpu_type=""), {2}),
    "preemptible": (JobFilter(preemptible=True), {3}),
    "not preemptible": (JobFilter(preemptible=False), {1, 2}),
    "some states": (JobFilter(states=frozenset({JobState.ENDED, JobState.QUEUED})), {2}),
    "since then": (JobFilter(since=BEGIN + timedelta(minutes=2)), {2, 3}),
    "until then": (JobFilter(until=BEGIN + timedelta(minutes=2)), {1}),
    "several": (JobFilter(team="vision", preemptible=False), {1}),
}


@pytest.mark.parametrize(("wanted", "numbers"), FILTERS.values(), ids=FILTERS)
async def test_filter(repository: JobRepository, wanted: JobFilter, numbers: set[int]) -> None:
    await write(
        repository,
        job(1, minutes=1),
        job(2, minutes=2, user="bob", team="language", request=ResourceRequest(), state=JobState.ENDED),
        job(3, minutes=3, server="train", template="custom", preemptible=True),
    )
    assert {int(one[2:]) for one in await turn_pages(repository, wanted=wanted)} == numbers


async def test_stopped_job_has_reason_time_and_events(repository: JobRepository) -> None:
    one = job(1)
    await write(repository, one)
    stopping = JobRecord(replace(one, state=JobState.STOPPING), stop=StopReason(EventReason.IDLE, "It was idle."))
    at = BEGIN + timedelta(hours=1)
    ends = replace(stopping, job=replace(one, state=JobState.ENDED))
    await repository.write(1, [JobEvent(stopping, at, EventReason.IDLE, "It was idle.")])
    await repository.write(1, [JobEvent(ends, at + timedelta(minutes=1), EventReason.GONE)])
    kept = await repository.job_history(one.id)
    assert kept is not None
    assert (kept.stop, kept.stopped, kept.reason) == (StopReason(EventReason.IDLE, "It was idle."), at, "gone")
    assert kept.ended == at + timedelta(minutes=1)
    told = [(event.reason, event.state, event.detail) for event in await repository.history(one.id)]
    assert told == [
        ("running", JobState.RUNNING, ""),
        ("idle", JobState.STOPPING, "It was idle."),
        ("gone", JobState.ENDED, ""),
    ]
