"""The text about victims: it names them as they are."""

from __future__ import annotations

import pytest

from dlspawner.core.decisions import Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.admission import admit
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.preemption import victims_of, victims_stopping_sentence, victims_will_stop_sentence
from tests.unit.core.factories import MINUTE, NOW, Case, cluster_state, node, queues, runs, team, wants

N1, N2 = node("n1"), node("n2")
PAIR = (team("a", 8, preempt_within_team=True), team("b", 8), N1, N2)
LATER = NOW + 5 * MINUTE


def lends(name: str, gpus: int, **more: object) -> Job:
    return runs(name, "b", gpus, "n1", preemptible=True, **more)


WILL: dict[str, Case] = {
    "a preemptible job of another team": Case(
        cluster_state(*PAIR, lends("r", 8)),
        wants("j", "a", 1),
        "a preemptible job, which has to leave for it after notice.",
    ),
    "a colleague's job of a lower priority": Case(
        cluster_state(*PAIR, runs("r", "a", 8, "n1", priority=10)),
        wants("j", "a", 8, priority=100),
        "a job of your team with a lower priority, which has to leave for it after notice.",
    ),
    "both": Case(
        cluster_state(*PAIR, runs("r", "a", 4, "n1", priority=10), lends("s", 4)),
        wants("j", "a", 8, priority=100),
        "a job of your team with a lower priority and a preemptible job, which have to leave for it after notice.",
    ),
}


@pytest.mark.parametrize(("here", "job", "expected"), WILL.values(), ids=WILL)
def test_sentence_about_future_victims(here: ClusterState, job: Job, expected: str) -> None:
    found = admit(job, here, NOW)
    assert isinstance(found, Preempt)
    said = victims_will_stop_sentence(job, [here.jobs[one] for one in found.victims])
    assert said == f"What it needs is held by {expected}"


ARE: dict[str, Case] = {
    "a preemptible job on the promised node": Case(
        cluster_state(*PAIR, lends("r", 8, notice=LATER)),
        queues("j", "a", 8, nodes=("n1",)),
        "a preemptible job, which has been told to leave",
    ),
    "a colleague's job that holds the quota on another node": Case(
        cluster_state(*PAIR, runs("r", "a", 8, "n2", priority=10, notice=LATER)),
        queues("j", "a", 8, nodes=("n1",), priority=100),
        "a job of your team with a lower priority, which has been told to leave",
    ),
    "a job that ends for another reason": Case(
        cluster_state(*PAIR, runs("r", "b", 8, "n1", state=JobState.STOPPING)),
        queues("j", "a", 8, nodes=("n1",)),
        "a job that is being stopped, which has been told to leave",
    ),
}


@pytest.mark.parametrize(("here", "job", "expected"), ARE.values(), ids=ARE)
def test_sentence_about_stopping_victims(here: ClusterState, job: Job, expected: str) -> None:
    here.put(job)
    assert victims_stopping_sentence(job, victims_of(job, here)) == f"What it waits for is held by {expected}"


def test_victims_elsewhere_are_not_named() -> None:
    elsewhere = runs("s", "b", 8, "n2", preemptible=True, notice=LATER)
    request = queues("j", "a", 8, nodes=("n1",))
    here = cluster_state(*PAIR, lends("r", 8, notice=LATER), elsewhere, request)
    assert [job.id for job in victims_of(request, here)] == ["r"]
