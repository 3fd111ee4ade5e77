"""Idle: the evidence of use, warnings, stops, and the cases that never stop a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dlspawner.core.config import Culling, IdleWindows
from dlspawner.core.idle import (
    Cause,
    GpuUse,
    IdleDecision,
    IdleRule,
    JobActivity,
    KeepJob,
    SentWarning,
    StopJob,
    WarnUser,
    evaluate,
    gpu_use,
    idle_rule_of,
    is_idle,
    merge_samples,
    next_change,
)
from dlspawner.core.template import ActivitySource, IdlePolicy
from tests.unit.core.factories import GIB, HOUR, MINUTE, NOW

DAY = 24 * HOUR
CULLING = Culling(window=10 * HOUR, dry_run=False)
POLICY = idle_rule_of(IdlePolicy(), IdleWindows(), CULLING, preemptible=False)
SHELL = replace(POLICY, counts=frozenset({ActivitySource.GPU, ActivitySource.SSH}))
BOARD = replace(POLICY, counts=frozenset({ActivitySource.HTTP}), http_alone=4 * HOUR)


def ago(hours: float) -> datetime:
    return NOW - hours * HOUR


def gpu(busy: float | None = None, since: float = 48, last: float = 0) -> GpuUse:
    """A GPU that was busy so many hours ago, with samples since and until so many hours ago."""
    return GpuUse(ago(since), ago(last), None if busy is None else ago(busy))


def old(**more: object) -> JobActivity:
    """A job of two days, unused, after two warnings."""
    warned = (SentWarning(ago(6), 50), SentWarning(ago(2), 90))
    return replace(JobActivity(ago(48), warned=warned), **more)


def new(hours: float, *warned: tuple[float, int], **more: object) -> JobActivity:
    """A job that started so many hours ago; the warnings as hours ago and percent."""
    return replace(
        JobActivity(ago(hours), warned=tuple(SentWarning(ago(at), percent) for at, percent in warned)), **more
    )


TOLD = (SentWarning(ago(2), 90, Cause.LIFETIME),)
LIMITED = replace(POLICY, lifetime=DAY)
JUDGED: dict[str, tuple[JobActivity, IdleRule, str]] = {
    "a job that is unused for the window is stopped": (old(), POLICY, "stop unused"),
    "without a window no job is stopped": (old(), replace(POLICY, window=None), "keep exempt"),
    "a new job is used": (JobActivity(ago(1)), POLICY, "keep used"),
    # every kind of evidence
    "the Hub's activity": (old(http=ago(1)), POLICY, "keep used"),
    "a notebook server of which nothing is heard": (old(tells_kernels=True), POLICY, "keep unknown"),
    "a notebook server without a busy kernel": (old(tells_kernels=True, kernel_report=ago(0)), POLICY, "stop unused"),
    "kernels that do not count need not tell": (old(tells_kernels=True), SHELL, "stop unused"),
    "a busy kernel": (old(kernel_report=ago(0), kernel_busy=ago(1)), POLICY, "keep used"),
    "bytes of an SSH session": (old(ssh=ago(1)), POLICY, "keep used"),
    "a busy GPU": (old(gpu_count=1, gpus=(gpu(busy=1),)), POLICY, "keep used"),
    "one busy GPU of two": (old(gpu_count=2, gpus=(gpu(busy=20), gpu(busy=1))), POLICY, "keep used"),
    "all GPUs idle for the window": (old(gpu_count=2, gpus=(gpu(busy=20), gpu())), POLICY, "stop unused"),
    # what is not known
    "missing metrics stop nothing": (old(gpu_count=1), POLICY, "keep unknown"),
    "stale metrics stop nothing": (old(gpu_count=1, gpus=(gpu(last=0.2),)), POLICY, "keep unknown"),
    "metrics since a short while are no window": (old(gpu_count=1, gpus=(gpu(since=1),)), POLICY, "keep used"),
    "reports of kernels that ceased stop nothing": (old(kernel_report=ago(3)), POLICY, "keep unknown"),
    # ssh
    "an open and silent session protects": (old(ssh=ago(10.5), ssh_open=True), POLICY, "keep used"),
    "but not for ever": (old(ssh=ago(11.5), ssh_open=True), POLICY, "stop unused"),
    "a closed session protects from its last byte on": (old(ssh=ago(10.5)), POLICY, "stop unused"),
    "a job with SSH of which no gateway ever told": (old(tells_ssh=True), POLICY, "keep unknown"),
    "a job with SSH of which none tells any more": (old(tells_ssh=True, ssh_report=ago(1)), POLICY, "keep unknown"),
    "a job with SSH and a gateway without sessions": (old(tells_ssh=True, ssh_report=ago(0.01)), POLICY, "stop unused"),
    "a gateway tells once a minute, whatever the age of metrics": (
        old(tells_ssh=True, ssh_report=NOW - 2 * MINUTE),
        replace(POLICY, culling=replace(CULLING, metrics_age=0.5 * MINUTE)),
        "stop unused",
    ),
    # keep alive
    "keep alive": (old(http=ago(20), kept=ago(1)), POLICY, "keep used"),
    "keep alive does not add up": (old(http=ago(40), kept=ago(1)), POLICY, "stop unused"),
    # lifetime
    "the lifetime is over, used or not": (old(http=ago(0), warned=TOLD), LIMITED, "stop lifetime"),
    "the lifetime is over, known or not": (old(gpu_count=1, warned=TOLD), LIMITED, "stop lifetime"),
    "the lifetime ends no job without a warning": (old(http=ago(0)), LIMITED, "warn 90 lifetime"),
    # TensorBoard
    "an open tab alone keeps a TensorBoard for a while": (
        replace(old(http=ago(0)), started=ago(11)),
        BOARD,
        "keep used",
    ),
    "but not for ever, either": (old(http=ago(0)), BOARD, "stop unused"),
    "while the job runs that it shows it is used": (old(http=ago(0), watched=ago(0)), BOARD, "keep used"),
    "a TensorBoard without use": (old(http=ago(47), watched=ago(20)), BOARD, "stop unused"),
    # warnings
    "at half of the window": (JobActivity(ago(5)), POLICY, "warn 50 unused"),
    "at nine tenths": (new(9, (4, 50)), POLICY, "warn 90 unused"),
    "only the later one where both are due": (JobActivity(ago(9)), POLICY, "warn 90 unused"),
    "a warning before the last use is void": (new(48, (9.5, 90), http=ago(9)), POLICY, "warn 90 unused"),
    "no job is stopped without a warning": (JobActivity(ago(48)), POLICY, "warn 90 unused"),
    "nor at once after the warning": (new(48, (0.3, 90)), POLICY, "keep used"),
    "half an hour is enough of a warning": (new(48, (0.5, 90)), POLICY, "stop unused"),
    # clocks that jump
    "activity in the future is use": (old(http=NOW + DAY), POLICY, "keep used"),
    "a clock that jumped forward makes metrics stale": (
        JobActivity(ago(1000), gpu_count=1, gpus=(gpu(last=900, since=1000),)),
        POLICY,
        "keep unknown",
    ),
    "a clock that jumped forward warns first": (JobActivity(ago(1000), http=ago(900)), POLICY, "warn 90 unused"),
    "a warning in the future has not stood": (new(48, (-24, 90)), POLICY, "keep used"),
    # dry run
    "a cluster without settings for idle jobs stops none": (
        old(warned=(*old().warned, *TOLD)),
        IdleRule(HOUR, DAY, frozenset(ActivitySource), None, Culling()),
        "would stop lifetime",
    ),
    "a dry run says what it would stop": (
        JobActivity(ago(48)),
        replace(POLICY, culling=replace(CULLING, dry_run=True)),
        "would stop unused",
    ),
}


def said(verdict: IdleDecision) -> str:
    match verdict:
        case KeepJob(why):
            return f"keep {why.value}"
        case WarnUser(percent, why):
            return f"warn {percent} {why.value}"
        case StopJob(why, _, dry_run):
            return f"{'would stop' if dry_run else 'stop'} {why.value}"


@pytest.mark.parametrize(("activity", "policy", "expected"), JUDGED.values(), ids=JUDGED)
def test_idle_decision(activity: JobActivity, policy: IdleRule, expected: str) -> None:
    assert said(evaluate(activity, policy, NOW)) == expected


WINDOWS: dict[str, tuple[IdlePolicy, IdleWindows, bool, int | None]] = {
    "the cluster's": (IdlePolicy(), IdleWindows(), False, 10),
    "the team's before the cluster's": (IdlePolicy(), IdleWindows(6 * HOUR), False, 6),
    "a preemptible job has the ordinary one": (IdlePolicy(), IdleWindows(), True, 10),
    "or the one for preemptible jobs": (IdlePolicy(2 * HOUR), IdleWindows(None, HOUR), True, 1),
}


@pytest.mark.parametrize(("template", "of_team", "preemptible", "hours"), WINDOWS.values(), ids=WINDOWS)
def test_idle_window(template: IdlePolicy, of_team: IdleWindows, preemptible: bool, hours: int | None) -> None:
    assert idle_rule_of(template, of_team, CULLING, preemptible).window == (None if hours is None else hours * HOUR)


@pytest.mark.parametrize(
    ("own", "of_cluster", "reported"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
    ids=["the cluster's dry run", "the cluster's stops", "a template that stops", "a template's dry run"],
)
def test_dry_run_of_template_and_cluster(own: bool | None, of_cluster: bool, reported: bool) -> None:
    culling = replace(CULLING, dry_run=of_cluster)
    policy = idle_rule_of(IdlePolicy(dry_run=own), IdleWindows(), culling, preemptible=False)
    verdict = evaluate(new(48, (10, 50), (2, 90)), policy, NOW)
    assert isinstance(verdict, StopJob)
    assert verdict.dry_run is reported


def test_warning_has_the_time_of_the_stop() -> None:
    verdict = evaluate(JobActivity(ago(5)), POLICY, NOW)
    assert isinstance(verdict, WarnUser)
    assert (verdict.idle_since, verdict.stop_at) == (ago(5), ago(-5))


SAMPLES: dict[str, tuple[list[tuple[float, float]], GpuUse | None]] = {
    "nothing without samples": ([], None),
    "nothing of what is no number": ([(1, float("nan"))], None),
    "since when it is watched": ([(3, 0), (0, 0), (1, 0), (2, 4.9)], GpuUse(NOW - 3 * MINUTE, NOW)),
    "when it was last busy": ([(3, 90), (2, 5), (1, 0)], GpuUse(NOW - 3 * MINUTE, NOW - MINUTE, NOW - 2 * MINUTE)),
    "only from the end of the last gap": ([(30, 0), (20, 0), (1, 0), (0, 0)], GpuUse(NOW - MINUTE, NOW)),
}


@pytest.mark.parametrize(("samples", "expected"), SAMPLES.values(), ids=SAMPLES)
def test_gpu_use_from_samples(samples: list[tuple[float, float]], expected: GpuUse | None) -> None:
    assert gpu_use([(NOW - at * MINUTE, percent) for at, percent in samples], CULLING) == expected


JOINED: dict[str, tuple[GpuUse | None, GpuUse | None, GpuUse | None]] = {
    "nothing new": (gpu(busy=3), None, gpu(busy=3)),
    "nothing old": (None, gpu(busy=3), gpu(busy=3)),
    "without a gap": (gpu(since=9, last=1), gpu(since=1.05, busy=0.5), gpu(since=9, busy=0.5)),
    "the old busy time stays": (gpu(since=9, last=1, busy=5), gpu(since=1), gpu(since=9, busy=5)),
    "after a gap only the new": (gpu(since=9, last=2, busy=5), gpu(since=1), gpu(since=1)),
}


@pytest.mark.parametrize(("old", "new", "expected"), JOINED.values(), ids=JOINED)
def test_new_samples_are_merged_with_known_use(old: GpuUse | None, new: GpuUse | None, expected: GpuUse | None) -> None:
    assert merge_samples(old, new, CULLING) == expected


IDLE: dict[str, tuple[JobActivity, IdleRule, bool]] = {
    "unused for half an hour": (JobActivity(ago(0.5)), POLICY, True),
    "or for half of a short window": (JobActivity(ago(0.1)), replace(POLICY, window=0.2 * HOUR), True),
    "also where it would never be stopped": (JobActivity(ago(0.5)), replace(POLICY, window=None), True),
    "but not before": (JobActivity(ago(0.4)), POLICY, False),
    "nor where that is not known": (old(gpu_count=1), POLICY, False),
    "keep alive is a wish and no use": (old(kept=ago(0)), POLICY, True),
}


@pytest.mark.parametrize(("activity", "policy", "expected"), IDLE.values(), ids=IDLE)
def test_is_idle(activity: JobActivity, policy: IdleRule, expected: bool) -> None:
    assert is_idle(activity, policy, NOW) is expected


def test_gpu_memory_is_no_use() -> None:
    holds = replace(gpu(), memory_bytes=70 * GIB)
    assert isinstance(evaluate(old(gpu_count=1, gpus=(holds,)), POLICY, NOW), StopJob)


TIMES = st.none() | st.integers(-3000, 3000).map(lambda minutes: NOW + minutes * MINUTE)
ACTIVITIES = st.builds(
    JobActivity,
    started=st.integers(-3000, 100).map(lambda minutes: NOW + minutes * MINUTE),
    http=TIMES,
    kernel_busy=TIMES,
    kernel_report=st.sampled_from([None, NOW, NOW - HOUR]),
    ssh=TIMES,
    ssh_open=st.booleans(),
    tells_ssh=st.booleans(),
    ssh_report=st.sampled_from([None, NOW, NOW - HOUR]),
    gpu_count=st.integers(0, 1),
    gpus=st.sampled_from([(), (gpu(),), (gpu(busy=3),), (gpu(last=1),)]),
    kept=TIMES,
    warned=st.lists(
        st.builds(
            SentWarning, TIMES.map(lambda at: at or NOW), st.sampled_from([50, 90]), st.sampled_from([Cause.UNUSED])
        ),
        max_size=3,
    ).map(tuple),
)


@given(ACTIVITIES)
@settings(max_examples=300)
def test_active_or_unknown_job_is_never_stopped(activity: JobActivity) -> None:
    verdict = evaluate(activity, POLICY, NOW)
    if isinstance(verdict, StopJob):
        seen = [activity.started, activity.http, activity.ssh, *(one.last_busy for one in activity.gpus)]
        assert all(at is None or at <= NOW - timedelta(hours=10) for at in seen)
        assert len(activity.gpus) >= activity.gpu_count
        assert activity.ssh_report == NOW or not activity.tells_ssh
        assert any(one.percent == 90 and one.at <= NOW - 30 * MINUTE for one in activity.warned)


@given(ACTIVITIES)
@settings(max_examples=100)
def test_unused_job_is_warned_twice_and_stopped(activity: JobActivity) -> None:
    """Time goes on and nothing else happens: the verdicts are keep, warn 50, warn 90, stop, in this order."""
    activity = replace(activity, gpu_count=0, gpus=(), kernel_report=None, tells_ssh=False, warned=())
    now, words = NOW, []
    for _ in range(2000):
        verdict = evaluate(activity, POLICY, now)
        if isinstance(verdict, WarnUser):
            words.append(verdict.percent)
            activity = replace(activity, warned=(*activity.warned, SentWarning(now, verdict.percent)))
        if isinstance(verdict, StopJob):
            break
        now += timedelta(minutes=7)
    assert words in ([50, 90], [90])
    assert isinstance(verdict, StopJob)


PARTS = (0.5, 0.9, 1)


@given(st.floats(0.1, 30), st.floats(1, 30), st.one_of(st.none(), st.floats(1, 30)))
def test_looks_at_the_changes_alone_decide_like_looks_all_the_time(idle: float, window: float, life: float) -> None:
    """The times of the warnings and of the stop are those of a caller that looks every minute, to the minute.

    Where the window's and the lifetime's are together, one look tells one of them, and another the other one first.
    """
    ends = [] if life is None else [(idle + window * part, life * of) for part in PARTS for of in PARTS]
    assume(all(abs(one - other) > 0.5 for one, other in ends))
    policy = replace(POLICY, window=window * HOUR, lifetime=None if life is None else life * HOUR)

    def play(every_minute: bool) -> list[tuple[str, int]]:
        activity, now, told = JobActivity(ago(0), watched=NOW + idle * HOUR), NOW + idle * HOUR, []
        while now < NOW + 100 * HOUR:
            found = evaluate(activity, policy, now)
            if not isinstance(found, KeepJob):
                told.append((repr(getattr(found, "percent", "stop")), round((now - NOW) / MINUTE)))
            if isinstance(found, StopJob):
                break
            if isinstance(found, WarnUser):
                warned = (*activity.warned, SentWarning(now, found.percent, found.why))
                activity = replace(activity, warned=warned)
            later = next_change(activity, policy, now)
            assert later is not None
            now = now + MINUTE if every_minute else later
        return told

    often, seldom = play(True), play(False)
    assert [what for what, _ in often] == [what for what, _ in seldom]
    assert all(abs(one[1] - other[1]) <= 3 for one, other in zip(often, seldom, strict=True))
