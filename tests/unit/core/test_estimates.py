"""Estimates of starts: their ranges, the jobs without one, and what an estimate never claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.estimates import (
    LEAST_RUNS,
    SPREAD,
    Estimate,
    KnownEnds,
    RunTime,
    RunTimes,
    estimate_starts,
    first_in_queue,
    similar,
    simulate,
    still_running,
)
from tests.unit.core.factories import HOUR, HURRIED, MINUTE, NOW, cluster_state, node, queues, runs, team, wants

VISION = team("vision", 8)


def lasted(minutes: Sequence[float], of: str = "vision", template: str = "") -> RunTimes:
    return RunTimes.from_run_times(RunTime(of, template, 60.0 * one) for one in minutes)


def estimated(here: ClusterState, durations: RunTimes, until: dict[str, datetime] | None = None) -> dict[str, Estimate]:
    snapshot, chance = here.snapshot(), Random(7).random
    known = KnownEnds(durations, until or {})
    return estimate_starts(snapshot, [simulate(snapshot, known, NOW, similar(chance)) for _ in range(20)], durations)


FULL = runs("r", "vision", 8, "n1")  # for an hour
TWO_HOURS = lasted([120.0] * LEAST_RUNS)
AN_HOUR_LEFT = (60, 60)
NEXT = queues("q", "vision", 8)
PROMISED = replace(NEXT, nodes=("n1",))
BORROWER, FIRST, QUEUE = (
    replace(FULL, preemptible=True),
    (FULL, NEXT),
    (FULL, queues("p", "vision", 8, waited=HOUR), NEXT),
)
UNKNOWN, FEW = lasted([]), [120.0] * (LEAST_RUNS - 1)
STARTS = {
    "on an empty cluster it starts now, whatever is known": ((NEXT,), UNKNOWN, (0, 0)),
    "it starts when the job that holds its GPUs has run as long as others did": (FIRST, TWO_HOURS, AN_HOUR_LEFT),
    "of too few ended jobs nothing is concluded": (FIRST, lasted(FEW), None),
    "those that ended sooner than the running one has run do not count": (FIRST, lasted(FEW + [30.0] * 50), None),
    "where a team has no history, jobs of other teams from the same template say how long": (
        FIRST,
        lasted([120.0] * LEAST_RUNS, of="speech"),
        AN_HOUR_LEFT,
    ),
    "and where the template has none, all jobs do": (
        FIRST,
        lasted([120.0] * LEAST_RUNS, of="speech", template="other"),
        AN_HOUR_LEFT,
    ),
    "what is being stopped is gone in a moment": ((replace(FULL, state=JobState.STOPPING), NEXT), UNKNOWN, (1, 1)),
    "a victim is gone when its notice is over": (
        (replace(BORROWER, notice=NOW + 3 * MINUTE), PROMISED),
        UNKNOWN,
        (3, 3),
    ),
    "a borrower leaves after its notice, whatever is known": ((BORROWER, NEXT), UNKNOWN, (5, 5)),
    "what is free now can be had now": ((runs("r", "vision", 4, "n1"), queues("q", "vision", 4)), UNKNOWN, (0, 0)),
    "a job behind another one waits for that one as well": (QUEUE, TWO_HOURS, (180, 180)),
    "that one may be short or long: a range": (QUEUE, lasted([120.0] * LEAST_RUNS + [1.0] * LEAST_RUNS), (61, 180)),
    "what never fits is not estimated": ((queues("q", "vision", 9),), TWO_HOURS, None),
    "the end of a job that has run longer than all others is unknown": (
        (runs("r", "vision", 8, "n1", age=10 * HOUR), NEXT),
        TWO_HOURS,
        None,
    ),
}


@pytest.mark.parametrize(("things", "durations", "minutes"), STARTS.values(), ids=STARTS)
def test_a_job_starts_when_those_before_it_have_ended(
    things: Sequence[Job], durations: RunTimes, minutes: tuple[int, int] | None
) -> None:
    found = estimated(cluster_state(VISION, node("n1"), *things), durations).get("q")
    assert (found and tuple(round((at - NOW) / MINUTE) for at in (found.earliest, found.latest))) == minutes


def test_lifetime_bounds_the_estimate() -> None:
    found = estimated(cluster_state(VISION, node("n1"), FULL, NEXT), TWO_HOURS, {"r": NOW + 10 * MINUTE})
    assert found["q"].latest == NOW + 10 * MINUTE


def test_job_that_waits_for_an_approval_has_no_estimate() -> None:
    asks = wants("q", "vision", 1, state=JobState.PENDING_APPROVAL)
    assert estimated(cluster_state(VISION, node("n1"), asks), TWO_HOURS) == {}


def test_requeued_victim_is_simulated_as_well() -> None:
    here = cluster_state(
        VISION,
        node("n1"),
        runs("b", "vision", 8, "n1", preemptible=True, requeue=True),
        NEXT,
        queues("o", "vision", 8, preemptible=True),
        cluster=HURRIED,
    )
    found = estimated(here, lasted([60.0] * LEAST_RUNS))
    assert found["q"].latest == NOW
    assert found["o"].earliest >= NOW + HOUR, "the borrower that left was there before, and comes first"


def test_too_few_simulations_give_no_estimate() -> None:
    here = cluster_state(VISION, node("n1"), NEXT).snapshot()
    assert estimate_starts(here, [{"q": NOW}] * 7, TWO_HOURS) == {}


def test_an_estimate_counts_the_jobs_that_it_comes_from() -> None:
    assert estimated(cluster_state(VISION, node("n1"), FULL, NEXT), TWO_HOURS)["q"].jobs == LEAST_RUNS


def test_an_estimate_that_has_passed_is_not_told() -> None:
    one = Estimate(NOW, NOW + HOUR)
    assert one.remaining(NOW + MINUTE) == Estimate(NOW + MINUTE, NOW + HOUR)
    assert one.remaining(NOW + HOUR + MINUTE) is None


def test_only_the_first_of_the_queue_are_looked_at() -> None:
    many = [queues(f"q{at:03}", "vision", 1, waited=HOUR - at * MINUTE / 60) for at in range(100)]
    other = queues("s", "speech", 1)
    here = cluster_state(VISION, team("speech", 8), node("n1"), FULL, *many, other).snapshot()
    kept = {job.id for job in first_in_queue(here, NOW, most=50, each=20).jobs}
    assert kept == {"r", "s", *(f"q{at:03}" for at in range(20))}
    assert len(first_in_queue(here, NOW, most=10, each=20).jobs) == 11


LONG = st.lists(st.integers(1, 3000), min_size=LEAST_RUNS, max_size=30)


@given(LONG, st.lists(st.tuples(st.integers(1, 8), st.integers(1, 600)), max_size=4), st.integers(2, 5), st.booleans())
@settings(max_examples=40)
def test_later_job_in_a_queue_never_starts_earlier(
    lengths: list[int], running: list[tuple[int, int]], waiting: int, preemptible: bool
) -> None:
    """Of those that ask for the same: a smaller job may pass."""
    things: list[Job] = []
    free = 8
    for at, (gpus, age) in enumerate(running):
        if gpus <= free:
            free -= gpus
            things.append(runs(f"r{at}", "vision", gpus, "n1", age=age * MINUTE))
    things += [
        queues(f"q{at}", "vision", 3, waited=HOUR - at * MINUTE, preemptible=preemptible) for at in range(waiting)
    ]
    found = estimated(cluster_state(VISION, node("n1"), *things), lasted(lengths))
    ranges = [found[f"q{at}"] for at in range(waiting) if f"q{at}" in found]
    assert ranges == sorted(ranges, key=lambda one: (one.earliest, one.latest))
    assert [one.latest for one in ranges] == sorted(one.latest for one in ranges)
    assert [f"q{at}" for at in range(len(ranges))] == sorted(found), "nobody behind an unknown"
    assert all(NOW <= one.earliest <= one.latest for one in ranges)


def test_jobs_that_run_on_make_long_run_times_likelier() -> None:
    ended = [RunTime("vision", "", 60.0)] * LEAST_RUNS + [RunTime("vision", "", 7200.0)] * LEAST_RUNS
    running = still_running([runs(f"r{at}", "vision", 1, "n1", age=HOUR) for at in range(2 * LEAST_RUNS)], NOW)
    for told, short in ((ended, 0.5), ([*ended, *running], 0.25)):
        known = RunTimes.from_run_times(told)
        left = [known.seconds_left(NEXT, 0.0, partial(float, at / 100)) for at in (0, 24, 26, 49, 51, 99)]
        assert left == [60.0 if at / 100 < short else 7200.0 for at in (0, 24, 26, 49, 51, 99)]
        assert known.count(NEXT) == 2 * LEAST_RUNS, "only ended jobs count as evidence"


def test_thousands_of_running_jobs_displace_no_ended_one() -> None:
    running = [RunTime("vision", "", 60.0, ended=False)] * 3000
    assert RunTimes.from_run_times([*running, *([RunTime("vision", "", 60.0)] * LEAST_RUNS)]).count(NEXT) == LEAST_RUNS


def test_job_may_run_longer_than_all_that_have_ended() -> None:
    ended = [RunTime("vision", "", 60.0)] * LEAST_RUNS
    known = RunTimes.from_run_times([*ended, *still_running([FULL], NOW)])
    left = known.seconds_left(NEXT, 0.0, lambda: 0.99)
    assert left is not None
    assert left > HOUR.total_seconds()


def test_run_times_are_similar_within_a_simulation_and_uniform_over_all() -> None:
    chance = Random(3).random
    plays = [similar(chance) for _ in range(400)]
    picks = [[int(100 * pick()) for _ in range(50)] for pick in plays]
    for play_of in picks:
        begin = play_of[0]
        around = [min((one - begin) % 100, (begin - one) % 100) for one in play_of]
        assert max(around) <= 100 * SPREAD
    counts = [sum(one // 10 == tenth for play_of in picks for one in play_of) for tenth in range(10)]
    assert min(counts) > 0.7 * len(plays) * 5
    assert max(counts) < 1.3 * len(plays) * 5
