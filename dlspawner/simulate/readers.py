"""Readers of trace files: the documented CSV format, and tables that others have published; told by their columns.

``hub_config/POLICY.md`` describes the format. A file that cannot be read is one sentence with file and row.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dlspawner.simulate.trace import InvalidTrace, Loader, Span, Trace, TraceJob, together

MOST_GPUS, MOST_SECONDS = 100_000, 1e9  # about 30 years, of a job and of a file
PHILLY = (
    "Philly traces (Jeon et al., USENIX ATC 2019, CC BY 4.0), tables of ElasticFlow (ASPLOS 2023) and Helios (SC 2021)"
)
ADOBE = "Adobe's interactive sessions as published with NotebookOS (ASPLOS 2026)"
OPENB = "Alibaba cluster-trace-gpu-v2023 (openb)"
HELIOS = "a table as of Helios (SC 2021) and Acme (NSDI 2024)"


@dataclass(slots=True)
class Row:
    """One row of a file, whose fields are read with checks."""

    file: Path
    number: int
    fields: dict[str, str | None]
    times: list[tuple[float, bool]] = field(default_factory=list)  # the first one of the trace, and if it has a date

    def wrong(self, sentence: str) -> InvalidTrace:
        return InvalidTrace(f"{self.file}, row {self.number}: {sentence}")

    def text(self, name: str, default: str = "") -> str:
        return (self.fields.get(name) or "").strip() or default

    def number_of(self, name: str, default: float | None = None) -> float:
        text = self.text(name)
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= MOST_SECONDS:
            raise self.wrong(f"“{name}” must be a number of 0 to {MOST_SECONDS:g}, not “{text}”.")
        return value

    def gpus(self, name: str, default: int | None = None) -> int:
        value = self.number_of(name, default)
        if value != int(value) or value > MOST_GPUS:
            raise self.wrong(f"“{name}” must be a whole number of GPUs up to {MOST_GPUS}, not “{self.text(name)}”.")
        return int(value)

    def flag(self, name: str) -> bool:
        text = self.text(name, "false").lower()
        if text not in {"true", "false", "1", "0", "yes", "no"}:
            raise self.wrong(f"“{name}” must be true or false, not “{text}”.")
        return text in {"true", "1", "yes"}

    def time(self, name: str) -> float:
        """Seconds: a number as it is, or a date with a time (UTC without a zone); one kind in a whole file."""
        text = self.text(name)
        try:
            at, dated = float(text), False
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                kinds = "a number of seconds, or a time such as 2026-03-01 14:00:00"
                raise self.wrong(f"“{name}” must be {kinds}, not “{text}”.") from None
            at, dated = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), True
        first, first_dated = self.times[0] if self.times else (at, dated)
        if not math.isfinite(at) or first_dated != dated:
            raise self.wrong(f"“{name}” must be of the same kind as in the rows before, not “{text}”.")
        if abs(at - first) > MOST_SECONDS:
            raise self.wrong(f"“{name}” must be in seconds: “{text}” is more than 30 years from the first one.")
        self.times[:] = [(first, dated)]
        return at


def read(files: Sequence[Path]) -> Trace:
    """Reads traces; files of one kind are one trace, those of different kinds begin at the same moment."""
    traces: list[Trace] = []
    loaders: dict[_Kind, tuple[Loader, list[tuple[float, bool]]]] = {}
    sessions, trainings = list[Row](), list[Row]()
    for file in files:
        columns, rows = _table(file)
        if "duration_minutes" in columns:
            trainings += rows
            continue
        if "start_minute" in columns:
            sessions += rows
            continue
        kind = next((one for one in _TABLES if set(one.columns) <= set(columns)), None)
        if kind is None:
            known = "; ".join(", ".join(one.columns) for one in _TABLES)
            raise InvalidTrace(
                f"{file}, row 1: these columns are of no known trace: {', '.join(columns)}. Known: {known}."
            )
        loader, times = loaders.setdefault(kind, (Loader(), []))
        for row in rows:
            row.times = times
            job = kind.job(row)
            if job is not None:
                loader.jobs.append(job)
    for kind, (loader, times) in loaders.items():
        dated = any(has_date for _, has_date in times)
        traces.append(loader.trace(kind.source, (lambda first: datetime.fromtimestamp(first, UTC)) if dated else None))
    if sessions and trainings:
        traces.append(_sessions(sessions, trainings))
    elif sessions or trainings:
        have, need = ("sessions", "trainings") if sessions else ("trainings", "sessions")
        raise InvalidTrace(
            f"{(sessions or trainings)[0].file}, row 1: these are {have}; name the file of their {need} too."
        )
    found = together(traces)
    if not found.jobs:
        raise InvalidTrace(f"{', '.join(map(str, files))}: there is no job in it.")
    return found


def _table(file: Path) -> tuple[list[str], list[Row]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = [Row(file, reader.line_num, fields) for fields in reader if any(one for one in fields.values())]
    except OSError as error:
        raise InvalidTrace(f"{file}: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidTrace(f"{file}: this is no CSV file in UTF-8 ({error}).") from None
    if not columns:
        raise InvalidTrace(f"{file}, row 1: the file is empty; its first row must name the columns.")
    for row in rows:
        if len(row.fields) > len(columns):
            raise row.wrong("there are more values than the first row has names.")
    return columns, rows


@dataclass(frozen=True, slots=True)
class _Kind:
    columns: tuple[str, ...]
    source: str
    job: Callable[[Row], TraceJob | None]


def _own(row: Row) -> TraceJob:
    seconds, gpus = row.number_of("duration"), row.gpus("gpus")
    pods = tuple(row.text("pods").replace("+", " ").split())
    if any(not one.isascii() or not one.isdigit() for one in pods) or (pods and sum(map(int, pods)) != gpus):
        raise row.wrong(f"“pods” must be the GPUs of each pod, {gpus} together, such as 8+8, not “{row.text('pods')}”.")
    return TraceJob(
        name="",
        submit=row.time("submit"),
        seconds=seconds,
        gpus=gpus,
        team=row.text("team", "default"),
        user=row.text("user"),
        gpu_type=row.text("type"),
        preemptible=row.flag("preemptible"),
        priority=row.text("priority"),
        pods=tuple(map(int, pods)),
        activity=_activity(row, seconds, gpus) if "activity" in row.fields else None,
    )


def _activity(row: Row, seconds: float, gpus: int) -> tuple[Span, ...] | None:
    text, found = row.text("activity"), []
    if not text:
        return None
    for part in text.split() if text != "none" else ():
        span, _, many = part.partition("x")
        begin, _, end = span.partition("-")
        try:
            found.append((float(begin), float(end), int(many) if many else gpus))
        except ValueError:
            raise row.wrong(f"“activity” must be spans such as 0-300 4000-4500x2, not “{part}”.") from None
        if not 0 <= found[-1][0] <= found[-1][1] or found[-1][2] > gpus:
            raise row.wrong(f"“{part}” is no span of this job's activity on {gpus} GPUs.")
    return _in_order(found, seconds)


def _in_order(spans: Sequence[Span], seconds: float) -> tuple[Span, ...]:
    return tuple(sorted((begin, min(end, seconds), gpus) for begin, end, gpus in spans if begin < seconds))


def _philly(row: Row) -> TraceJob:
    return TraceJob("", row.time("timestamp"), row.number_of("duration"), row.gpus("num_gpus"), row.text("cluster"))


def _openb(row: Row) -> TraceJob | None:
    """Pods of a share of a GPU count as one GPU; those that never ran are left out."""
    began, ended = row.text("scheduled_time"), row.text("deletion_time")
    if not began or not ended:
        return None
    seconds = row.number_of("deletion_time") - row.number_of("scheduled_time")
    if seconds < 0:
        raise row.wrong("“deletion_time” is before “scheduled_time”.")
    quality = row.text("qos", "default")
    return TraceJob(
        "",
        row.time("creation_time"),
        seconds,
        row.gpus("num_gpu", 0),
        quality,
        gpu_type=row.text("gpu_spec").split("|")[0].lower(),
        preemptible=quality == "BE",
    )


def _helios(row: Row) -> TraceJob:
    gpus = row.gpus("gpu_num")
    team = row.text("vc", row.text("type", "default"))
    return TraceJob("", row.time("submit_time"), row.number_of("duration"), gpus, team, row.text("user"))


def _sessions(rows: Sequence[Row], trainings: Sequence[Row]) -> Trace:
    spans: dict[str, list[Span]] = {}
    for row in trainings:
        begin = 60 * row.number_of("start_minute")
        end = begin + 60 * row.number_of("duration_minutes")
        spans.setdefault(row.text("session"), []).append((begin, end, row.gpus("gpus")))
    loader, known = Loader(), set()
    for row in rows:
        name, begin, end = row.text("session"), 60 * row.number_of("start_minute"), 60 * row.number_of("stop_minute")
        if end < begin:
            raise row.wrong("“stop_minute” is before “start_minute”.")
        known.add(name)
        used = _in_order([(a - begin, b - begin, gpus) for a, b, gpus in spans.get(name, ())], end - begin)
        loader.jobs.append(TraceJob(name, begin, end - begin, row.gpus("gpus"), "sessions", name, activity=used))
    for row in trainings:
        if row.text("session") not in known:
            raise row.wrong(f"there is no session “{row.text('session')}”.")
    return loader.trace(ADOBE)


_TABLES = (
    _Kind(("submit", "duration", "gpus"), "", _own),
    _Kind(("timestamp", "duration", "num_gpus", "cluster"), PHILLY, _philly),
    _Kind(("creation_time", "deletion_time", "scheduled_time", "num_gpu", "qos"), OPENB, _openb),
    _Kind(("submit_time", "duration", "gpu_num"), HELIOS, _helios),
)


def rows_of(trace: Trace) -> Iterator[dict[str, object]]:
    """The trace in the documented format."""
    for one in trace.jobs:
        used = None if one.activity is None else " ".join(f"{a:g}-{b:g}x{gpus}" for a, b, gpus in one.activity)
        yield {
            "submit": round(one.submit, 3),
            "duration": round(one.seconds, 3),
            "gpus": one.gpus,
            "type": one.gpu_type,
            "team": one.team,
            "user": one.user,
            "preemptible": str(one.preemptible).lower(),
            "priority": one.priority,
            "pods": "+".join(map(str, one.pods)),
            "activity": used or ("none" if used == "" else ""),
        }
