"""The mark up to which a log was read. PURE."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class LogMark:
    """Up to where a log is known: the stamp of the last line, and how many lines with it."""

    stamp: str = ""
    lines: int = 0


def in_utc(stamp: str) -> str:
    """A stamp in a form that sorts by time; nodes may have any time zone."""
    if stamp.endswith("Z"):
        whole, _, part = stamp[:-1].partition(".")
        return f"{whole}.{part:0<9}Z"
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
    except (ValueError, OverflowError):
        return stamp
