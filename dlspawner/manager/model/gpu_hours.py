"""The query of GPU-hours, and their CSV form. PURE."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum

AMOUNTS = ("requested", "allocated", "measured", "used", "reclaimed")  # of the GPUs of jobs
FREE = ("total", "free", "unschedulable", "fragmented")  # of all GPUs
MAX_DAYS = timedelta(days=1100)
DEFAULT_DAYS = timedelta(days=29)  # before today: thirty days
# What spreadsheets take for the beginning of a formula, also in wide letters.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class GroupBy(Enum):
    """The keys by which hours are summed up; the values are those of the query."""

    TEAM = "team"
    USER = "user"
    GPU_TYPE = "gpu_type"


@dataclass(frozen=True, slots=True)
class GpuHoursQuery:
    """GPU-hours from one day to another, both included."""

    by: GroupBy
    since: date
    until: date

    @property
    def days(self) -> list[date]:
        return [self.since + timedelta(days=one) for one in range((self.until - self.since).days + 1)]


def gpu_hours_query(by: GroupBy, since: date | None, until: date | None, now: datetime) -> GpuHoursQuery | str:
    """Returns the query, of thirty days until today unless they are given; or a sentence about wrong days."""
    last = until or now.astimezone(UTC).date()
    first = since or max(date.min + DEFAULT_DAYS, last) - DEFAULT_DAYS
    if first > last:
        return "since is after until."
    if last - first > MAX_DAYS:
        return f"At most {MAX_DAYS.days} days can be asked for at once."
    return GpuHoursQuery(by, first, last)


def cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def write_csv(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """A table for spreadsheets, some of which split at semicolons: every cell is quoted. Not known is an empty one."""
    written = io.StringIO()
    csv.writer(written).writerow(columns)
    writer = csv.writer(written, quoting=csv.QUOTE_ALL)
    for row in rows:
        writer.writerow([_told(row.get(name)) for name in columns])
    return written.getvalue()


def _told(value: object) -> object:
    if isinstance(value, str):
        return cell(value)
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else value
