"""GPU-hours of a job by day: which spans count as what, exactly, over midnight and over any overlap."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from dlspawner.core.accounting import (
    NONE,
    PER_HOUR,
    GpuTime,
    JobTimeline,
    Step,
    by_day,
    final_gpu_time,
    gpu_time_by_day,
    means,
    measured,
    queued,
    waits,
)
from dlspawner.core.job import JobState

DAY, NEXT = date(2030, 1, 1), date(2030, 1, 2)
TWO = 2000
_STATES = {
    "S": JobState.SUBMITTED,
    "A": JobState.PENDING_APPROVAL,
    "Q": JobState.QUEUED,
    "L": JobState.LOGIN_REQUIRED,
    "T": JobState.STARTING,
    "R": JobState.RUNNING,
    "X": JobState.STOPPING,
    "E": JobState.ENDED,
}


def at(hour: float) -> datetime:
    """So many hours after noon of the first day."""
    return datetime(2030, 1, 1, 12, tzinfo=UTC) + timedelta(hours=hour)


def steps(told: str) -> tuple[Step, ...]:
    """``Q0 T1 R2 E5``: queued at noon, and so on."""
    return tuple((at(float(one[1:])), _STATES[one[0]]) for one in told.split())


def hours(found: dict[date, GpuTime]) -> dict[date, tuple[float, float, float]]:
    return {
        day: (one.requested / PER_HOUR, one.allocated / PER_HOUR, one.reclaimed / PER_HOUR)
        for day, one in found.items()
    }


SPENT = {
    "a job that never waits requests what it holds": ("T0 R1 E3", 9, {DAY: (6, 6, 0)}),
    "waiting is asked for, not held": ("Q0 T2 R2 E3", 9, {DAY: (6, 2, 0)}),
    "so is waiting for approval": ("A0 Q1 E3", 9, {DAY: (6, 0, 0)}),
    "what goes on counts until now": ("Q0 T1", 3, {DAY: (6, 4, 0)}),
    "GPUs are held until the pod is gone": ("T0 R1 X3 E4", 9, {DAY: (8, 8, 0)}),
    "what waits again after a preemption holds nothing meanwhile": ("T0 R1 X2 Q3 T5 R5 E6", 9, {DAY: (12, 8, 0)}),
    "a login that is waited for is asked for, too": ("T0 Q1 L2 Q3 E4", 9, {DAY: (8, 2, 0)}),
    "between an end and being found again nothing is asked for": ("T0 R1 E3 R4 E5", 9, {DAY: (8, 8, 0)}),
    "midnight divides": ("T10 R10 E14", 20, {DAY: (4, 4, 0), NEXT: (4, 4, 0)}),
    "an event with an earlier time than the last one takes no time": ("T0 R2 X1 E3", 9, {DAY: (6, 6, 0)}),
    "an event of the future has not happened": ("T0 R5", 3, {DAY: (6, 6, 0)}),
    "a job of the future has no hours": ("T5 R5", 3, {}),
    "a job without events has none": ("", 3, {}),
    "a job that is refused at once requested nothing": ("S0 E1", 3, {}),
}


@pytest.mark.parametrize(("told", "now", "expected"), SPENT.values(), ids=SPENT)
def test_requested_and_allocated_hours(told: str, now: float, expected: dict[date, tuple[float, float, float]]) -> None:
    assert hours(gpu_time_by_day(JobTimeline(TWO, steps(told)), at(now))) == expected


def test_job_that_grows_is_charged_what_it_had_at_each_moment() -> None:
    life = JobTimeline(TWO, steps("T0 R1 R2 Q3 T4 E5"), sizes=(1000, 1000, 3000, 1000, 1000, 1000))
    assert hours(gpu_time_by_day(life, at(9))) == {DAY: (1 + 1 + 3 + 1 + 1, 1 + 1 + 3 + 1, 0)}


RECLAIMED = {
    "nothing is reclaimed at the moment of the stop": (None, 4, 0),
    "GPUs are reclaimed from then on": (None, 6, 4),
    "until the person asks again": (6, 9, 4),
    "a job that is requeued at once gave nothing back": (4, 9, 0),
    "for a day at most": (None, 60, 48),
    "also when it is requeued after that": (40, 60, 48),
}


@pytest.mark.parametrize(("again", "now", "expected"), RECLAIMED.values(), ids=RECLAIMED)
def test_reclaimed_hours(again: float | None, now: float, expected: float) -> None:
    life = JobTimeline(TWO, steps("T0 R1 X3 E4"), culled=True, requested_again=None if again is None else at(again))
    assert sum(one for _, _, one in hours(gpu_time_by_day(life, at(now))).values()) == expected
    assert final_gpu_time(life) == gpu_time_by_day(life, at(1000))


def test_job_that_was_not_culled_reclaims_nothing() -> None:
    assert all(not one.reclaimed for one in gpu_time_by_day(JobTimeline(TWO, steps("T0 R1 E4")), at(60)).values())


_LIVES = some.lists(some.tuples(some.integers(-200, 3_000), some.sampled_from(JobState)), max_size=9)
MIDNIGHT = datetime(2030, 1, 2, tzinfo=UTC)


def life_of(drawn: list[tuple[int, JobState]], gpus: int = 1000) -> JobTimeline:
    """Times in seconds around a midnight, as drawn, so that some go backwards."""
    return JobTimeline(gpus, tuple((MIDNIGHT + timedelta(seconds=second - 1000), state) for second, state in drawn))


@given(_LIVES, some.integers(0, 3_000))
def test_hours_equal_a_count_by_seconds(drawn: list[tuple[int, JobState]], now: int) -> None:
    counted: dict[str, Counter[date]] = {"requested": Counter(), "allocated": Counter()}
    times, latest = [], None
    for second, state in drawn:
        latest = second if latest is None else max(latest, second)
        times.append((latest, state))
    for second in range(-200, now):
        state = next((known for at_, known in reversed(times) if at_ <= second), JobState.SUBMITTED)
        day = (MIDNIGHT + timedelta(seconds=second - 1000)).date()
        counted["requested"][day] += state not in {JobState.SUBMITTED, JobState.ENDED}
        counted["allocated"][day] += state.holds
    found = gpu_time_by_day(life_of(drawn), MIDNIGHT + timedelta(seconds=now - 1000))
    for name, seconds in counted.items():
        assert {day: getattr(one, name) // 1000 for day, one in found.items() if getattr(one, name)} == {
            day: number for day, number in seconds.items() if number
        }


@given(_LIVES, some.integers(-200, 3_000), some.integers(0, 3_000))
def test_hours_of_two_parts_add_up(drawn: list[tuple[int, JobState]], cut: int, now: int) -> None:
    life, when = life_of(drawn), MIDNIGHT + timedelta(seconds=now - 1000)
    middle = min(when, MIDNIGHT + timedelta(seconds=cut - 1000))
    parts = [gpu_time_by_day(life, middle), gpu_time_by_day(JobTimeline(life.gpus, life.steps, since=middle), when)]
    together: dict[date, GpuTime] = {}
    for part in parts:
        for day, one in part.items():
            together[day] = together.get(day, NONE) + one
    assert {day: one for day, one in together.items() if one != NONE} == {
        day: one for day, one in gpu_time_by_day(life, when).items() if one != NONE
    }


@given(some.datetimes(timezones=some.just(UTC)), some.timedeltas(timedelta(0), timedelta(days=40)))
def test_days_divide_a_span_and_leave_nothing_out(begin: datetime, length: timedelta) -> None:
    end = min(begin + length, datetime.max.replace(tzinfo=UTC)) if begin.year < 9999 else begin
    days = list(by_day((begin, end)))
    assert sum((part for _, part in days), timedelta(0)) == end - begin
    assert [day for day, _ in days] == sorted({day for day, _ in days})
    assert all(timedelta(0) < part <= timedelta(days=1) for _, part in days)


def test_the_use_of_gpus_is_their_mean_over_the_time() -> None:
    found = measured([100.0, 50.0, 0.0], (at(0), at(1)))
    assert found == {DAY: GpuTime(measured=3 * PER_HOUR, used=PER_HOUR * 3 // 2)}
    assert found[DAY].hours()["used"] == 1.5


def test_use_without_measurements_is_unknown() -> None:
    assert GpuTime(allocated=PER_HOUR).hours()["used"] is None


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("T0 R1 E2", [(0, 0)]),
        ("Q0 T2 R3 E4", [(2, 2)]),
        ("A0 Q3 T4 E5", [(4, 1)]),  # approval is no wait in the queue
        ("Q0 T1 R2 X3 Q4 T7 E9", [(1, 1), (7, 3)]),  # anew after a preemption
        ("Q0", []),
    ],
)
def test_wait_is_the_time_in_the_queue_until_admission(told: str, expected: list[tuple[float, float]]) -> None:
    found = waits(JobTimeline(TWO, steps(told)), at(9))
    assert list(found) == [(at(admitted), timedelta(hours=length)) for admitted, length in expected]


def test_means_add_up_what_overlaps_in_a_step() -> None:
    jobs = [("gpu", 4, (at(-1), at(0.5))), ("gpu", 2, (at(0), at(9))), ("big", 1, (at(1.5), at(2)))]
    jobs += [("late", 1, (at(3), at(4))), ("early", 1, (at(-2), at(0)))]
    assert means(jobs, at(0), timedelta(hours=1), 3) == {"gpu": [4, 2, 2], "big": [0, 0.5, 0]}
    assert queued(JobTimeline(TWO, steps("Q0 T1 R2 X3 Q4")), at(6)) == [(at(0), at(1)), (at(4), at(6))]
