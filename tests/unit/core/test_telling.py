"""How notices read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dlspawner.core.text import minutes, moment, with_time

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
WHEN = {
    "a moment that has passed": (timedelta(seconds=-5), "now"),
    "seconds": (timedelta(seconds=59), "in less than a minute"),
    "a minute": (timedelta(seconds=70), "at 12:01 UTC, in 1 minute"),
    "minutes": (timedelta(minutes=5), "at 12:05 UTC, in 5 minutes"),
    "an hour and a half": (timedelta(minutes=89), "at 13:29 UTC, in 89 minutes"),
    "hours": (timedelta(hours=3), "at 15:00 UTC, in 3 hours"),
    "tomorrow, as a date": (timedelta(hours=14), "on 05 May at 02:00 UTC, in 14 hours"),
    "days": (timedelta(days=3), "on 07 May at 12:00 UTC, in 3 days"),
}


@pytest.mark.parametrize("case", WHEN)
def test_moment_has_the_clock_time_and_the_distance(case: str) -> None:
    ahead, words = WHEN[case]
    assert moment(NOW + ahead, NOW) == words


@pytest.mark.parametrize(("seconds", "words"), [(60, "1 minute"), (90, "1.5 minutes"), (300, "5 minutes")])
def test_span_is_in_minutes(seconds: int, words: str) -> None:
    assert minutes(timedelta(seconds=seconds)) == words


def test_time_of_another_zone_is_in_utc() -> None:
    there = timezone(timedelta(hours=2))
    assert moment(datetime(2026, 5, 4, 14, 5, tzinfo=there), NOW) == "at 12:05 UTC, in 5 minutes"


def test_time_is_put_in_its_place_or_at_the_end() -> None:
    until = NOW + timedelta(minutes=5)
    assert with_time("It stops {when}.", until, NOW) == "It stops at 12:05 UTC, in 5 minutes."
    assert with_time("It stops.", until, NOW) == "It stops. (at 12:05 UTC, in 5 minutes)"
    assert with_time("It stops {when} or so.", None, NOW) == "It stops or so."
