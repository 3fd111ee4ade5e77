"""Amounts and times in JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dlspawner.core.text import amount, time


@pytest.mark.parametrize(
    ("milli", "expected"),
    [
        pytest.param(2000, 2, id="whole units have no point"),
        pytest.param(500, 0.5, id="a half"),
        pytest.param(1, 0.001, id="the smallest"),
        pytest.param(0, 0, id="nothing"),
    ],
)
def test_amounts_are_numbers_of_whole_units(milli: int, expected: float) -> None:
    told = amount(milli)
    assert (told, type(told)) == (expected, type(expected))


def test_times_are_in_utc_and_end_in_z() -> None:
    noon = datetime(2031, 5, 1, 12, tzinfo=UTC)
    assert time(noon) == "2031-05-01T12:00:00Z"
    assert time(noon.astimezone(timezone(timedelta(hours=2)))) == "2031-05-01T12:00:00Z"
    assert datetime.fromisoformat(time(noon)) == noon
    assert time(None) is None
