"""Replays: sharing safety for any load, idle windows against a count of their own, and accounts that add up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlspawner.simulate.report import private_waits, summarize
from dlspawner.simulate.scenario import make
from dlspawner.simulate.sweep import Setting, play
from dlspawner.simulate.trace import Load, Loader, Span, Trace, TraceJob, with_borrowers


@given(
    st.integers(0, 10**6),
    st.sampled_from([0.2, 0.5]),
    st.sampled_from([(300, 600), (900, 0), (60, 3600)]),
    st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=4, max_size=4),
)
@settings(max_examples=15, deadline=None)
def test_notice_and_minimum_run_time_are_all_that_lending_may_cost(
    seed: int, borrowers: float, rules: tuple[int, int], sizes: list[int]
) -> None:
    """Where all guaranteed jobs of a team have the same size, no job waits longer than alone by more than that."""
    random, load = Random(seed), Load(jobs=150, days=0.6)
    drawn = with_borrowers(load.trace(random), borrowers, random)
    sized = {f"team{number}": size for number, size in enumerate(sizes, 1)}
    trace = replace(
        drawn, jobs=tuple(one if one.preemptible else replace(one, gpus=sized[one.team]) for one in drawn.jobs)
    )
    changes = [f"scheduling.notice_seconds={rules[0]}", f"scheduling.min_run_seconds={rules[1]}"]
    scenario = make(trace, (None, None), changes, load=0.8)
    replay = scenario.replay(trace)
    replay.run()
    everything = summarize(replay, scenario, private_waits(scenario, trace)).rows[-1]
    assert (everything.excess_max or 0.0) <= sum(rules) + 1e-3


@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.5]), st.sampled_from([(300, 600), (900, 0), (60, 3600)]))
@example(1375, 0.5, (900, 0))
@settings(max_examples=10, deadline=None)
def test_promised_place_is_free_within_notice_and_minimum_run_time(
    seed: int, borrowers: float, rules: tuple[int, int]
) -> None:
    """With guaranteed jobs of all sizes: a later job with a promise there does not take an earlier one's place."""
    random = Random(seed)
    trace = with_borrowers(Load(jobs=150, days=0.6).trace(random), borrowers, random)
    changes = [f"scheduling.notice_seconds={rules[0]}", f"scheduling.min_run_seconds={rules[1]}"]
    scenario = make(trace, (None, None), changes, load=0.8)
    replay = scenario.replay(trace)
    replay.run()
    assert summarize(replay, scenario).rows[-1].leaving_max <= sum(rules) + 1e-3


def two_teams() -> Trace:
    """A team that floods the cluster, and one that comes afterwards and is inside its quota."""
    loader = Loader([TraceJob("", number, 36_000, 1, "flood") for number in range(20)])
    loader.jobs.append(TraceJob("", 60, 600, 8, "small"))
    return loader.trace("")


def test_sharing_anomaly_appears_without_quotas_and_not_with_them() -> None:
    trace = two_teams()
    scenario = make(trace, (None, None), ["teams.flood.quota.gpu=8"])
    alone, found = private_waits(scenario, trace), {}
    for pool in (True, False):
        replay = replace(scenario, pool=pool).replay(trace)
        replay.run()
        rows = {row.team: row for row in summarize(replay, scenario, alone).rows}
        found[pool] = rows["small"].excess_mean, rows["small"].anomalies
    assert found[False] == (0.0, 0)
    assert found[True] == (36_007 - 60, 1), "it waits for the last job of the flood on one node"


def test_borrower_leaves_after_notice_and_what_it_had_run_is_lost() -> None:
    loader = Loader([TraceJob("", 0, 7200, 8, "lender", preemptible=True), TraceJob("", 3600, 600, 8, "owner")])
    scenario = make(
        loader.trace(""), (None, None), ["teams.lender.quota.gpu=0", "scheduling.notice_seconds=120"], ["1x8"]
    )
    replay = scenario.replay(loader.trace(""))
    replay.run()
    borrower, owner = replay.outcomes.values()
    assert (owner.waited, borrower.preempted, borrower.lost) == (120, 1, 8 * 3720)
    assert borrower.held == 8 * (3720 + 7200)
    assert borrower.ended
    assert replay.now == 3720 + 600 + 7200


@st.composite
def sessions(draw: st.DrawFn) -> list[tuple[int, list[Span]]]:
    """Hours of sessions, and spans of use that neither touch nor overlap."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        cuts = sorted(draw(st.sets(st.integers(0, 24 * 3600), min_size=2, max_size=14)))
        pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
        found.append((draw(st.sampled_from([1, 4, 8])), [(float(a), float(b), 1) for a, b in pairs]))
    return found


@given(sessions(), st.sampled_from([10, 30, 60, 240]))
@settings(max_examples=60, deadline=None)
def test_culling_reclaims_what_a_count_of_the_gaps_says(some: list[tuple[int, list[Span]]], minutes: int) -> None:
    """Every gap longer than the window gives its rest back, and is unwanted unless it is the last one."""
    window, day = 60.0 * minutes, 25 * 3600.0
    loader = Loader([TraceJob("", 0, day, gpus, "team", activity=tuple(spans)) for gpus, spans in some])
    trace = loader.trace("")
    point = play(make(trace, (None, None)), trace, Setting(window=timedelta(minutes=minutes)))
    reclaimed, culls, unwanted = 0.0, 0, 0
    for gpus, spans in some:
        edges = [0.0, *(edge for a, b, _ in spans for edge in (a, b)), day]
        gaps = [b - a for a, b in zip(edges[::2], edges[1::2], strict=True)]
        culls += sum(gap > window for gap in gaps)
        unwanted += sum(gap > window for gap in gaps[:-1])
        reclaimed += gpus * sum(max(0.0, gap - window) for gap in gaps) / 3600
    assert (point.culls, point.unwanted) == (culls, unwanted)
    assert point.reclaimed == pytest.approx(reclaimed)
    assert point.active == pytest.approx(sum(b - a for _, spans in some for a, b, _ in spans) / 3600)
    assert point.held == pytest.approx(point.reserved - reclaimed)


def test_dry_run_stops_nothing() -> None:
    trace = Loader([TraceJob("", 0, 90_000, 1, "team", activity=())]).trace("")
    replay = make(trace, (None, None), ["idle.window_seconds=600", "idle.dry_run=true"]).replay(trace)
    replay.run()
    assert [one.culled for one in replay.outcomes.values()] == [0]


def test_lifetime_ends_a_job() -> None:
    trace = Loader([TraceJob("", 0, 90_000, 2, "team")]).trace("")
    replay = make(trace, (None, None), ["idle.lifetime_seconds=36000"]).replay(trace)
    replay.run()
    assert [(one.held, one.culled, one.ended) for one in replay.outcomes.values()] == [(72_000, 0, True)]


def test_interrupted_replay_tells_what_is_known() -> None:
    trace = Load(jobs=200, days=1).trace(Random(1))
    scenario = make(trace, (None, None))
    replay = scenario.replay(trace)

    def told(done: int) -> None:
        if done > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay.run(told)
    found = summarize(replay, scenario, complete=False)
    assert 50 < found.rows[-1].jobs < 200
    assert 0 < found.days < 1
