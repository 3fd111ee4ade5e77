"""How a notice reads: its text with the time in it, for terminals and for pages.

``{when}`` in a text is where the time goes; a text without it gets the time behind. JupyterLab does the same in the
reader's own time zone (``jupyter_extension``).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

WHEN = "{when}"


def with_time(text: str, until: datetime | None, now: datetime) -> str:
    """The sentence as it is read at ``now``."""
    if until is None:
        return " ".join(text.replace(WHEN, "").split())
    when = moment(until, now)
    return text.replace(WHEN, when) if WHEN in text else f"{text} ({when})"


def moment(until: datetime, now: datetime) -> str:
    """A time soon to come: on the clock, and how far away."""
    seconds = (until - now).total_seconds()
    if seconds <= 0:
        return "now"
    if seconds < 60:
        return "in less than a minute"
    utc = until.astimezone(UTC)
    clock = utc.strftime("at %H:%M UTC" if seconds < 43200 else "on %d %B at %H:%M UTC")
    return f"{clock}, in {_span(seconds)}"


def minutes(span: timedelta) -> str:
    """A span as people set it: ``1 minute``, ``1.5 minutes``."""
    many = span.total_seconds() / 60
    return f"{many:g} minute{'' if many == 1 else 's'}"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        many = round(seconds / size)
        if many >= 2 or size == 60:
            return f"{max(1, many)} {unit}{'s' if many > 1 else ''}"
    raise AssertionError("a minute is the smallest unit")
