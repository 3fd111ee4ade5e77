"""What a job used over time, as Prometheus knows it: its GPUs, their memory, CPU and memory.

Each point is what was measured in the step before it, a mean, so a step without a sample is not known, and no sample is
shown twice. A pod's name may have been another job's before: only the job's own life is asked for.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dlspawner.manager.prometheus import MIB, GpuSample, MetricNames, PrometheusClient

POINTS = 200  # of a series whose step is not given
MOST_POINTS = 1000
SHORTEST = timedelta(seconds=15)
LONGEST = timedelta(days=31)
USUAL = timedelta(hours=6)  # before the end
_RATE = timedelta(minutes=2)  # of a counter that is read every half minute or so
WRONG_STEP = f"step is a number of seconds, at least {SHORTEST.seconds}."
WRONG_TIME = "since and until are times, such as 2026-11-22T12:00:00Z."


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The points that are asked for: one every ``step``, the first one a step after ``since``."""

    since: datetime
    until: datetime
    step: timedelta

    @property
    def times(self) -> list[datetime]:
        return [self.since + number * self.step for number in range(1, (self.until - self.since) // self.step + 1)]


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One number for each time, ``None`` for what is not known."""

    name: str
    unit: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    unit: str
    expression: str
    factor: float = 1.0


def read_time_range(since: str, until: str, step: str, begin: datetime, end: datetime) -> TimeRange | str:
    """The points within a job's life, from ``begin`` to ``end``; or a sentence that says what cannot be asked."""
    first, last = _time(since, max(begin, end - USUAL)), _time(until, end)
    if first is None or last is None:
        return WRONG_TIME
    first, last = max(first, begin), min(last, end)
    if last - first > LONGEST:
        return f"At most {LONGEST.days} days can be asked for at once."
    if not step:
        usual = math.ceil((last - first) / SHORTEST / POINTS) * SHORTEST
        return TimeRange(first, last, max(SHORTEST, usual))
    if not re.fullmatch(r"\d{1,7}", step, re.ASCII) or timedelta(seconds=int(step)) < SHORTEST:
        return WRONG_STEP
    found = TimeRange(first, last, timedelta(seconds=int(step)))
    if (last - first) // found.step > MOST_POINTS:
        return f"That would be more than {MOST_POINTS} points: ask for a longer step or less time."
    return found


def _time(text: str, usual: datetime) -> datetime | None:
    if not text:
        return usual
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(usual.tzinfo) if found.tzinfo else found.replace(tzinfo=usual.tzinfo)
    except (ValueError, OverflowError):
        return None


def expressions(names: MetricNames, namespace: str, pods: Sequence[str], step: timedelta) -> tuple[_Wanted, ...]:
    """What Prometheus is asked about these pods, for points a step apart."""

    def over(metrics: Sequence[str], labels: tuple[str, str], more: str = "", window: timedelta = step) -> str:
        which = json.dumps("|".join(metrics))
        pod = json.dumps("|".join(re.escape(name) for name in pods))
        where = f"{labels[0]}={json.dumps(namespace)},{labels[1]}=~{pod}"
        return f"{{__name__=~{which},{where}{more}}}[{max(1, int(window.total_seconds()))}s]"

    of_gpus, of_containers = (names.namespace_label, names.pod_label), ("namespace", "pod")
    real = ',container!="",container!="POD"'  # not the pod's own sum, which would count everything twice
    cpu = over(names.cpu, of_containers, real, max(step, _RATE))
    memory = over(names.host_memory, of_containers, real)
    once = "max by (pod, container) "  # the kubelet tells the same under /metrics/cadvisor and /metrics/resource
    return (
        _Wanted("gpu", "percent", f"avg(avg_over_time({over(names.utilisation, of_gpus)}))"),
        _Wanted("gpu_memory", "bytes", f"sum(avg_over_time({over(names.memory, of_gpus)}))", MIB),
        _Wanted("cpu", "cores", f"sum({once}(rate({cpu})))"),
        _Wanted("memory", "bytes", f"sum({once}(avg_over_time({memory})))"),
    )


async def read_usage(
    prometheus: PrometheusClient, namespace: str, pods: Sequence[str], span: TimeRange
) -> tuple[MetricSeries, ...]:
    """All series of a job; MetricsUnavailable."""
    wanted, times = expressions(prometheus.names, namespace, pods, span.step), span.times
    if not pods or not times:
        return tuple(MetricSeries(one.name, one.unit, (None,) * len(times)) for one in wanted)
    asked = (prometheus.over_time(one.expression, times[0], times[-1], span.step) for one in wanted)
    found = await asyncio.gather(*asked)
    return tuple(
        MetricSeries(one.name, one.unit, _at(times, samples, one.factor))
        for one, samples in zip(wanted, found, strict=True)
    )


def _at(times: Sequence[datetime], samples: Sequence[GpuSample], factor: float) -> tuple[float | None, ...]:
    known = {round(at.timestamp()): value * factor for at, value in samples}
    return tuple(known.get(round(at.timestamp())) for at in times)
