"""The cluster state after any changes: it equals one that is built anew, and so do its decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.config import ClusterConfig, Team
from dlspawner.core.decisions import Admit, Decision, Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import Node, Taint
from dlspawner.core.resources import ResourceRequest
from dlspawner.core.scheduling.admission import admit, evaluate, schedule
from dlspawner.core.scheduling.cluster_state import ClusterState, DecayedUsage
from dlspawner.core.scheduling.limits import Blocked
from dlspawner.core.scheduling.queue import first_past_max_wait, in_order
from dlspawner.core.units import GPU
from tests.unit.core.factories import (
    GPU_HOUR,
    HOUR,
    HURRIED,
    MINUTE,
    NOW,
    act,
    ask,
    ask_to_leave,
    cluster_state,
    node,
    queues,
    runs,
    team,
    wants,
)

TEAMS = (
    team("a", {"a100": 4, "v100": 2, "a100-1g": Fraction(284, 1000)}, borrow_limit=6),
    team("b", 4, preempt_within_team=True),
    team("c", 1, soft=1, hard=3),
)
NODES = ["n1", "n2", "n3"]
KINDS = ("a100", "v100", "a100-1g")
OTHER_SHARE = replace(
    HURRIED,
    gpu_types=tuple(replace(one, share=Fraction(1, 2)) if one.share != 1 else one for one in HURRIED.gpu_types),
)
TRIES = [
    wants("x", of, gpus, kind=kind, preemptible=preemptible, priority=50)
    for of in "abc"
    for gpus in (0, 1, 4)
    for kind in KINDS
    for preemptible in (False, True)
]

QUEUE = [  # jobs that may not be passed any more; any of them may change or go
    queues("j", "a", 4, waited=HOUR),
    queues("k", "a", 2, kind="v100", waited=HOUR),
    queues("l", "b", 4, waited=HOUR, user="bob"),
    queues("m", "b", 2, waited=HOUR),
    queues("n", "a", 3, waited=HOUR, user="bob"),
    queues("o", "a", 8, waited=2 * HOUR, preemptible=True),
    queues("p", "b", 4, waited=HOUR, preemptible=True),
]


def not_zero(counts: Mapping[Any, Any]) -> dict[Any, Any]:
    plain = {name: not_zero(found) if isinstance(found, Mapping) else found for name, found in counts.items()}
    return {name: found for name, found in plain.items() if found}


def counted(here: ClusterState) -> dict[str, Any]:
    """Everything that a cluster state has counted, as values that can be compared."""
    rooms = {
        name: (
            room.node,
            {key: value for key, value in room.gpus.items() if value},
            (room.cpu_milli, room.memory_bytes),
            {key: value for key, value in room.borrowed.items() if value},
            {key: sorted(map(repr, pods)) for key, pods in room.allocations.items()},
            {key: sorted(map(repr, pods)) for key, pods in room.reservations.items()},
            {key: value for key, value in room.guaranteed_by_team.items() if value},
            (room.gpu_share, room.cpu_with_gpus, room.memory_with_gpus, room.preemptible, room.terminating),
        )
        for name, room in here.node_infos.items()
    }
    pools = {
        charge: (pool.levels, sorted(pool.node_infos))
        for charge in KINDS
        for pod in [ask(1, charge).pods[0]]
        for pool in [here.pool(pod.resource, pod.placement)]
    }
    held = {
        (team, count.name): found
        for team, one in here._held.items()
        for count in fields(one)
        if (found := not_zero(getattr(one, count.name)))
    }
    sums = (held, here._homeless)
    return {"rooms": rooms, "pools": pools, "sums": sums, "queues": here.queues, "layout": here.quota_by_team("a100")}


NOT_SEEN = {JobState.SUBMITTED, JobState.PENDING_APPROVAL}


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    state = draw(st.sampled_from([one for one in JobState if one not in NOT_SEEN]))
    gpus = draw(st.sampled_from([[0], [1], [2], [4], [1, 2], [0, 1]]))
    nodes = draw(st.sampled_from([(), *((name,) * len(gpus) for name in (*NODES, "gone", None)), ("n1", "n2")]))
    started = (
        NOW - timedelta(minutes=draw(st.integers(0, 30))) if state in {JobState.RUNNING, JobState.STOPPING} else None
    )
    return Job(
        id=draw(st.sampled_from("jklmnopq")),
        user=draw(st.sampled_from(["alice", "bob"])),
        team=draw(st.sampled_from(["a", "b", "c", "gone"])),
        submitted=NOW - timedelta(minutes=draw(st.integers(0, 90))),
        request=each(ask(gpus, draw(st.sampled_from(KINDS))), draw(st.sampled_from([0, 0, 1, 2]))),
        priority=draw(st.sampled_from([10, 100])),
        preemptible=draw(st.booleans()),
        state=state,
        started=started,
        nodes=nodes,
        notice=draw(st.sampled_from([None, None, NOW])),
        idle=draw(st.booleans()),
    )


def each(request: ResourceRequest, adapters: int) -> ResourceRequest:
    """The request, with so many adapters for each pod."""
    extended = (("rdma/hca", adapters * GPU),) if adapters else ()
    return replace(request, pods=tuple(replace(pod, extended=extended) for pod in request.pods))


@st.composite
def machines(draw: st.DrawFn) -> Node:
    kind = draw(st.sampled_from([*KINDS, None]))
    found = node(draw(st.sampled_from(NODES)), draw(st.sampled_from([2, 4, 8])), kind)
    found = replace(found, gpus=(*found.gpus, ("rdma/hca", draw(st.sampled_from([0, 2, 4])) * GPU)))
    taints = (Taint("x"),) if draw(st.integers(0, 9)) == 0 else ()
    return replace(found, cordoned=draw(st.integers(0, 4)) == 0, ready=draw(st.integers(0, 9)) > 0, taints=taints)


CHANGES = st.lists(
    st.one_of(
        jobs(),
        jobs(),
        machines(),
        st.sampled_from("jklmnopq").map(lambda name: ("remove", name)),
        st.sampled_from(NODES).map(lambda name: ("remove_node", name)),
        st.sampled_from([HURRIED, OTHER_SHARE]),
    ),
    max_size=25,
)


def change(here: ClusterState, what: Job | Node | ClusterConfig | tuple[str, str]) -> None:
    if isinstance(what, Job):
        here.put(what)
    elif isinstance(what, ClusterConfig):
        here.configure(what, here.teams)
    elif isinstance(what, Node):
        here.put_node(what)
    else:
        getattr(here, what[0])(what[1])


@given(CHANGES)
@settings(max_examples=120)
def test_updated_cluster_state_equals_a_rebuilt_one(changes: list[Any]) -> None:
    here = cluster_state(*TEAMS, node("n1"), node("n2", 4), cluster=HURRIED)
    counted(here)  # so that pools exist and must be kept up
    for what in changes:
        change(here, what)
    assert counted(here) == counted(ClusterState.of(here.snapshot()))


@given(CHANGES)
@settings(max_examples=60)
def test_updated_and_rebuilt_cluster_states_decide_alike(changes: list[Any]) -> None:
    here = cluster_state(*TEAMS, *QUEUE, node("n1"), node("n2", 4), cluster=HURRIED)
    here.usage = {"a": DecayedUsage(GPU_HOUR, NOW)}
    decided(here)
    for what in changes:
        change(here, what)
        decided(here)  # so that what was found out must be forgotten
    anew = ClusterState.of(here.snapshot())
    assert decided(here) == decided(anew)


@given(st.sampled_from([TEAMS, (team("a", 6), team("b", 6), team("c", 0))]), CHANGES)
@settings(max_examples=60)
def test_pass_that_skips_jobs_decides_as_one_that_looks_at_each(teams: tuple[Team, ...], changes: list[Any]) -> None:
    here = cluster_state(*teams, node("n1"), node("n2", 4), cluster=HURRIED)
    for number, what in enumerate([*QUEUE, *changes]):
        change(here, what)
        now, anew = NOW + number * 10 * MINUTE, ClusterState.of(here.snapshot())
        looked = ((job, evaluate(job, anew, now)) for job in in_order(anew, now))
        expected = carried_out(anew, looked, now)
        assert carried_out(here, schedule(here, now), now) == expected


def carried_out(here: ClusterState, found: Iterator[tuple[Job, Any]], now: datetime) -> list[tuple[str, Any]]:
    """Puts each answer into the cluster state before the next one is asked for; returns them."""
    done = []
    for job, decision in found:
        answer = decision
        if isinstance(decision, Blocked) and decision.reserve:
            answer = Preempt((), decision.reserve)
        if isinstance(answer, Admit):
            act(here, job, answer, now)
        elif isinstance(answer, Preempt):
            ask_to_leave(here, job, answer, now)
        else:
            continue
        done.append((job.id, answer))
    return done


def decided(here: ClusterState) -> tuple[list[Decision], list[Job | None], tuple[Job, Decision] | None]:
    """The answers of the cluster state, the jobs that may not be passed, and the order."""
    heads = [first_past_max_wait((team, kind), team, here, NOW) for team in "abc" for kind in KINDS]
    return [admit(one, here, NOW) for one in TRIES], heads, next(schedule(here, NOW), None)


def test_usage_grows_with_held_gpus_and_decays_by_half() -> None:
    here = cluster_state(team("a", 1), node("n1"), runs("j", "a", 1, "n1"))
    half_life = here.cluster.scheduling.half_life
    here.tick(NOW)
    here.tick(NOW + half_life)
    used = here.usage_of("a", NOW + half_life)
    here.remove("j")
    here.tick(NOW + half_life)
    assert used > 0
    assert abs(here.usage_of("a", NOW + 2 * half_life) / used - 0.5) < 1e-9


def test_usage_does_not_depend_on_the_number_of_ticks() -> None:
    once, often = (cluster_state(team("a", 1), node("n1"), runs("j", "a", 1, "n1")) for _ in range(2))
    once.tick(NOW)
    for minute in range(0, 61, 5):
        often.tick(NOW + timedelta(minutes=minute))
    later = NOW + timedelta(hours=1)
    assert abs(once.usage_of("a", later) / often.usage_of("a", later) - 1) < 1e-9


def test_clock_that_goes_back_reduces_no_usage() -> None:
    here = cluster_state(team("a", 1), node("n1"), runs("j", "a", 1, "n1"))
    here.tick(NOW)
    here.tick(NOW + timedelta(hours=1))
    used = here.usage_of("a", NOW + timedelta(hours=1))
    here.tick(NOW - timedelta(days=365))
    assert here.usage_of("a", NOW - timedelta(days=365)) == used
