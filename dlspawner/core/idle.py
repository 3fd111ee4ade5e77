"""Idleness: decides if a running job is kept, its user is warned, or it is stopped.

A job is idle since its last use. Rules:

* Every activity source that its template counts must be idle: every GPU below the threshold for the *whole* window, no
  busy kernel, no HTTP, kernel or terminal activity, no SSH bytes. Time without evidence counts as use: a GPU is idle
  only from the time since which its samples have no gap.
* Missing or stale metrics never stop a job, nor do missing reports of kernels or SSH sessions. Only the lifetime
  ignores activity.
* An open but silent SSH session protects for a bounded time. So does the button *keep alive*, counted from the last
  use: pressing it again adds no time.
* TensorBoard: an open tab sends requests by itself. A template may limit the time for which HTTP alone counts; a
  running job that writes the displayed logs counts as use (``watched``).
* No job is stopped without warnings at 50 % and 90 % of the window, and the second one must be a tenth of the window
  old (at most 30 minutes). So neither a clock that jumps nor a Manager that was away stops a job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from dlspawner.core.config import Culling, IdleWindows
from dlspawner.core.template import ActivitySource, IdlePolicy

WARNINGS = (50, 90)  # percent of the window, or of the lifetime
SSH_REPORT_TIMEOUT = timedelta(minutes=3)  # without a report of a gateway, which sends one a minute
_LONGEST_STAND = timedelta(minutes=30)


class Cause(Enum):
    """The cause of a decision; logs and metrics show the values."""

    UNUSED = "unused"
    LIFETIME = "lifetime"
    USED = "used"
    UNKNOWN = "unknown"
    EXEMPT = "exempt"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The samples of one GPU of a job, without a gap from ``since`` to ``last``, and the time of its last use."""

    since: datetime
    last: datetime
    last_busy: datetime | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SentWarning:
    """A sent warning: its time, percent of the period, and cause."""

    at: datetime
    percent: int
    why: Cause = Cause.UNUSED


