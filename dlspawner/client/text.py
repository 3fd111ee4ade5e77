"""Output: tables, facts, amounts and times. PURE.

Names and log lines come from other users: only printable characters reach a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

DEFAULT_SERVER = "(default)"


def printable(text: str, *, besides: str = "") -> str:
    """Escapes all characters that are not printable, so that the text moves no cursor and sets no colour."""
    return "".join(
        char if char.isprintable() or char in besides else char.encode("unicode_escape").decode() for char in text
    )


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns aligned columns with the headers in the first line; nothing is cut."""
    lines = [tuple(headers), *(tuple("-" if cell in (None, "") else str(cell) for cell in row) for row in rows)]
    lines = [tuple(printable(cell) for cell in line) for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Returns one fact a line; unknown facts are left out."""
    known = [(printable(name), printable(str(value))) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in known), default=0) + 2
    return "\n".join(f"{f'{name}:'.ljust(width)}{value}" for name, value in known)


def way(endpoint: Mapping[str, Any]) -> str:
    """Returns the command that opens an endpoint, or a note about its reach; empty for one with an address."""
    if endpoint.get("forward"):
        return f"{endpoint['forward']}, then {endpoint.get('address')}"
    if endpoint.get("port") and endpoint.get("protocol") != "ssh":
        return f"port {endpoint['port']}, for other pods of the cluster"
    return str(endpoint.get("command") or "")


def title(job: Mapping[str, Any], me: str = "") -> str:
    """Returns a job's displayed name: the server, with its owner if that is another user."""
    server = str(job.get("server") or DEFAULT_SERVER)
    return server if job.get("user") == me else f"{job.get('user')}/{server}"


def team(job: Mapping[str, Any], *, named: bool = False) -> str:
    """Returns the team's displayed title; ``named`` adds its name, which files and filters require."""
    name = str(job.get("team") or "")
    title = str(job.get("team_title") or name)
    return f"{title} ({name})" if named and title != name else title


def gpus(job: Mapping[str, Any]) -> str:
    count = job.get("gpus") or 0
    return f"{count} {job.get('gpu_type')}" if count else "-"


def ports(of_pod: Mapping[str, Sequence[int]]) -> str:
    """Returns a pod's ports of the host's network: ``ssh 20000, master 20003,20004``."""
    return ", ".join(f"{name} {','.join(map(str, numbers))}".strip() for name, numbers in of_pod.items())


def moment(at: str | None) -> str | None:
    """Returns a time to the second, in the pages' format."""
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at else None


def age(at: str | None, now: datetime) -> str:
    """Returns the time since ``at``, as short as in ``kubectl``."""
    if not at:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(at)).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def between(estimate: Mapping[str, Any] | None, now: datetime) -> str:
    """Returns the estimated start of a job, in the local time zone; empty if unknown."""
    if not estimate:
        return ""
    begin, end = (datetime.fromisoformat(estimate[name]).astimezone() for name in ("from", "to"))
    if (end - now).total_seconds() < 60:
        return "within a minute"
    form = "%H:%M" if (end - now).total_seconds() < 43200 else "%d %b %H:%M"
    first, last = begin.strftime(form), end.strftime(form)
    return f"about {last}" if first == last else f"{first} to {last}"


def probably(job: Mapping[str, Any], now: datetime) -> str:
    """Returns the estimated start as part of a sentence, with its basis."""
    estimate = job.get("estimate")
    return f"probably {between(estimate, now)}; {estimate['basis']}" if estimate else ""


def size(count: int | None) -> str:
    """Returns bytes in binary units, with two decimals at most."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{round(amount, 2):g} {unit}"
        amount /= 1024
    return f"{round(amount, 2):g} TiB"


def waiting(some: bool, others: int) -> str:
    """Returns a sentence about waiting jobs beside the displayed ones; places in the queue count these, too."""
    if not others:
        return "No other jobs are queued." if some else "The queue is empty."
    jobs = "1 job" if others == 1 else f"{others} jobs"
    queued = f"{jobs} of others {'is' if others == 1 else 'are'} queued"
    return f"Besides these, {queued}." if some else f"None of your jobs is queued; {queued}."


def standing(job: Mapping[str, Any]) -> str:
    """Returns a job's state, with its place while it waits."""
    state, place = str(job.get("state")), job.get("position")
    return f"{state} (number {place})" if place else state
