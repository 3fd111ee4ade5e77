"""The OpenPAI lab's experiments: two nodes with 1 GPU, 2 CPUs and 4 GiB; two virtual clusters with one GPU each."""

from __future__ import annotations

from dataclasses import replace

from dlspawner.core.decisions import Admit, MustWait, Preempt, Reason
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import Node
from dlspawner.core.scheduling.admission import admit
from dlspawner.core.scheduling.cluster_state import ClusterState
from tests.unit.core.factories import GIB, HURRIED, NOW, ask, node, one_pass, queues, runs, team, wants, world

PROD, TEST = 100, 10
CHARGE = replace(ask(1), pods=(replace(ask(1).pods[0], cpu_milli=2000, memory_bytes=4 * GIB),))


def machine(name: str) -> Node:
    return node(name, 1, cpu_milli=2000, memory_bytes=4 * GIB)


def lab(*jobs: Job, opted_in: bool = False) -> ClusterState:
    teams = (team("vc1", 1, preempt_within_team=opted_in), team("vc2", 1, preempt_within_team=opted_in))
    return world(
        *teams, machine("one"), machine("two"), *(replace(job, request=CHARGE) for job in jobs), cluster=HURRIED
    )


def request(name: str, of: str, **more: object) -> Job:
    return wants(name, of, charge=CHARGE, **more)


def test_safety_a_virtual_cluster_can_not_take_more_than_its_own() -> None:
    decision = admit(request("second", "vc1"), lab(runs("first", "vc1", 1, "one")), NOW)

    assert isinstance(decision, MustWait)
    assert decision.reason is Reason.TEAM_QUOTA


def test_safety_also_where_it_opted_in_and_nobody_of_it_can_leave_the_quota_is_what_it_reads() -> None:
    decision = admit(request("second", "vc1"), lab(runs("first", "vc1", 1, "one"), opted_in=True), NOW)

    assert isinstance(decision, MustWait)
    assert decision.reason is Reason.TEAM_QUOTA
    assert decision.sentence == "Team vc1 uses 1 of its 1 GPU of type a100; this job needs 1."


def test_safety_the_other_virtual_cluster_starts_at_once() -> None:
    decision = admit(request("other", "vc2"), lab(runs("first", "vc1", 1, "one"), queues("second", "vc1", 1)), NOW)

    assert isinstance(decision, Admit)


def test_safety_a_virtual_cluster_gets_its_gpu_back_from_opportunistic_jobs() -> None:
    here = lab(runs("o1", "vc1", 1, "one", preemptible=True), runs("o2", "vc1", 1, "two", preemptible=True))
    decision = admit(request("owner", "vc2"), here, NOW)

    assert isinstance(decision, Preempt)
    assert decision.victims == ("o2",)


def test_safety_a_guaranteed_job_is_never_stopped_for_the_other_virtual_cluster() -> None:
    here = lab(runs("a", "vc1", 1, "one"), runs("b", "vc2", 1, "two"), opted_in=True)

    decision = admit(request("c", "vc1", priority=PROD), here, NOW)

    assert isinstance(decision, Preempt)
    assert decision.victims == ("a",)


def test_priority_the_prod_job_is_before_the_test_job_that_came_first() -> None:
    here = lab(
        queues("test", "vc1", 1, priority=TEST, waited=NOW - NOW.replace(hour=1)),
        queues("prod", "vc1", 1, priority=PROD),
    )

    assert one_pass(here, NOW) == ["prod"]


def test_priority_where_the_virtual_cluster_opted_in_a_prod_job_stops_a_test_job() -> None:
    decision = admit(
        request("prod", "vc1", priority=PROD), lab(runs("test", "vc1", 1, "one", priority=TEST), opted_in=True), NOW
    )

    assert isinstance(decision, Preempt)
    assert (decision.victims, decision.nodes) == (("test",), ("one",))


def test_priority_a_test_job_of_the_other_virtual_cluster_is_safe_from_it() -> None:
    """vc1 has its quota free and a claim on the one open node, where a job of vc2 with a lower priority is."""
    here = lab(runs("test", "vc2", 1, "one", priority=TEST), opted_in=True)
    here.put_node(replace(machine("two"), cordoned=True))
    decision = admit(request("more", "vc1", priority=PROD), here, NOW)

    assert isinstance(decision, MustWait)
    assert decision.reason is Reason.NO_FIT


def test_opportunistic_jobs_use_both_nodes_whoever_owns_them() -> None:
    here = lab(*(queues(name, "vc1", 1, preemptible=True) for name in ("o1", "o2", "o3")))

    assert one_pass(here, NOW) == ["o1", "o2"]


def test_opportunistic_jobs_stop_no_opportunistic_ones() -> None:
    here = lab(runs("o1", "vc1", 1, "one", preemptible=True), runs("o2", "vc1", 1, "two", preemptible=True))

    assert isinstance(admit(request("o3", "vc2", preemptible=True, priority=PROD), here, NOW), MustWait)


def test_opportunistic_jobs_go_on_when_the_owner_has_ended() -> None:
    here = lab(runs("owner", "vc1", 1, "one"), runs("other", "vc2", 1, "two"), queues("o1", "vc1", 1, preemptible=True))
    assert one_pass(here, NOW) == []
    here.put(replace(here.jobs["owner"], state=JobState.ENDED))

    assert one_pass(here, NOW) == ["o1"]
