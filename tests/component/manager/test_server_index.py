"""The index of jobs by server."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from dlspawner.core.job import JobState
from dlspawner.manager.model.records import EXTERNAL_POD_PREFIX
from dlspawner.manager.state.job_store import ServerIndex
from tests.component.manager.noticing import NOW, job_of

OLD, NEW = job_of(number=2), replace(job_of(number=3), submitted=NOW + timedelta(minutes=1))


def test_newest_job_of_a_server_is_the_first() -> None:
    for jobs in ([OLD, NEW], [NEW, OLD]):
        assert ServerIndex(jobs).of("alice", "train") == [NEW, OLD]
    assert ServerIndex([OLD]).of("alice", "other") == ServerIndex([OLD]).of("bob", "train") == []


def test_job_is_there_once_in_its_latest_state_until_it_has_ended() -> None:
    found = ServerIndex([OLD, NEW])
    stopping = replace(OLD, state=JobState.STOPPING)
    found.put(stopping)
    assert found.of("alice", "train") == [NEW, stopping]
    for job in (OLD, NEW, NEW):
        found.put(replace(job, state=JobState.ENDED))
    assert found.of("alice", "train") == []


def test_foreign_pod_has_no_server() -> None:
    assert ServerIndex([replace(OLD, id=f"{EXTERNAL_POD_PREFIX}1")]).of("alice", "train") == []