@dataclass(frozen=True, slots=True)
class JobActivity:
    """The known activity of a job; ``None`` without any evidence of a kind.

    ``tells_kernels``: it is a notebook server, which should report its kernels; ``kernel_report``: the time of the last
    report, ``kernel_busy``: of the last one with a busy kernel. ``tells_ssh``: it has SSH, so gateways should report
    their sessions; ``ssh_report``: the time of the last report, ``ssh``: of the last byte of a session, ``ssh_open``:
    a session exists. ``kept``: when *keep alive* was last pressed; ``watched``: when a job last ran that writes the
    logs which this one shows. No GPU counts as idle unless all ``gpu_count`` GPUs are known.
    """

    started: datetime
    http: datetime | None = None
    tells_kernels: bool = False
    kernel_busy: datetime | None = None
    kernel_report: datetime | None = None
    tells_ssh: bool = False
    ssh_report: datetime | None = None
    ssh: datetime | None = None
    ssh_open: bool = False
    gpu_count: int = 0
    gpus: tuple[GpuUse, ...] = ()
    kept: datetime | None = None
    watched: datetime | None = None
    warned: tuple[SentWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class IdleRule:
    window: timedelta | None
    lifetime: timedelta | None
    counts: frozenset[ActivitySource]
    http_alone: timedelta | None
    culling: Culling


@dataclass(frozen=True, slots=True)
class KeepJob:
    """The job goes on. ``idle_since`` is when it was last used, ``None`` where that is not known."""

    why: Cause
    idle_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class WarnUser:
    """The user is to be warned, once for ``percent``, that the job will be stopped at ``stop_at``."""

    percent: int
    why: Cause
    idle_since: datetime
    stop_at: datetime


@dataclass(frozen=True, slots=True)
class StopJob:
    """The job is to be stopped, or with ``dry_run`` only to be reported."""

    why: Cause
    idle_since: datetime
    dry_run: bool = False


IdleDecision = KeepJob | WarnUser | StopJob


def idle_rule_of(template: IdlePolicy, team: IdleWindows, culling: Culling, preemptible: bool) -> IdleRule:
    """Returns the windows of a job: its template's, else its team's, else the cluster's.

    A preemptible job has the first window for preemptible jobs in that order, else the ordinary window.
    """
    window = _first(template.window, team.guaranteed, culling.window)
    if preemptible:
        own = _first(template.preemptible_window, team.preemptible, culling.preemptible_window)
        window = _first(own, window)
    lifetime = _first(template.lifetime, culling.lifetime)
    if template.dry_run is not None:
        culling = replace(culling, dry_run=template.dry_run)
    return IdleRule(window, lifetime, frozenset(template.counts), template.http_alone, culling)


def gpu_use(
    samples: Iterable[tuple[datetime, float]], culling: Culling, memory_bytes: int | None = None
) -> GpuUse | None:
    """Returns the use that samples of one GPU's utilisation (percent) show, in any order; ``None`` without samples.

    What is before a gap of more than ``metrics_age`` is forgotten. Not-a-number is no sample.
    """
    since = last = last_busy = None
    for at, percent in sorted(samples, key=lambda sample: sample[0]):
        if math.isnan(percent):  # as Prometheus writes what is not there
            continue
        if last is None or at - last > culling.metrics_age:
            since = at
        last = at
        if percent >= culling.gpu_busy:
            last_busy = at
    return None if since is None or last is None else GpuUse(since, last, last_busy, memory_bytes)


def merge_samples(old: GpuUse | None, new: GpuUse | None, culling: Culling) -> GpuUse | None:
    """Merges the known and the new use of one GPU; samples before a gap are dropped."""
    if old is None or new is None:
        return new or old
    if new.since - old.last > culling.metrics_age:
        return new
    busy = [at for at in (old.last_busy, new.last_busy) if at is not None]
    memory = old.memory_bytes if new.memory_bytes is None else new.memory_bytes
    return GpuUse(min(old.since, new.since), max(old.last, new.last), max(busy, default=None), memory)


def evaluate(activity: JobActivity, policy: IdleRule, now: datetime) -> IdleDecision:
    """Decides if a running job is kept, its owner is warned, or it is stopped."""
    since = idle_since(activity, policy, now)
    old = _end_of_life(activity, policy, now)
    if isinstance(old, StopJob):
        return old
    verdict: IdleDecision
    if policy.window is None:
        verdict = KeepJob(Cause.EXEMPT, since)
    elif since is None:
        verdict = KeepJob(Cause.UNKNOWN)
    else:
        unused = _Period(Cause.UNUSED, since, policy.window)
        verdict = _passed(unused, activity, policy, now) or KeepJob(Cause.USED, since)
    return old if old is not None and isinstance(verdict, KeepJob) else verdict


def idle_since(activity: JobActivity, policy: IdleRule, now: datetime) -> datetime | None:
    """Returns the time of the last use, at most ``now``; ``None`` if a counted activity source is unknown."""
    real = _last_use(activity, policy, now)
    if real is None or activity.kept is None:
        return real
    return min(now, max(real, min(activity.kept, real + policy.culling.keep_alive)))


def is_idle(activity: JobActivity, policy: IdleRule, now: datetime) -> bool:
    """True if a job is known to be idle: for half of its window, at most for half an hour."""
    since = _last_use(activity, policy, now)
    half = _LONGEST_STAND if policy.window is None else min(policy.window / 2, _LONGEST_STAND)
    return since is not None and now - since >= half


def _last_use(activity: JobActivity, policy: IdleRule, now: datetime) -> datetime | None:
    stale = now - policy.culling.metrics_age
    times = [activity.started]
    if activity.watched is not None:
        times.append(activity.watched)
    if ActivitySource.GPU in policy.counts:
        if len(activity.gpus) < activity.gpu_count or any(gpu.last < stale for gpu in activity.gpus):
            return None
        for gpu in activity.gpus:
            times += [gpu.since, gpu.last_busy or gpu.since]
    if ActivitySource.KERNEL in policy.counts and (activity.tells_kernels or activity.kernel_report is not None):
        if activity.kernel_report is None or activity.kernel_report < stale:
            return None
        times.append(activity.kernel_busy or activity.started)
    if ActivitySource.SSH in policy.counts:
        if activity.tells_ssh and (
            activity.ssh_report is None or now - activity.ssh_report > report_timeout(policy.culling)
        ):
            return None
        times += _ssh(activity, policy)
    if ActivitySource.HTTP in policy.counts and activity.http is not None:
        alone = None if policy.http_alone is None else max(times) + policy.http_alone
        times.append(activity.http if alone is None else min(activity.http, alone))
    return min(now, max(times))


def report_timeout(culling: Culling) -> timedelta:
    """Returns the time without a report after which a gateway's sessions are unknown."""
    return max(culling.metrics_age, SSH_REPORT_TIMEOUT)


def _ssh(activity: JobActivity, policy: IdleRule) -> list[datetime]:
    last = activity.ssh or (activity.started if activity.ssh_open else None)
    if last is None:
        return []
    return [last + policy.culling.silent_ssh if activity.ssh_open else last]


def _end_of_life(activity: JobActivity, policy: IdleRule, now: datetime) -> WarnUser | StopJob | None:
    if policy.lifetime is None:
        return None
    return _passed(_Period(Cause.LIFETIME, activity.started, policy.lifetime), activity, policy, now)


@dataclass(frozen=True, slots=True)
class _Period:
    why: Cause
    since: datetime
    length: timedelta


def _passed(period: _Period, activity: JobActivity, policy: IdleRule, now: datetime) -> WarnUser | StopJob | None:
    """Returns the action due when this part of a period has passed; ``None`` for nothing."""
    why, since, length = period.why, period.since, period.length
    passed = now - since
    if policy.culling.dry_run:
        return StopJob(why, since, dry_run=True) if passed >= length else None
    given = _given(period, activity, now)
    stop_at = _stop_at(period, given, now)
    if passed >= length and WARNINGS[-1] in given and now >= stop_at:
        return StopJob(why, since)
    due = [percent for percent in WARNINGS if passed >= length * percent / 100]
    if due and due[-1] not in given:
        return WarnUser(due[-1], why, since, stop_at)
    return None


def _given(period: _Period, activity: JobActivity, now: datetime) -> dict[int, datetime]:
    """Returns the warnings of the period, by percent."""
    return {
        one.percent: min(one.at, now) for one in activity.warned if one.why is period.why and one.at >= period.since
    }


def _stop_at(period: _Period, given: Mapping[int, datetime], now: datetime) -> datetime:
    stand = min(period.length / 10, _LONGEST_STAND)
    return max(period.since + period.length, given.get(WARNINGS[-1], now) + stand)


def next_change(activity: JobActivity, policy: IdleRule, now: datetime) -> datetime | None:
    """Returns when a job that is not used from now on is next warned or stopped; ``None`` for never.

    For a caller that need not look all the time, once the decision of ``now`` is carried out.
    """
    used = idle_since(activity, policy, now)
    periods = []
    if policy.window is not None and used is not None:
        periods.append(_Period(Cause.UNUSED, used, policy.window))
    if policy.lifetime is not None:
        periods.append(_Period(Cause.LIFETIME, activity.started, policy.lifetime))
    times = [one.since + one.length * percent / 100 for one in periods for percent in (*WARNINGS, 100)]
    times += [_stop_at(one, _given(one, activity, now), now) for one in periods]
    return min((at for at in times if at > now), default=None)


def _first(*given: timedelta | None) -> timedelta | None:
    return next((one for one in given if one is not None), None)
