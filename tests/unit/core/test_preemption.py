"""Victims: their order, spared jobs, protected jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.config import Team
from dlspawner.core.decisions import Admit, Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import ForeignUsage, Node
from dlspawner.core.scheduling.admission import admit
from dlspawner.core.scheduling.node_info import Resources
from dlspawner.core.scheduling.preemption import (
    Step,
    choose_victims,
    deferred_stop_time,
    due_steps,
    may_be_stopped,
    order_candidates,
    share_overrun,
    stale_reservations,
    stop_time,
    unneeded_victims,
)
from dlspawner.core.units import GPU
from tests.unit.core.factories import (
    HOUR,
    MINUTE,
    NOW,
    cluster_state,
    node,
    notice_pass,
    one_pass,
    queues,
    runs,
    team,
    wants,
)

NVIDIA = "nvidia.com/gpu"
NOTICED = NOW + 5 * MINUTE


def borrows(name: str, of: str, gpus: int | list[int], *nodes: str, **more: Any) -> Job:
    return runs(name, of, gpus, *nodes, preemptible=True, **more)


def lent(name: str, gpus: int, **more: Any) -> Job:
    """A job that team b borrows GPUs of n1 for."""
    return borrows(name, "b", gpus, "n1", **more)


TEAMS = (team("a", 8), team("b", 4), team("c", 4), node("n1"), node("n2"))

LOW = runs("j", "a", 8, "n1", notice=NOTICED, priority=10)
HIGH = queues("p", "a", 8, nodes=("n2",), priority=100)
CHOSEN: dict[str, tuple[list[Job], int, str]] = {
    "the idle one before the busy one": (
        [lent("busy", 1, age=2 * HOUR), lent("idle", 1, age=3 * HOUR, idle=True, priority=100)],
        1,
        "idle",
    ),
    "the lowest priority before the team that is most over its share": (
        [borrows("low", "c", 1, "n1", priority=10), borrows("high", "b", 8, "n2", "n1", priority=100)],
        1,
        "low",
    ),
    "the team that is most over its share before the youngest": (
        [lent("over", 1, age=2 * HOUR), borrows("more", "b", 6, "n2"), borrows("young", "c", 1, "n1")],
        1,
        "over",
    ),
    "the youngest of equals": ([lent("old", 1, age=2 * HOUR), lent("young", 1)], 1, "young"),
    "only jobs on the node that is wanted": ([borrows("j", "b", 4, "n2"), lent("k", 4)], 4, "k"),
    "not the small one when the big one is needed anyway": ([lent("small", 1, idle=True), lent("big", 4)], 4, "big"),
    "a job of several pods, by what it has there": ([borrows("j", "b", [4, 4], "n1", "n2")], 4, "j"),
    "a new borrower before a new job of the own team": (
        [
            runs("own", "a", 4, "n1", age=2 * HOUR),
            runs("late", "a", 4, "n1", age=9 * MINUTE),
            lent("later", 4, age=2 * MINUTE),
        ],
        6,
        "later own",
    ),
    "a borrower before the team's own": ([runs("own", "a", 4, "n1", idle=True), lent("j", 4)], 4, "j"),
}


@pytest.mark.parametrize(("jobs", "gpus", "expected"), CHOSEN.values(), ids=CHOSEN)
def test_victims(jobs: list[Job], gpus: int, expected: str) -> None:
    asked = order_candidates(jobs, cluster_state(*TEAMS, *jobs), NOW)
    victims = choose_victims({"n1": Resources(gpus * GPU, 0, 0)}, NVIDIA, asked)
    assert victims is not None
    assert " ".join(sorted(job.id for job in victims)) == expected


@pytest.mark.parametrize(("priority", "victim"), [(40, True), (50, False), (60, False)])
def test_own_team_stops_lower_priorities_only(priority: int, victim: bool) -> None:
    job = runs("own", "a", 1, "n1", priority=priority)
    here = cluster_state(team("a", 8, preempt_within_team=True), node("n1"), job)
    assert may_be_stopped(job, wants("new", "a", 1, priority=50), here) is victim


def test_no_victims_where_all_are_not_enough() -> None:
    jobs = [lent("j", 2), lent("k", 2)]
    assert choose_victims({"n1": Resources(5 * GPU, 0, 0)}, NVIDIA, jobs) is None


LEAVES: dict[str, tuple[Job, timedelta]] = {
    "after the notice: a job that has run for the minimum time": (lent("j", 1, age=10 * MINUTE), 5 * MINUTE),
    "after the rest of the minimum time and the notice: a job that has not": (
        lent("j", 1, age=4 * MINUTE),
        11 * MINUTE,
    ),
    "a job that is starting, as if it ran from now on": (replace(lent("j", 1), started=None), 15 * MINUTE),
}


@pytest.mark.parametrize(("job", "expected"), LEAVES.values(), ids=LEAVES)
def test_stop_time(job: Job, expected: timedelta) -> None:
    assert stop_time(job, cluster_state(*TEAMS), NOW) == NOW + expected


GOES_ON: dict[str, tuple[Job, timedelta | None]] = {
    "a job that has run for the minimum time is not deferred": (lent("j", 1, age=10 * MINUTE), None),
    "a job that took long to start runs for the minimum time": (lent("j", 1, age=4 * MINUTE), 6 * MINUTE),
    "a job that never ran is not deferred": (replace(lent("j", 1), started=None), None),
}


@pytest.mark.parametrize(("job", "expected"), GOES_ON.values(), ids=GOES_ON)
def test_deferred_stop_time(job: Job, expected: timedelta | None) -> None:
    assert deferred_stop_time(job, cluster_state(*TEAMS), NOW) == (None if expected is None else NOW + expected)


@pytest.mark.parametrize("hours", [-48, -1, 0, 1, 48])
def test_clock_jump_neither_skips_nor_extends_a_notice(hours: int) -> None:
    """Within a team that opted in a guaranteed job can be a victim: the one case in which the time decides about it."""
    job = runs("j", "a", 8, "n1", priority=10, age=MINUTE)
    here = cluster_state(team("a", 8, preempt_within_team=True), node("n1"), job)
    now = NOW + hours * HOUR
    decision = admit(wants("x", "a", 8, priority=100), here, now)
    assert decision == Preempt(("j",), ("n1",))
    assert stop_time(job, here, now) - now == {0: 14 * MINUTE}.get(hours, (15 if hours < 0 else 5) * MINUTE)


def noticed(name: str, gpus: int) -> Job:
    return lent(name, gpus, notice=NOTICED)


LATER = [  # p gets its place when j leaves, q when k does
    *(noticed("j", 1), lent("k", 4, notice=NOTICED + MINUTE), lent("l", 1)),
    *(queues(name, "a", 3, nodes=("n1",)) for name in "pq"),
]

SPARED: dict[str, tuple[list[Job], str]] = {
    "none while the job with the reservation waits": ([noticed("j", 8), queues("p", "a", 8, nodes=("n1",))], ""),
    "all when that one is gone": ([noticed("j", 4), noticed("k", 4)], "j k"),
    "a victim that is not needed any more": (
        [noticed("j", 6), noticed("k", 2), queues("p", "a", 6, nodes=("n1",))],
        "k",
    ),
    "none that leaves before the one that would make up for it": ([*LATER], ""),
    "a victim that is still starting": ([replace(noticed("j", 8), state=JobState.STARTING, started=None)], "j"),
    "none that is stopping already": ([replace(noticed("j", 8), state=JobState.STOPPING)], ""),
    "one of a team with too little quota, when no job of it waits any more": (
        [LOW, runs("k", "a", 8, "n2", priority=10)],
        "j",
    ),
    "none of the team itself while its quota is exceeded": ([LOW, HIGH], ""),
}


@pytest.mark.parametrize(("jobs", "expected"), SPARED.values(), ids=SPARED)
def test_victims_that_are_not_needed(jobs: list[Job], expected: str) -> None:
    assert " ".join(sorted(job.id for job in unneeded_victims(cluster_state(*TEAMS, *jobs)))) == expected


def test_steps_that_are_due() -> None:
    here = cluster_state(
        *(*TEAMS, queues("void", "a", 1, nodes=("n9",)), queues("p", "a", 8, nodes=("n1",))),
        *(lent("over", 4, notice=NOW), lent("slow", 4, notice=NOW, age=MINUTE)),  # which was told while it started
        *(borrows("spared", "b", 1, "n2", notice=NOTICED),),
    )
    assert [(step, job.id, until) for step, job, until in due_steps(here, NOW)] == [
        (Step.RELEASE, "void", None),
        (Step.SPARE, "spared", None),
        (Step.STOP, "over", None),
        (Step.DEFER, "slow", NOW + 9 * MINUTE),
    ]


def test_gpus_of_the_first_reservation_are_not_lent_against_later_victims() -> None:
    room = cluster_state(*TEAMS, *LATER).node_infos["n1"]
    assert room.available(NVIDIA).gpus < GPU
    assert room.available(NVIDIA, "p").gpus == 2 * GPU


def lows(*numbers: int) -> list[Job]:
    return [runs(f"low{number}", "a", 1, "n1", priority=10) for number in numbers]


OPTED_IN = (team("a", 4, preempt_within_team=True), node("n1"))


def test_job_that_waits_for_leaving_victims_chooses_no_others() -> None:
    here = cluster_state(*OPTED_IN, *lows(0, 1, 2, 3), queues("p", "a", 2, priority=100))
    assert notice_pass(here, NOW) == {"p": ("low0", "low1")}
    for minutes in range(5):
        assert notice_pass(here, NOW + minutes * MINUTE) == {}
        assert (stale_reservations(here), unneeded_victims(here)) == ((), ())
    here.remove("low0")
    here.remove("low1")
    assert one_pass(here, NOW + 5 * MINUTE) == ["p"]


def test_two_jobs_of_a_team_choose_no_superfluous_victims() -> None:
    jobs = queues("p", "a", priority=100), queues("q", "a", priority=100)
    here = cluster_state(*OPTED_IN, *lows(0, 1, 2, 3), *jobs)
    assert notice_pass(here, NOW) == {"p": ("low0",), "q": ("low1",)}


def test_no_victims_for_quota_that_a_stopping_job_returns() -> None:
    ends = replace(lows(0)[0], state=JobState.STOPPING)
    here = cluster_state(*OPTED_IN, ends, *lows(1, 2, 3), queues("p", "a", priority=100))
    assert notice_pass(here, NOW) == {}
    here.remove("low0")
    assert one_pass(here, NOW) == ["p"]


def test_lost_gpus_void_the_reservation_and_spare_its_victims() -> None:
    here = cluster_state(TEAMS[0], node("n1"), runs("own", "a", 4, "n1"), lent("j", 4), queues("p", "a", 4))
    notice_pass(here, NOW)
    here.put_node(node("n1", 7))
    for job in stale_reservations(here):
        here.put(replace(job, nodes=()))
    assert here.jobs["p"].nodes == ()
    assert [job.id for job in unneeded_victims(here)] == ["j"]


def test_job_waits_for_victims_on_its_share_and_takes_no_other_share() -> None:
    here = cluster_state(
        *(team("a", 12, preempt_within_team=True), team("b", 4), node("n1"), node("n2")),  # n2 is one half of each
        *(runs("high", "a", 6, "n1", priority=1000), runs("low", "a", 2, "n2", priority=10)),
        queues("p", "a", 4, priority=100),
    )
    assert notice_pass(here, NOW) == {"p": ("low",)}
    assert (stale_reservations(here), unneeded_victims(here), one_pass(here, NOW)) == ((), (), [])
    here.remove("low")
    assert one_pass(here, NOW) == ["p"]
    assert isinstance(admit(wants("theirs", "b", 4), here, NOW), Admit)


CLOSED = node("n3", cordoned=True)
BROKEN: dict[str, tuple[list[Team | Node | Job], str]] = {
    "a promise that holds": ([queues("p", "a", 8, nodes=("n1",))], ""),
    "its node is closed": ([CLOSED, queues("p", "a", 8, nodes=("n3",))], "p"),
    "its node is gone": ([queues("p", "a", 8, nodes=("n9",))], "p"),
    "its team has less quota now": ([team("d", 4), queues("p", "d", 8, nodes=("n1",))], "p"),
    "its person may not start jobs any more": (
        [team("d", 8, hard=4), queues("p", "d", 8, nodes=("n1",), user="bob")],
        "p",
    ),
    "its person holds as much as one may by now": (
        [team("d", 16, hard=8), node("n3"), runs("j", "d", 8, "n3"), queues("p", "d", 8, nodes=("n1",))],
        "p",
    ),
    "another pod is on its node and stays": (
        [node("n3", others=ForeignUsage(((NVIDIA, GPU),))), queues("p", "a", 8, nodes=("n3",))],
        "p",
    ),
    "of two promises of one place the later one": (
        [node("n3"), queues("p", "a", 5, nodes=("n3",), waited=HOUR), queues("q", "a", 5, nodes=("n3",))],
        "q",
    ),
    "a job of the team with a notice has the quota": ([LOW, HIGH], ""),
    "a job of the team without a notice has the quota": ([runs("j", "a", 8, "n1", priority=10), HIGH], "p"),
}


@pytest.mark.parametrize(("things", "expected"), BROKEN.values(), ids=BROKEN)
def test_stale_reservations(things: list[Team | Node | Job], expected: str) -> None:
    assert " ".join(job.id for job in stale_reservations(cluster_state(*TEAMS, *things))) == expected


JOBS = st.lists(
    st.builds(
        lambda number, of, gpus, at, preemptible, priority, idle, age: runs(
            f"j{number}", of, gpus, at, preemptible=preemptible, priority=priority, idle=idle, age=age * MINUTE
        ),
        st.integers(0, 99),
        st.sampled_from("abc"),
        st.integers(1, 4),
        st.sampled_from(["n1", "n2"]),
        st.booleans(),
        st.sampled_from([10, 100]),
        st.booleans(),
        st.integers(0, 60),
    ),
    max_size=8,
    unique_by=lambda job: job.id,
)


@given(JOBS, st.integers(1, 8), st.randoms())
@settings(max_examples=150)
def test_victims_are_sufficient_necessary_and_preemptible(jobs: list[Job], gpus: int, chance: Any) -> None:
    here = cluster_state(*TEAMS, *jobs)
    request = wants("x", "a", gpus)
    decision = admit(request, here, NOW)
    chance.shuffle(jobs)
    assert admit(request, cluster_state(*TEAMS, *jobs), NOW) == decision, "the order of the input matters"
    if not isinstance(decision, Preempt):
        return
    victims = [here.jobs[name] for name in decision.victims]
    assert all(job.preemptible for job in victims)
    assert all(stop_time(job, here, NOW) >= (job.started or NOW) + 15 * MINUTE for job in victims)
    for one in (None, *victims):
        left = cluster_state(*TEAMS, *(job for job in jobs if job not in victims or job is one))
        free = left.node_infos[decision.nodes[0]].free(NVIDIA).gpus
        assert (free >= gpus * GPU) == (one is None)


@given(JOBS, st.integers(1, 8))
@settings(max_examples=150)
def test_victims_of_the_own_team_are_sufficient_and_chosen_once(jobs: list[Job], gpus: int) -> None:
    teams = (team("a", 8, preempt_within_team=True), *TEAMS[1:])
    here = cluster_state(*teams, *jobs, queues("x", "a", gpus, priority=50))
    decision = admit(here.jobs["x"], here, NOW)
    if not isinstance(decision, Preempt):
        return
    victims = [here.jobs[name] for name in decision.victims]
    assert all(job.preemptible or (job.team == "a" and job.priority < 50) for job in victims)
    for one in (None, *victims):
        left = cluster_state(*teams, *(job for job in jobs if job not in victims or job is one))
        room = left.node_infos[decision.nodes[0]]
        left.put(queues("x", "a", gpus, priority=50, nodes=decision.nodes))
        enough = room.free(NVIDIA).gpus >= gpus * GPU and left.available_quota("a", "a100") >= 0
        assert (enough and not share_overrun("a", "a100", room, left)) == (one is None)
    assert "x" in notice_pass(here, NOW)
    assert notice_pass(here, NOW) == {}
    assert (stale_reservations(here), unneeded_victims(here)) == ((), ())
