"""GPU-hours of jobs, by day: requested, allocated, and reclaimed by culling.

For a job with GPUs, at each moment the GPUs of its request at that moment count as

* *requested*, from submit until it ends, waiting or running;
* *allocated*, from admission until its pods are gone (`JobState.holds`); a job that waits again after a preemption has
  none meanwhile;
* *reclaimed*, after it was stopped as idle, until its user requests the server again, a day at most. How long it would
  have run is unknown; without a request for a day, it would have been idle that long.

Days are those of UTC. Spans may overlap: each job is counted by itself. If times of events go backwards, after a clock
was set, no time passes between them. Amounts are milli-GPU-seconds, rounded once for each job and day, so that stored
and recomputed amounts are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from itertools import accumulate, repeat
from typing import Self

from dlspawner.core.job import JobState
from dlspawner.core.units import GPU

MISSED = timedelta(days=1)  # for so long, at most, GPUs count as reclaimed
PER_HOUR = GPU * 3600  # milli-GPU-seconds of a GPU-hour
_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)

Step = tuple[datetime, JobState]  # since when a job was in a state
Span = tuple[datetime, datetime]
_Held = tuple[int, Span]  # milli-GPUs, and when


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Milli-GPU-seconds. ``measured``: allocated with known utilisation; ``used``: the part of it that computed."""

    requested: int = 0
    allocated: int = 0
    measured: int = 0
    used: int = 0
    reclaimed: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.requested + other.requested,
            self.allocated + other.allocated,
            self.measured + other.measured,
            self.used + other.used,
            self.reclaimed + other.reclaimed,
        )

    def hours(self) -> dict[str, float | None]:
        """As GPU-hours; ``used`` is None where nothing was measured."""
        told: dict[str, float | None] = {one.name: getattr(self, one.name) / PER_HOUR for one in fields(self)}
        return told if self.measured else {**told, "used": None}


NONE = GpuTime()


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """One job: milli-GPUs, and its steps in their order.

    ``sizes``: the milli-GPUs at each step, if they changed. ``since``: earlier time is counted already. ``culled``: it
    was stopped as idle; ``requested_again``: when its user next requested the server.
    """

    gpus: int
    steps: tuple[Step, ...]
    since: datetime | None = None
    culled: bool = False
    requested_again: datetime | None = None
    sizes: tuple[int, ...] = ()


def by_day(span: Span) -> Iterator[tuple[date, timedelta]]:
    """Splits a span by day; empty if it ends before it begins."""
    begin, end = span[0].astimezone(UTC), span[1].astimezone(UTC)
    while begin < end:
        day = begin.date()
        midnight = datetime.combine(day + _DAY, time(), UTC) if day < date.max else end
        until = min(end, midnight)
        yield day, until - begin
        begin = until


def requested(life: JobTimeline, until: datetime) -> list[_Held]:
    """Returns the spans in which a job requested GPUs or held them."""
    none = {JobState.ENDED, JobState.SUBMITTED}
    return [(gpus, span) for gpus, span, state in _stays(life, until) if state not in none]


def allocated(life: JobTimeline, until: datetime) -> list[_Held]:
    return [(gpus, span) for gpus, span, state in _stays(life, until) if state.holds]


def _stays(life: JobTimeline, until: datetime) -> Iterator[tuple[int, Span, JobState]]:
    """Yields GPUs, span and state of each step; the last one lasts ``until``."""
    latest: datetime | None = None
    state, gpus = JobState.SUBMITTED, life.gpus
    for (at, found), size in zip(life.steps, life.sizes or repeat(life.gpus), strict=False):
        now = at if latest is None else max(at, latest)
        if latest is not None and now > latest:
            yield gpus, (latest, min(now, max(until, latest))), state
        latest, state, gpus = now, found, size
    if latest is not None and until > latest:
        yield gpus, (latest, until), state


