"""Approvals: the jobs that need one, the approvers, and the limits of an approval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspawner.core.decisions import Admit, Reason, Refuse
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling import limits
from dlspawner.core.scheduling.admission import evaluate, find_alternatives
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.limits import ApprovalKind, approvers, required_approvals
from dlspawner.core.units import GPU
from tests.unit.core.factories import NOW, Case, cluster_state, node, queues, runs, team, wants

N1 = node("n1")
SOFT = (team("a", 8, soft=2), N1)
SAID = "Team a gives one person at most 2 GPUs without approval"
WAITS = JobState.PENDING_APPROVAL
# The cluster, the job that asks, and what its admins read; nothing where it needs no approval.
NEEDS: dict[str, Case] = {
    "as many as the soft cap need none": Case(cluster_state(*SOFT), wants("j", "a", 2), ""),
    "more than the soft cap alone": Case(cluster_state(*SOFT), wants("j", "a", 3), f"3 GPUs of type a100. {SAID}."),
    "more together with what the person holds": Case(
        cluster_state(*SOFT, runs("r", "a", 2, "n1")), wants("j", "a", 1), f"1 GPU of type a100. {SAID}; alice holds 2."
    ),
    "what is promised to another job of the person counts": Case(
        cluster_state(*SOFT, queues("p", "a", 2, nodes=("n1",))),
        wants("j", "a", 1),
        f"1 GPU of type a100. {SAID}; alice holds or was promised 2.",
    ),
    "what was promised to the job itself does not count twice": Case(
        cluster_state(*SOFT, queues("j", "a", 2, nodes=("n1",))), queues("j", "a", 2, nodes=("n1",)), ""
    ),
    "what the person holds for another team does not count": Case(
        cluster_state(team("a", 8, soft=2), team("b", 8), node("n1", 16), runs("r", "b", 8, "n1")),
        wants("j", "a", 2),
        "",
    ),
    "a preemptible job says so": Case(
        cluster_state(*SOFT), wants("j", "a", 3, preemptible=True), f"3 GPUs of type a100, preemptible. {SAID}."
    ),
    "what was approved needs none": Case(cluster_state(*SOFT), wants("j", "a", 3, approved=True), ""),
    "nor what is more than the quota": Case(cluster_state(team("a", 4, soft=2), N1), wants("j", "a", 5), ""),
    "a blocked user's job needs none": Case(cluster_state(*SOFT, blocked=["alice"]), wants("j", "a", 3), ""),
    "nodes that are away change nothing": Case(
        cluster_state(team("a", 8, soft=2)), replace(queues("j", "a", 3), state=WAITS), f"3 GPUs of type a100. {SAID}."
    ),
}


@pytest.mark.parametrize(("here", "job", "expected"), NEEDS.values(), ids=NEEDS)
def test_missing_approvals(here: ClusterState, job: Job, expected: str) -> None:
    found = limits.missing_approvals(job, here)
    assert " ".join(f"{one.what}. {one.why}" for one in found) == expected
    assert all(one.kind is ApprovalKind.SOFT_CAP for one in found)


def test_alternatives_need_no_approval() -> None:
    here = cluster_state(*SOFT)
    assert [(one.gpus, one.preemptible) for one in find_alternatives(wants("j", "a", 4), here, NOW)] == [
        (2 * GPU, False)
    ]


def test_user_does_not_approve_the_own_job() -> None:
    assert approvers(team("a", admins=("alice", "vera")), "alice") == ("vera",)


@given(
    st.integers(0, 6),
    st.none() | st.integers(0, 9),
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
)
def test_an_approval_is_asked_for_exactly_where_the_soft_cap_is_in_the_way_and_no_other_limit(  # noqa: PLR0917  (what hypothesis gives)
    soft: int, hard: int | None, held: list[int], gpus: int, preemptible: bool, approved: bool
) -> None:
    jobs = [runs(f"r{number}", "a", many, "n2") for number, many in enumerate(held)]
    here = cluster_state(team("a", 12, soft=soft, hard=hard), N1, node("n2", 16), *jobs)
    job = wants("j", "a", gpus, preemptible=preemptible, approved=approved)
    found, waits = evaluate(job, here, NOW), bool(limits.missing_approvals(job, here))
    # It is the reason, and the only one that an approver can take away.
    assert waits == (not isinstance(found, Admit | Refuse) and found.reason is Reason.APPROVAL)
    if waits:
        given_to = replace(job, approved=True)
        assert sum(held) + gpus > soft
        assert not required_approvals(given_to, here)
        assert not isinstance(evaluate(given_to, here, NOW), Refuse)
    if isinstance(found, Admit) and hard is not None:
        assert not gpus or sum(held) + gpus <= hard, "the hard cap holds, approved or not"
