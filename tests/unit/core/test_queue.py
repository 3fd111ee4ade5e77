"""The queue: order, positions, and backfill with its limits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dlspawner.core.decisions import Admit, Alternative
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import admission, queue
from dlspawner.core.scheduling.admission import admit, find_alternatives
from dlspawner.core.scheduling.cluster_state import ClusterState, DecayedUsage
from dlspawner.core.units import GPU
from tests.unit.core.factories import (
    GPU_HOUR,
    HOUR,
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

TEAMS = (team("a", 8), team("b", 8))

ORDERED: dict[str, tuple[list[Job], dict[str, float], str]] = {
    "the earlier job": ([queues("late", "a"), queues("early", "a", waited=HOUR)], {}, "early late"),
    "the higher priority": ([queues("low", "a", waited=HOUR), queues("high", "a", priority=100)], {}, "high low"),
    "the team that used less": ([queues("much", "a", waited=HOUR), queues("little", "b")], {"a": 9.0}, "little much"),
    "guaranteed jobs before preemptible ones": (
        [queues("borrower", "a", preemptible=True, priority=100, waited=HOUR), queues("owner", "a")],
        {},
        "owner borrower",
    ),
    "jobs without GPUs when GPUs are given out": (
        [queues("cpu", "a", 0, waited=HOUR), queues("gpu", "a")],
        {},
        "gpu cpu",
    ),
    "the earlier of the jobs without GPUs, whatever was used": (
        [queues("much", "a", 0, waited=HOUR), queues("little", "b", 0)],
        {"a": 9.0},
        "much little",
    ),
    "no job that waits for a login or an approval": (
        [
            replace(queues("login", "a"), state=JobState.LOGIN_REQUIRED),
            replace(queues("asks", "a"), state=JobState.PENDING_APPROVAL),
            queues("j", "a"),
        ],
        {},
        "j",
    ),
}


@pytest.mark.parametrize(("jobs", "used", "expected"), ORDERED.values(), ids=ORDERED)
def test_queue_order(jobs: list[Job], used: dict[str, float], expected: str) -> None:
    here = cluster_state(*TEAMS, node("n1"), *jobs)
    here.usage = {of: DecayedUsage(hours * GPU_HOUR, NOW) for of, hours in used.items()}
    assert " ".join(job.id for job in queue.order(here, NOW)) == expected


def test_usage_is_seen_in_relation_to_the_quota() -> None:
    here = cluster_state(team("small", 1), team("large", 16), node("n1"), queues("s", "small"), queues("l", "large"))
    here.usage = {"small": DecayedUsage(2 * GPU_HOUR, NOW), "large": DecayedUsage(8 * GPU_HOUR, NOW)}
    assert [job.id for job in queue.order(here, NOW)] == ["l", "s"]


def test_position_counts_jobs_that_wait_for_the_same_gpus() -> None:
    here = cluster_state(
        *TEAMS,
        node("n1"),
        queues("a1", "a", waited=HOUR),
        queues("a2", "a", waited=2 * HOUR),
        queues("b1", "b", waited=3 * HOUR),
        queues("p1", "a", preemptible=True),
        queues("v1", "a", kind="v100"),
    )

    assert queue.position(here.jobs["a1"], here, NOW) == 2
    assert queue.position(wants("new", "a"), here, NOW) == 3
    assert queue.position(here.jobs["p1"], here, NOW) == 1


def test_positions_on_idle_gpus_count_all_teams_in_the_order_of_the_queue() -> None:
    jobs = [queues(f"{of}{number}", of, preemptible=True, waited=number * MINUTE) for of in "ab" for number in range(3)]
    here = cluster_state(*TEAMS, node("n1"), *jobs)
    here.usage = {"a": DecayedUsage(GPU_HOUR, NOW)}
    ordered = queue.order(here, NOW)
    assert [queue.position(job, here, NOW) for job in ordered] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("gpus", "used"), [(0, GPU_HOUR), (1, 0.0)], ids=["without GPUs", "with equal usage"])
def test_positions_that_usage_does_not_decide_follow_the_submit_times(gpus: int, used: float) -> None:
    more = {"preemptible": gpus > 0}
    jobs = (queues("a1", "a", gpus, **more), queues("b1", "b", gpus, waited=HOUR, **more))
    here = cluster_state(*TEAMS, node("n1"), *jobs, queues("b2", "b", gpus, **more))
    here.usage = {"b": DecayedUsage(used, NOW)}
    ordered = queue.order(here, NOW)
    assert [(job.id, queue.position(job, here, NOW)) for job in ordered] == [("b1", 1), ("a1", 2), ("b2", 3)]


FULL = runs("low", "a", 1, "n1", priority=10), runs("high", "a", 7, "n1", priority=100)
CAPPED = [queues(f"mine{number}", "a", 1, user="eve", waited=2 * HOUR) for number in range(20)]
BIG = queues("big", "a", 8, waited=HOUR)
HALF, SMALL = (team("a", 8), node("n1"), runs("r", "a", 4, "n1")), queues("small", "a", 1)
# The cluster, and the jobs that start now.
PASSED: dict[str, tuple[ClusterState, list[str]]] = {
    "a small job passes a big one that cannot start": (cluster_state(*HALF, queues("big", "a", 8), SMALL), ["small"]),
    "a small job with enough victims passes a big one with too few": (
        cluster_state(
            *(team("a", 8, preempt_within_team=True), node("n1"), *FULL),
            *(queues("big", "a", 8, priority=100), replace(SMALL, priority=50)),
            cluster=HURRIED,
        ),
        ["small"],
    ),
    "an old job that wants a whole node is not passed": (cluster_state(*HALF, BIG, SMALL), []),
    "an old borrower that wants a whole node is not passed": (
        cluster_state(
            *(*TEAMS, node("n1"), runs("r", "a", 4, "n1", preemptible=True)),
            *(replace(BIG, preemptible=True), queues("s", "b", 1, preemptible=True)),
        ),
        [],
    ),
    "a job that waits for its user cap blocks no other": (
        cluster_state(
            *(team("a", 8, hard=4), node("n1"), runs("r", "a", 4, "n1")),
            *(queues("mine", "a", 4, waited=HOUR), queues("other", "a", 4, user="bob")),
        ),
        ["other"],
    ),
    "a big job behind many with an own cap is not passed": (
        cluster_state(
            *(team("a", 8, hard=4), node("n1"), runs("r", "a", 4, "n1", user="eve"), runs("s", "a", 1, "n1")),
            *(*CAPPED, queues("big", "a", 4, user="bob", waited=HOUR), SMALL),
        ),
        [],
    ),
    "an old job of a team without open nodes is not passed by its team on nodes of others": (
        cluster_state(
            *(team("a", 16), team("b", 8), node("n1", cordoned=True), node("n2", cordoned=True), node("n3")),
            *(runs("r", "a", 1, "n3"), BIG, SMALL),
        ),
        [],
    ),
    "a job with less CPU than one that fits nowhere starts": (
        cluster_state(
            *(team("a", 8), node("n1", cpu_milli=8000), queues("j", "a", cpu=4500)),
            *(queues("large", "a", cpu=4500), queues("less", "a", cpu=3000)),
        ),
        ["j", "less"],
    ),
    "a reservation is kept against a higher priority": (
        cluster_state(
            *(team("a", 8), node("n1")),
            *(queues("promised", "a", 8, nodes=("n1",), priority=10), queues("higher", "a", 1, priority=100)),
        ),
        ["promised"],
    ),
}


@pytest.mark.parametrize(("here", "started"), PASSED.values(), ids=PASSED)
def test_jobs_that_start(here: ClusterState, started: list[str]) -> None:
    assert one_pass(here, NOW) == started


def test_small_job_passes_on_a_node_other_than_the_closest_to_holding_a_big_one() -> None:
    here = cluster_state(
        *(team("a", 16), node("n1"), node("n2"), runs("r", "a", 1, "n1"), runs("q", "a", 4, "n2")),
        *(BIG, queues("s", "a", 2)),
    )
    assert one_pass(here, NOW) == ["s"]
    assert here.jobs["s"].nodes == ("n2",)


def test_job_no_smaller_than_one_that_fits_nowhere_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = admission.evaluate

    def decide(job: Job, *more: Any) -> Any:
        asked.append(job.id)
        return real(job, *more)

    monkeypatch.setattr(admission, "evaluate", decide)
    full = runs("r", "b", 8, "n1")
    here = cluster_state(*TEAMS, node("n1"), full, *(queues(f"j{cpu}", "a", 8, cpu=cpu) for cpu in range(1000, 2000)))

    assert one_pass(here, NOW) == []
    assert asked == ["j1000"]


def test_job_that_waits_for_a_closed_node_blocks_no_other() -> None:
    closed, small = node("n2", cordoned=True), [queues(f"small{number}", "a", 1) for number in range(2)]
    here = cluster_state(team("a", 8), node("n1", 4), closed, queues("big", "a", 8, waited=HOUR), small[0])
    assert one_pass(here, NOW) == ["small0"]
    here.put(small[1])
    here.put_node(replace(closed, cordoned=False))
    assert one_pass(here, NOW) == []


def test_alternatives_would_start() -> None:
    here = cluster_state(team("a", {"a100": 4, "v100": 8}), node("n1"), node("v", 8, "v100"), runs("r", "a", 2, "n1"))
    request = wants("j", "a", 4)
    found = find_alternatives(request, here, NOW)

    assert found == (
        Alternative("a100", 4000, True),
        Alternative("a100", 2000, False),
        Alternative("v100", 4000, False),
    )


def test_alternatives_to_parts_of_a_gpu_are_parts_and_gpus() -> None:
    here = cluster_state(node("n1"), node("m", 7, "a100-1g"), runs("r", "b", 5, "m", kind="a100-1g"))
    found = find_alternatives(wants("j", "default", 3, kind="a100-1g"), here, NOW)
    assert found == (Alternative("a100-1g", 284, False), Alternative("a100", 3000, False))


def test_no_alternatives_where_nothing_would_start() -> None:
    here = cluster_state(team("a", 4), node("n1", 4), runs("r", "a", 4, "n1"))
    assert find_alternatives(wants("j", "a", 2), here, NOW) == ()


def test_jobs_start_until_nothing_fits() -> None:
    here = cluster_state(*TEAMS, node("n1"), node("n2"), *(queues(f"{of}{n}", of, 3) for of in "ab" for n in range(4)))
    started = one_pass(here, NOW)
    assert sorted(started) == ["a0", "a1", "b0", "b1"]
    assert here.guaranteed("a", "a100") == 6 * GPU
    assert not any(isinstance(admit(job, here, NOW), Admit) for job in queue.order(here, NOW))


def test_a_smaller_part_of_a_gpu_starts_behind_a_larger_one_that_waits() -> None:
    """The quota is kept for *big*, which waits for *runs*: beside it there is some for one unit, none for two."""
    nodes = (node("n1", 4, "a100-1g"), node("n2", 2, "a100-1g"))
    jobs = [queues("big", "a", 4, kind="a100-1g", waited=HOUR)]
    jobs += [queues(name, "a", units, kind="a100-1g") for name, units in (("2-mid", 2), ("3-small", 1))]
    quota = {"a100-1g": Fraction(6 * 142, 1000)}
    here = cluster_state(*nodes, *jobs, runs("runs", "a", 1, "n1", kind="a100-1g"), team("a", quota))
    assert [job.id for job, _ in admission.schedule(here, NOW)] == ["3-small"]


def test_jobs_like_one_that_is_skipped_are_passed_over_up_to_the_next_priority_without_a_look_at_each() -> None:
    alike = [queues(f"j{number:02}", "a", 2, waited=(50 - number) * MINUTE) for number in range(40)]
    low = [replace(job, id=f"low-{job.id}", priority=-1) for job in alike]
    promised = replace(queues("promised", "a", 2), nodes=("n1",))
    here = cluster_state(*TEAMS, node("n1"), node("n2"), *alike, *low, promised, queues("small", "a", 1))
    looked: list[str] = []

    def skip(job: Job) -> bool:
        looked.append(job.id)
        return job.request.gpus == 2 * GPU and not job.nodes

    assert [job.id for job in queue.in_order(here, NOW, skip)] == ["promised", "small"]
    assert set(looked) == {"j00", "low-j00", "promised", "small"}


def test_job_that_its_own_team_keeps_waiting_is_looked_at_again_when_its_team_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = (runs("x", "a", 5, "n1"), runs("y", "a", 5, "n2"), runs("other", "b", 1, "n3"))
    here = cluster_state(team("a", 16), team("b", 8), node("n1"), node("n2"), node("n3"), *held, queues("j", "a", 6))
    looked, evaluate = [], admission.evaluate
    monkeypatch.setattr(admission, "evaluate", lambda *asked: looked.append(asked[0].id) or evaluate(*asked))
    for gone, started, looks in (("", [], 1), ("other", [], 1), ("x", ["j"], 2)):
        here.remove(gone)
        assert one_pass(here, NOW) == started, gone
        assert looked == ["j"] * looks, gone
