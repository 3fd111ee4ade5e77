"""Amounts and times as every answer in JSON has them: whole units as numbers, times in UTC that end in ``Z``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


def amount(milli: int) -> int | float:
    """Thousandths as people count."""
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


@overload
def time(at: datetime) -> str: ...
@overload
def time(at: None) -> None: ...
@overload
def time(at: datetime | None) -> str | None: ...
def time(at: datetime | None) -> str | None:
    """ISO 8601; what has not come is null. A time without a zone is a mistake of the caller's."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