def queued(life: JobTimeline, until: datetime) -> list[Span]:
    """Returns the spans in which a job was in the queue."""
    return [span for _, span, state in _stays(life, until) if state is JobState.QUEUED]


def waits(life: JobTimeline, until: datetime) -> Iterator[tuple[datetime, timedelta]]:
    """Yields each admission of a job with the time in the queue before it, from zero after a preemption."""
    waited, held = timedelta(0), False
    for _, (begin, end), state in _stays(life, until):
        if state.holds and not held:
            yield begin, waited
            waited = timedelta(0)
        waited += end - begin if state is JobState.QUEUED else timedelta(0)
        held = state.holds


def means(
    amounts: Iterable[tuple[str, float, Span]], begin: datetime, step: timedelta, count: int
) -> dict[str, list[float]]:
    """Returns the mean sum of the amounts of each key in each step. A span costs its two ends, however long it is."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for key, amount, (since, until) in amounts:
        if until <= begin or since >= begin + count * step:
            continue
        within, later = found.setdefault(key, ([0.0] * (count + 1), [0.0] * (count + 2)))
        for at, change in (since, amount), (until, -amount):
            place = min(max((at - begin) / step, 0.0), count)
            number = int(place)
            within[number] += change * (number + 1 - place)
            later[number + 1] += change
    return {
        key: [round(part + whole, 6) + 0.0 for part, whole in zip(within[:count], accumulate(later), strict=False)]
        for key, (within, later) in found.items()
    }


def reclaimed(life: JobTimeline, until: datetime) -> list[_Held]:
    """Returns the span in which its GPUs were free because it had been culled."""
    if not life.culled or not life.steps or life.steps[-1][1] is not JobState.ENDED:
        return []
    ended = max(at for at, _ in life.steps)
    return [(life.gpus, (ended, min(until, ended + MISSED, life.requested_again or until)))]


def final_gpu_time(life: JobTimeline) -> dict[date, GpuTime]:
    """Returns the final GPU time of an ended job; called a day after its end, when nothing changes any more."""
    return gpu_time_by_day(life, max(at for at, _ in life.steps) + MISSED) if life.steps else {}


def gpu_time_by_day(life: JobTimeline, until: datetime) -> dict[date, GpuTime]:
    """Returns the GPU time of a job by day; unmeasured use is 0."""
    found: dict[date, GpuTime] = {}
    parts: Mapping[str, list[_Held]] = {
        "requested": requested(life, until),
        "allocated": allocated(life, until),
        "reclaimed": reclaimed(life, until),
    }
    for name, held in parts.items():
        for size in {gpus for gpus, _ in held}:
            spans = _after((span for gpus, span in held if gpus == size), life.since)
            for day, milli_seconds in total(size, spans).items():
                found[day] = found.get(day, NONE) + GpuTime(**{name: milli_seconds})
    return found


def total(gpus: int, spans: Iterable[Span]) -> dict[date, int]:
    """Milli-GPU-seconds by day."""
    lengths: dict[date, timedelta] = {}
    for span in spans:
        for day, length in by_day(span):
            lengths[day] = lengths.get(day, timedelta(0)) + length
    return {day: (gpus * (length // _MICROSECOND) + 500_000) // 1_000_000 for day, length in lengths.items()}


def _after(spans: Iterable[Span], since: datetime | None) -> Iterator[Span]:
    for begin, end in spans:
        yield (begin if since is None else max(begin, since)), end


def measured(percents: Iterable[float], span: Span, share: int = GPU) -> dict[date, GpuTime]:
    """Adds GPUs, or parts of ``share`` milli-GPUs, with a known mean utilisation in a span, in percent each."""
    known = [min(100.0, max(0.0, percent)) for percent in percents]
    found = {}
    for day, length in by_day(span):
        seconds = length / timedelta(seconds=1)
        used = sum(known) / 100 * share * seconds
        found[day] = GpuTime(measured=round(len(known) * share * seconds), used=round(used))
    return found
