"""Queries of GPU-hours, and their CSV."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime

import pytest

from dlspawner.manager.model.gpu_hours import GpuHoursQuery, GroupBy, cell, gpu_hours_query, write_csv

NOW = datetime(2030, 3, 31, 23, 30, tzinfo=UTC)
FORMULA = "=cmd|'/c calc'!A1"


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, ("2030-03-02", "2030-03-31")),
        ("2030-03-01", "2030-03-01", ("2030-03-01", "2030-03-01")),
        (None, "2029-12-31", ("2029-12-02", "2029-12-31")),
        (None, "0001-01-01", ("0001-01-01", "0001-01-01")),
        ("2030-04-01", None, "after until"),
        ("2000-01-01", None, "At most 1100 days"),
    ],
)
def test_query_of_days(since: str | None, until: str | None, expected: tuple[str, str] | str) -> None:
    days = [date.fromisoformat(day) if day else None for day in (since, until)]
    found = gpu_hours_query(GroupBy.TEAM, *days, NOW)
    if isinstance(found, GpuHoursQuery):
        assert (found.since.isoformat(), found.until.isoformat()) == expected
        assert len(found.days) == (found.until - found.since).days + 1
    else:
        assert isinstance(expected, str)
        assert expected in found


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_csv_cell_is_no_formula(begin: str) -> None:
    assert cell(f"{begin}1+1") == f"'{begin}1+1"
    assert cell(f"a{begin}1") == f"a{begin}1"
    assert cell("") == ""


def test_name_stays_in_its_csv_cell() -> None:
    rows: list[dict[str, object]] = [{"user": 'a,"b"\n=c', "held": 1.5, "used": None}, {"user": FORMULA, "held": 0.0}]
    read = list(csv.reader(io.StringIO(write_csv(["user", "held", "used"], rows), newline="")))
    assert read == [["user", "held", "used"], ['a,"b"\n=c', "1.5000", ""], [f"'{FORMULA}", "0.0000", ""]]
    table = write_csv(["user", "held"], [{"user": "x;=1+1", "held": 1.0}, {"user": "x\t=1+1", "held": 1.0}])
    for delimiter in ";\t":
        cells = [one for line in csv.reader(io.StringIO(table, newline=""), delimiter=delimiter) for one in line]
        assert not [one for one in cells if one.startswith("=")], "a spreadsheet may split elsewhere"
