"""Extended resources beside GPUs: counted on nodes, for teams, and per job; no job has what another one holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.config import ExtendedResource
from dlspawner.core.job import Job
from dlspawner.core.nodes import Node
from dlspawner.core.scheduling.admission import admit, find_alternatives
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.queue import first_past_max_wait
from dlspawner.core.units import GPU
from tests.unit.core.factories import CLUSTER, HOUR, HURRIED, NOW, Case, cluster_state, node, queues, runs, team, wants
from tests.unit.core.simulator import Comes, play
from tests.unit.core.test_quota import said

HCA = "rdma/hca"
NAMED = replace(CLUSTER, extended_resources=(ExtendedResource(HCA, "InfiniBand adapters", 6),))


def fast(name: str, count: int, gpus: int = 8, kind: str | None = "a100") -> Node:
    """A node with so many adapters."""
    found = node(name, gpus, kind)
    return replace(found, gpus=(*found.gpus, (HCA, count * GPU)))


def each(job: Job, *counts: int) -> Job:
    """The job, whose pods want so many adapters."""
    pods = (
        replace(pod, extended=((HCA, count * GPU),) if count else ())
        for pod, count in zip(job.request.pods, counts, strict=True)
    )
    return replace(job, request=replace(job.request, pods=tuple(pods)))


def asks(count: int, gpus: int = 1, **more: Any) -> Job:
    return each(wants("j", "a", gpus, **more), count)


def here(*things: Any, quota: int | None = None, gpus: int = 16) -> ClusterState:
    extended = () if quota is None else ((HCA, quota),)
    return cluster_state(team("a", gpus, extended_quota=extended), team("b", 8), *things, cluster=NAMED)


FOUR = fast("n1", 4)
HELD = each(runs("r", "a", 1, "n1"), 3)
LENT = each(runs("r", "b", 1, "n1", preemptible=True), 3)
ADAPTERS = "InfiniBand adapters (rdma/hca)"
RULES: dict[str, tuple[Case, str]] = {
    "what is free on a node is given": (Case(here(FOUR, HELD), asks(1), "admit n1"), ""),
    "what others hold is not": (
        Case(here(FOUR, HELD), asks(2), "wait no-fit"),
        f"Free {ADAPTERS}: at most 1 on one node; this job needs 2.",
    ),
    "what pods without a job hold is not either": (
        Case(here(replace(FOUR, others=replace(FOUR.others, gpus=((HCA, 3 * GPU),)))), asks(2, gpus=0), "wait no-fit"),
        f"Free {ADAPTERS}: at most 1 on one node; this job needs 2.",
    ),
    "the node that has it is taken": (Case(here(node("n0"), FOUR), asks(1), "admit n1"), ""),
    "so it is without GPUs": (Case(here(node("n0"), fast("z", 4, 0, None)), asks(4, gpus=0), "admit z"), ""),
    "two kinds of resources must be free together": (
        Case(here(FOUR, runs("r", "a", 8, "n1"), node("n2")), asks(1), "wait no-fit"),
        f"not together with the CPU and memory and {ADAPTERS} that this job wants",
    ),
    "missing GPUs are told beside it": (
        Case(here(FOUR, each(runs("r", "a", 8, "n1"), 4)), asks(1), "wait no-fit"),
        f"at most 0 on one node; this job needs 1. Free {ADAPTERS}: at most 0 on one node; this job needs 1.",
    ),
    "more than any node has waits for a node that has it": (
        Case(here(FOUR), asks(5), "wait no-fit"),
        f"No node that this job could use has more than 4 {ADAPTERS}; you asked for 5 on one node.",
    ),
    "CPU is told of the nodes that have it": (
        Case(here(replace(FOUR, cpu_milli=2000), node("n2")), asks(1, cpu=3000), "wait no-fit"),
        "No node that this job could use has more than 2 CPUs; you asked for 3.",
    ),
    "each pod has its own": (
        Case(here(FOUR, fast("n2", 4)), each(wants("j", "a", (1, 1)), 3, 3), "admit n1 n2"),
        "",
    ),
    "the pod that wants most of it chooses first": (
        Case(here(FOUR, fast("n2", 2)), each(wants("j", "a", (1, 1)), 2, 4), "admit n2 n1"),
        "",
    ),
    "the quota is the team's": (
        Case(here(fast("n1", 8), HELD, quota=4), asks(2), "wait team-quota"),
        f"Team a uses 3 of its 4 {ADAPTERS}; this job needs 2.",
    ),
    "also without GPUs": (Case(here(fast("n1", 8), HELD, quota=4), asks(2, gpus=0), "wait team-quota"), "3 of its 4"),
    "jobs without it are not counted": (Case(here(fast("n1", 8), HELD, quota=3), asks(0), "admit n1"), ""),
    "a preemptible job is charged to no quota": (
        Case(here(fast("n1", 8), HELD, quota=4), asks(2, preemptible=True), "admit n1"),
        "",
    ),
    "more than the whole quota is refused": (
        Case(here(fast("n1", 8), quota=4), asks(5), "refuse exceeds-limit"),
        f"Team a has a quota of 4 {ADAPTERS}; you asked for 5.",
    ),
    "a borrower leaves for it": (Case(here(FOUR, LENT), asks(2), "preempt r on n1"), ""),
    "and is not asked to in vain": (Case(here(FOUR, LENT), asks(1), "admit n1"), ""),
    "a reservation is kept": (
        Case(here(FOUR, each(queues("q", "a", 1, nodes=("n1",)), 3)), asks(2), "wait no-fit"),
        "at most 1 on one node",
    ),
}


@pytest.mark.parametrize(("case", "sentence"), RULES.values(), ids=RULES)
def test_extended_resources(case: Case, sentence: str) -> None:
    decision = admit(case.job, case.here, NOW)
    assert said(decision) == case.expected
    assert sentence in getattr(decision, "sentence", "")


def test_fewer_gpus_are_offered_only_with_what_else_the_job_wants() -> None:
    assert find_alternatives(asks(2, gpus=9), here(FOUR, HELD), NOW) == ()
    assert find_alternatives(asks(1, gpus=9), here(FOUR, HELD), NOW)


def test_a_job_that_waits_for_the_quota_does_not_hide_its_owner_s_other_jobs() -> None:
    """They wait for what others hold, and may not be passed any more."""
    adapters = each(queues("first", "a", 1, waited=2 * HOUR), 2)
    cluster_state = here(fast("n1", 8), each(runs("r", "a", 7, "n1"), 3), adapters, quota=4)
    cluster_state.put(other := queues("other", "a", 2, waited=HOUR))
    assert first_past_max_wait(("a", "a100"), "a", cluster_state, NOW) == other


@st.composite
def loads(draw: st.DrawFn) -> list[Comes]:
    coming = []
    for number in range(draw(st.integers(2, 14))):
        of, pods = draw(st.sampled_from("ab")), draw(st.sampled_from([1, 1, 1, 2]))
        counts = [draw(st.integers(0, 2)) for _ in range(pods)]
        job = wants(f"{of}{number:02}", of, (draw(st.integers(0, 2)),) * pods, preemptible=draw(st.booleans()))
        coming.append(Comes(each(job, *counts), draw(st.integers(0, 40)), draw(st.sampled_from([5, 30]))))
    return coming


NOTICED = replace(HURRIED, scheduling=replace(HURRIED.scheduling, notice=timedelta(minutes=10)))


@given(loads())
@settings(max_examples=80)
def test_no_node_and_no_quota_is_exceeded_and_every_job_starts(coming: list[Comes]) -> None:
    teams = (team("a", 4, extended_quota=((HCA, 4),)), team("b", 4))
    now = cluster_state(*teams, fast("n1", 3, 4), fast("n2", 2, 4), cluster=replace(NOTICED, extended_resources=()))
    started = play(now, coming)
    assert (len(started), len(now.jobs)) == (len(coming), 0)
