"""Sharing safety, as HiveD states it: a team inside its quota is no worse off than on a cluster of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.decisions import Admit, Preempt
from dlspawner.core.scheduling.admission import admit
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.quota_layout import assign
from tests.unit.core.factories import HURRIED, NOW, cluster_state, node, runs, team, wants
from tests.unit.core.simulator import Comes, play

LAID_OUT: dict[str, tuple[dict[str, int], list[tuple[str, int]], dict[str, dict[str, int]]]] = {
    "whole nodes first": ({"n1": 8, "n2": 8}, [("a", 8), ("b", 8)], {"a": {"n1": 8}, "b": {"n2": 8}}),
    "rests share a node": ({"n1": 8, "n2": 8}, [("a", 12), ("b", 4)], {"a": {"n1": 8, "n2": 4}, "b": {"n2": 4}}),
    "a large rest chooses before a small one": (
        {"n1": 8, "n2": 8},
        [("a", 3), ("b", 6), ("c", 5)],
        {"a": {"n2": 3}, "b": {"n1": 6}, "c": {"n2": 5}},
    ),
    "a rest that fits nowhere is spread": (
        {"n1": 8, "n2": 8},
        [("a", 5), ("b", 5), ("c", 5)],
        {"a": {"n1": 5}, "b": {"n2": 5}, "c": {"n2": 3, "n1": 2}},
    ),
    "nodes of different sizes": ({"s": 2, "l": 8}, [("a", 2), ("b", 8)], {"a": {"s": 2}, "b": {"l": 8}}),
    "more quota than GPUs can not be laid out": ({"n1": 8}, [("a", 8), ("b", 1)], {}),
    "no quota has no share": ({"n1": 8}, [("a", 0), ("b", 1)], {"b": {"n1": 1}}),
}


@pytest.mark.parametrize(("nodes", "quotas", "expected"), LAID_OUT.values(), ids=LAID_OUT)
def test_layout(nodes: dict[str, int], quotas: list[tuple[str, int]], expected: dict[str, dict[str, int]]) -> None:
    assert assign(nodes, quotas) == expected
    assert assign(dict(reversed(nodes.items())), quotas) == expected


@given(st.lists(st.integers(0, 8), max_size=6), st.lists(st.integers(0, 20), max_size=5))
@settings(max_examples=200)
def test_layout_gives_each_team_its_quota_and_no_gpu_twice(nodes: list[int], quotas: list[int]) -> None:
    sizes = {f"n{number}": size for number, size in enumerate(nodes)}
    wanted = [(f"t{number}", quota) for number, quota in enumerate(quotas)]
    layout = assign(sizes, wanted)
    assert (layout == {}) == (sum(quotas) > sum(nodes) or not any(quotas))
    if layout:
        assert {name: sum(layout.get(name, {}).values()) for name, _ in wanted} == dict(wanted)
        assert all(sum(shares.get(name, 0) for shares in layout.values()) <= size for name, size in sizes.items())


def test_small_jobs_of_one_team_do_not_break_up_the_nodes_of_another() -> None:
    here = cluster_state(team("a", 8), team("b", 8), node("n1"), node("n2"))
    for name, gpus in (("a1", 5), ("b1", 4), ("b2", 3)):  # the last one would fill up the node of the first
        decision = admit(wants(name, name[0], gpus), here, NOW)
        assert isinstance(decision, Admit)
        here.put(runs(name, name[0], gpus, *decision.nodes))
    here.remove("a1")
    assert isinstance(admit(wants("big", "a", 8), here, NOW), Admit)


NOTICED = replace(HURRIED, scheduling=replace(HURRIED.scheduling, notice=timedelta(minutes=30)))
QUOTAS = [(8, 8, 8), (16, 8, 0), (12, 8, 4), (4, 4, 16), (6, 2, 16), (12, 12, 0), (20, 3, 1)]


@st.composite
def loads(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Comes]]:
    """Quotas that use up three nodes of 8, and jobs of three teams, guaranteed ones and borrowers."""
    quotas = draw(st.sampled_from(QUOTAS))
    whole = assign({"n1": 8, "n2": 8, "n3": 8}, list(zip("abc", quotas, strict=True)))
    coming = []
    for number in range(draw(st.integers(1, 20))):
        of = draw(st.sampled_from("abc"))
        preemptible = draw(st.integers(0, 3)) == 0
        most = 8 if preemptible else max(whole.get(of, {"": 0}).values())
        if not most:
            continue
        name = f"{of}{number:02}"
        more: dict[str, Any] = {"preemptible": preemptible, "priority": draw(st.sampled_from([10, 10, 100]))}
        job = wants(name, of, min(most, draw(st.sampled_from([1, 1, 2, 3, 5, 8]))), **more)
        coming.append(Comes(job, draw(st.integers(0, 60)), draw(st.sampled_from([5, 20, 90]))))
    return quotas, coming


def private(of: str, quotas: tuple[int, ...]) -> ClusterState:
    """A cluster of the team's own: the nodes of its share."""
    share = assign({"n1": 8, "n2": 8, "n3": 8}, list(zip("abc", quotas, strict=True)))[of]
    nodes = [node(name, gpus) for name, gpus in share.items()]
    return cluster_state(team(of, sum(share.values())), *nodes, cluster=HURRIED)


@given(loads())
@settings(max_examples=60)
def test_no_job_waits_longer_than_on_a_private_cluster(load: tuple[tuple[int, ...], list[Comes]]) -> None:
    quotas, coming = load
    teams = [team(name, quota) for name, quota in zip("abc", quotas, strict=True)]
    shared = play(cluster_state(*teams, node("n1"), node("n2"), node("n3"), cluster=HURRIED), coming)
    for of in "abc":
        own = [one for one in coming if one.job.team == of and not one.job.preemptible]
        if own:
            alone = play(private(of, quotas), own)
            assert {name: shared[name] for name in alone} == alone


def test_job_has_its_place_of_a_private_cluster_where_borrowers_leave_at_once() -> None:
    """With notice it has the one without a borrower of two that have as much left."""
    nodes, of = (node("n1"), node("n2")), (team("a", 16), team("b", 0))
    own = (runs("a1", "a", 4, "n1"), runs("a2", "a", 4, "n2"))
    alone = admit(wants("a3", "a", 4), cluster_state(*of, *nodes, *own, cluster=HURRIED), NOW)
    assert isinstance(alone, Admit)
    borrower = runs("b1", "b", 4, *alone.nodes, preemptible=True)
    for cluster, place in ((HURRIED, alone.nodes), (NOTICED, tuple({"n1", "n2"}.difference(alone.nodes)))):
        found = admit(wants("a3", "a", 4), cluster_state(*of, *nodes, *own, borrower, cluster=cluster), NOW)
        assert isinstance(found, Admit | Preempt)
        assert found.nodes == place
