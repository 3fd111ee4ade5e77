"""The OpenPAI lab's experiments: two nodes with 1 GPU, 2 CPUs and 4 GiB; two virtual clusters with one GPU each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import Node
from dlspawner.core.scheduling.admission import admit
from dlspawner.core.scheduling.cluster_state import ClusterState
from tests.unit.core.factories import GIB, HOUR, HURRIED, NOW, ask, node, one_pass, queues, runs, team, wants, world
from tests.unit.core.test_quota import said

PROD, TEST = 100, 10
CHARGE = replace(ask(1), pods=(replace(ask(1).pods[0], cpu_milli=2000, memory_bytes=4 * GIB),))


def machine(name: str, *, cordoned: bool = False) -> Node:
    return node(name, 1, cpu_milli=2000, memory_bytes=4 * GIB, cordoned=cordoned)


def lab(*jobs: Job, opted_in: bool = False, closed: str = "") -> ClusterState:
    teams = (team("vc1", 1, preempt_within_team=opted_in), team("vc2", 1, preempt_within_team=opted_in))
    nodes = (machine(name, cordoned=name == closed) for name in ("one", "two"))
    return world(*teams, *nodes, *(replace(job, request=CHARGE) for job in jobs), cluster=HURRIED)


def request(of: str, **more: object) -> Job:
    return wants("new", of, charge=CHARGE, **more)


FIRST = runs("first", "vc1", 1, "one")
OPPORTUNISTIC = (runs("o1", "vc1", 1, "one", preemptible=True), runs("o2", "vc1", 1, "two", preemptible=True))
EXPERIMENTS: dict[str, tuple[ClusterState, Job, str]] = {
    "safety: a virtual cluster takes no more than its own": (lab(FIRST), request("vc1"), "wait team-quota"),
    "safety: also where it opted in": (lab(FIRST, opted_in=True), request("vc1"), "wait team-quota"),
    "safety: the other one starts at once": (lab(FIRST, queues("second", "vc1", 1)), request("vc2"), "admit two"),
    "safety: an owner gets its GPU back": (lab(*OPPORTUNISTIC), request("vc2"), "preempt o2 on two"),
    "safety: a guaranteed job is not stopped for the other one": (
        lab(FIRST, runs("b", "vc2", 1, "two"), opted_in=True),
        request("vc1", priority=PROD),
        "preempt first on one",
    ),
    "priority: a prod job stops a test job of a virtual cluster that opted in": (
        lab(runs("test", "vc1", 1, "one", priority=TEST), opted_in=True),
        request("vc1", priority=PROD),
        "preempt test on one",
    ),
    "priority: a test job of the other virtual cluster is not stopped": (
        lab(runs("test", "vc2", 1, "one", priority=TEST), opted_in=True, closed="two"),
        request("vc1", priority=PROD),
        "wait no-node",
    ),
    "opportunistic jobs stop no opportunistic ones": (
        lab(*OPPORTUNISTIC),
        request("vc2", preemptible=True, priority=PROD),
        "wait no-node",
    ),
}


@pytest.mark.parametrize(("here", "job", "expected"), EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_experiment(here: ClusterState, job: Job, expected: str) -> None:
    assert said(admit(job, here, NOW)) == expected


def test_prod_job_is_before_the_test_job_that_came_first() -> None:
    here = lab(queues("test", "vc1", 1, priority=TEST, waited=HOUR), queues("prod", "vc1", 1, priority=PROD))
    assert one_pass(here, NOW) == ["prod"]


def test_opportunistic_jobs_use_both_nodes_and_the_gpu_of_an_owner_that_has_ended() -> None:
    jobs = [queues(name, "vc1", 1, preemptible=True) for name in ("o1", "o2", "o3")]
    assert one_pass(lab(*jobs), NOW) == ["o1", "o2"]
    here = lab(FIRST, runs("other", "vc2", 1, "two"), jobs[0])
    assert one_pass(here, NOW) == []
    here.put(replace(here.jobs["first"], state=JobState.ENDED))
    assert one_pass(here, NOW) == ["o1"]
