"""A job that the Manager fails to decide, by a fault of its own: everybody else goes on."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest

from dlspawner.core.decisions import Admit, Preempt, Refuse
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.limits import Blocked
from tests.component.manager.manager_harness import Office, ask, until, wants
from tests.component.manager.queue_helpers import desk, full, plays, state, told


async def test_a_job_that_cannot_be_decided_is_passed_over_until_it_can(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty, other, later = wants("alice"), wants("bob"), wants("carol")
    faults, real = [0], admission.evaluate

    def decide(job: Job, world: ClusterState, now: datetime) -> Admit | Preempt | Refuse | Blocked:
        if job.id == faulty.job:
            faults[0] += 1
            raise ZeroDivisionError("a fault of ours")
        return real(job, world, now)

    async with office.manager() as acting:
        first = desk(acting)
        give_back = await full(acting)
        for question in (faulty, other):
            await ask(acting, question)
        plays(office, acting, faulty, other, later)
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "dlspawner.manager"):
            patch.setattr(admission, "evaluate", decide)
            await give_back()
            await until(lambda: told(acting, other), "who is behind it has started")
            await ask(acting, later)
            await until(lambda: told(acting, later), "so has who came later")
            await until(lambda: faults[0] >= 3, "it is decided again")
            assert state(acting, faulty) is JobState.QUEUED
        errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
        assert all(faulty.job in one.getMessage() and one.exc_info for one in errors)
        assert errors, "the operator reads why"
        await until(lambda: told(acting, faulty), "it starts once it can be decided")
        assert desk(acting) is first, "in the same term"
