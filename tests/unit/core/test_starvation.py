"""No job starves inside its team's quota, under streams of borrowers, of other teams, of out-of-share jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.config import ClusterConfig
from dlspawner.core.job import Job
from dlspawner.core.scheduling.cluster_state import ClusterState, DecayedUsage
from dlspawner.core.units import GPU
from tests.unit.core.factories import (
    CLUSTER,
    GPU_HOUR,
    HURRIED,
    MINUTE,
    NOW,
    cluster_state,
    node,
    one_pass,
    queues,
    runs,
    team,
    wants,
)
from tests.unit.core.simulator import Comes, play

PATIENCE, MIN_RUN, LONGEST = 30, 10, 60
LATE, SOON = 20 + PATIENCE + 60, 20 + MIN_RUN
UNTOLD = replace(CLUSTER, scheduling=replace(CLUSTER.scheduling, notice=timedelta(0)))


def stream(of: str, every: int, minutes: int, many: int = 100, **more: object) -> list[Comes]:
    """Jobs with 1 GPU, one after the other."""
    return [Comes(wants(f"{of}{number:04}", of, 1, **more), every * number, minutes) for number in range(many)]


def one_node(*quotas: int, cluster: ClusterConfig = HURRIED) -> ClusterState:
    return cluster_state(
        *(team(name, quota) for name, quota in zip("abc", quotas, strict=False)), node("n1"), cluster=cluster
    )


def without_second(lose: Callable[[ClusterState], None]) -> ClusterState:
    here = cluster_state(team("a", 8), team("b", 8), node("n1"), node("n2"), cluster=HURRIED)
    lose(here)
    return here


LONG = [Comes(wants(f"long{number}", "b", 1, preemptible=True), 0, 1000) for number in range(6)]
# The cluster, what comes, and the minute in which the job of 8 GPUs of team a, which comes in minute 20, has to start.
STREAMS: dict[str, tuple[Callable[[], ClusterState], list[Comes], int]] = {
    "of borrowers that never run for the minimum time": (
        partial(one_node, 8, 0, cluster=UNTOLD),
        stream("b", 1, 9, 300, preemptible=True),
        SOON,
    ),
    "of borrowers beside others that have run for long": (
        partial(one_node, 8, 0, cluster=UNTOLD),
        [*LONG, *stream("b", 4, 9, preemptible=True)],
        SOON,
    ),
    "of another team, with more quota than GPUs": (partial(one_node, 8, 8), stream("b", 8, 60), LATE),
    "of another team with a higher priority": (partial(one_node, 8, 8), stream("b", 8, 60, priority=1000), LATE),
    "of two other teams": (partial(one_node, 8, 8, 8), [*stream("b", 16, 60), *stream("c", 16, 60)], LATE),
    "of a team whose node is closed": (
        partial(without_second, lambda here: here.put_node(node("n2", cordoned=True))),
        stream("b", 8, 60),
        20 + 60,
    ),
    "of a team whose node is gone": (
        partial(without_second, lambda here: here.remove_node("n2")),
        stream("b", 8, 60),
        LATE,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_big_job_is_not_starved_by_a_stream(name: str) -> None:
    here, coming, latest = STREAMS[name]
    started = play(here(), [*coming, Comes(wants("big", "a", 8), 20, 10)], end=400)
    assert started.get("big", 10_000) <= latest


def used(here: ClusterState, hours: float) -> ClusterState:
    if hours:
        here.usage["a"] = DecayedUsage(hours * GPU_HOUR, NOW)
    return here


def test_equal_preemptible_jobs_start_in_the_order_of_usage() -> None:
    """Not to be passed by what fits beside it is one thing, to have used more than others another."""
    here = used(
        cluster_state(team("a"), team("b"), node("n1"), queues("heavy", "a", preemptible=True, waited=90 * MINUTE)), 9.0
    )
    here.put(queues("light", "b", preemptible=True))
    assert one_pass(here, NOW) == ["light", "heavy"]


def test_earlier_small_jobs_pass_a_big_one_of_a_team_with_more_usage() -> None:
    late, early = (queues(f"b{age}", "b", preemptible=True, waited=age * MINUTE) for age in (59, 61))
    big, there = queues("big", "a", 8, preemptible=True, waited=90 * MINUTE), runs("r", "b", 6, "n1", preemptible=True)
    here = used(cluster_state(team("a"), team("b"), node("n1"), big, late, early, there), 9.0)
    assert one_pass(here, NOW) == ["b61"]


def test_late_job_does_not_block_an_earlier_equal_one() -> None:
    late, early = queues("late", "b", preemptible=True), queues("early", "c", preemptible=True, waited=61 * MINUTE)
    big, there = queues("big", "a", 8, preemptible=True, waited=90 * MINUTE), runs("r", "b", 6, "n1", preemptible=True)
    here = used(cluster_state(*map(team, "abc"), node("n1"), big, late, early, there), 9.0)
    here.usage["c"] = DecayedUsage(GPU_HOUR, NOW)
    assert one_pass(here, NOW) == ["early"]


def beside(name: str, of: str, amount: int, without: bool) -> Job:
    """A job outside every quota: with so many GPUs, or without any and with so many CPUs."""
    return wants(name, of, 0, cpu=1000 * amount) if without else wants(name, of, amount, preemptible=True)


@st.composite
def crowds_beside(draw: st.DrawFn) -> tuple[list[Comes], bool]:
    """Streams of jobs that want less than a node, of teams that have used nothing yet; whether they want no GPUs."""
    coming, without = [], draw(st.booleans())
    for number in range(draw(st.integers(1, 3))):
        amount, every = draw(st.integers(1, 4)), draw(st.integers(4, 20))
        minutes, of = draw(st.sampled_from([9, 20, LONGEST])), draw(st.sampled_from("bc"))
        jobs = (beside(f"{of}{number}-{one:02}", of, amount, without) for one in range(150))
        coming += [Comes(job, every * one, minutes) for one, job in enumerate(jobs)]
    return coming, without


@given(crowds_beside(), st.sampled_from([0.0, 0.01, 5.0, 1000.0]), st.integers(1, 2))
@settings(max_examples=20)
def test_only_earlier_jobs_start_before_a_big_one(crowd: tuple[list[Comes], bool], hours: float, nodes: int) -> None:
    coming, without = crowd
    machines = [node(f"n{one}", 0, None, cpu_milli=8000) if without else node(f"n{one}") for one in range(nodes)]
    here = used(cluster_state(*map(team, "abc"), *machines, cluster=HURRIED), hours)
    big = beside("big", "a", 8, without)
    started = play(here, [*coming, Comes(big, 20, 10)], end=3000)
    in_time = [started[one.job.id] for one in coming if one.minute < 20 + PATIENCE and one.job.id in started]

    # The emptiest node is kept for it. Where another becomes emptier that one is, with less to wait for each time.
    kept = 1 if nodes == 1 else 8
    assert started.get("big", 10_000) <= max(20 + PATIENCE, *in_time) + kept * LONGEST


def test_borrowers_use_gpus_that_are_kept_for_a_guaranteed_job() -> None:
    """They leave when it is their turn to, so that no GPU is idle in vain."""
    coming = [
        Comes(wants("old", "b", 1), 0, 200),
        Comes(wants("big", "a", 8), 1, 10),
        Comes(wants("borrower", "b", 7, preemptible=True), 60, 300),
    ]
    started = play(one_node(8, 8), coming)
    assert (started["borrower"], started["big"]) == (60, 200)


@st.composite
def queued(draw: st.DrawFn, preemptible: int = 9) -> list[Job]:
    """Jobs of two teams that have waited longer or shorter than the patience."""
    found = []
    for number in range(draw(st.integers(2, 6))):
        of, gpus, waited = draw(st.sampled_from("ab")), draw(st.sampled_from([8, 4, 1])), draw(st.integers(1, 90))
        more = {"priority": draw(st.sampled_from([10, 100])), "preemptible": draw(st.integers(0, 9)) >= preemptible}
        found.append(queues(f"j{number}", of, gpus, waited=waited * MINUTE, **more))
    return found


@given(
    st.lists(st.tuples(st.sampled_from([8, 4]), st.booleans()), min_size=1, max_size=2),
    st.tuples(*[st.sampled_from([8, 4, 12])] * 2),
    st.one_of(queued(), queued(preemptible=0)),
    st.sampled_from([0.0, 9.0]),
)
@settings(max_examples=400)
def test_jobs_on_an_idle_cluster_never_deadlock(
    nodes: list[tuple[int, bool]], quotas: tuple[int, int], jobs: list[Job], hours: float
) -> None:
    teams = [team(name, quota) for name, quota in zip("ab", quotas, strict=True)]
    machines = [node(f"n{number}", gpus, cordoned=closed) for number, (gpus, closed) in enumerate(nodes)]
    if any(one_pass(cluster_state(*teams, *machines, job), NOW) for job in jobs):
        assert one_pass(used(cluster_state(*teams, *machines, *jobs), hours), NOW)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[tuple[int, int, int], int, bool, int, list[Comes]]:
    """Quotas, nodes, whether the last node is closed, GPUs of the job of team a, and what teams b and c ask."""
    quotas = draw(st.tuples(st.integers(1, 8), st.integers(0, 16), st.integers(0, 16)))
    coming = []
    for number in range(draw(st.integers(1, 3))):
        of, preemptible = draw(st.sampled_from("bc")), draw(st.booleans())
        gpus = draw(st.integers(1, 3))
        if preemptible or gpus <= quotas["abc".index(of)]:
            more = {"preemptible": preemptible, "priority": draw(st.sampled_from([10, 100]))}
            every, minutes = draw(st.integers(1, 12)), draw(st.sampled_from([5, 9, 20, LONGEST]))
            jobs = (wants(f"{of}{number}-{one:02}", of, gpus, **more) for one in range(40))
            coming += [Comes(job, 21 + every * one, minutes) for one, job in enumerate(jobs)]
    return quotas, draw(st.integers(1, 3)), draw(st.booleans()), draw(st.integers(1, quotas[0])), coming


@given(crowds(), st.integers(0, 8))
@settings(max_examples=50)
def test_job_within_quota_waits_only_for_present_jobs(
    crowd: tuple[tuple[int, int, int], int, bool, int, list[Comes]], there: int
) -> None:
    quotas, nodes, closed, gpus, coming = crowd
    here = cluster_state(
        *(team(name, quota) for name, quota in zip("abc", quotas, strict=True)),
        *(node(f"n{number}", cordoned=closed and 1 < number == nodes) for number in range(1, nodes + 1)),
        cluster=UNTOLD,
    )
    share = here.quota_by_team("a100").get("a")
    if share is None and nodes > 1:
        return  # which node comes closest to holding the job may change meanwhile
    if share is not None and not any(share[name] >= gpus * GPU for name in share if here.node_infos[name].node.open):
        return
    first = [Comes(wants(f"b{number}", "b", 1), 0, LONGEST) for number in range(min(there, quotas[1]))]
    started = play(here, [*first, *coming, Comes(wants("big", "a", gpus), 20, 10)], end=200)

    assert started.get("big", 10_000) <= 20 + PATIENCE + LONGEST + MIN_RUN
