"""The requested end of a job whose state changes meanwhile."""

from __future__ import annotations

from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.cluster.termination import JobEnder
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.model.records import JobRecord
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import desk, full, record, state


def looked_at(acting: LeaderElector, question: AdmissionRequest) -> JobRecord:
    found = record(acting, question)
    assert found is not None
    return found


async def test_job_that_runs_meanwhile_is_stopped(office: Office) -> None:
    question = wants()
    async with office.manager() as acting:
        await ask(acting, question)
        starts = looked_at(acting, question)
        await office.bind(await office.make_pod(question))
        await until(lambda: state(acting, question) is JobState.RUNNING, "it runs")
        assert await JobEnder(desk(acting).store, acting.hub).end(starts, "alice")
        assert set(office.hub.stopped) == {("alice", "")}


async def test_next_job_of_the_server_is_left_alone(office: Office) -> None:
    first, second = wants(), wants()
    async with office.manager() as acting:
        await full(acting)
        await ask(acting, first)
        waits = looked_at(acting, first)
        await ask(acting, second)
        assert state(acting, first) is JobState.ENDED
        assert not await JobEnder(desk(acting).store, acting.hub).end(waits, "vera")
        assert state(acting, second) is JobState.QUEUED
