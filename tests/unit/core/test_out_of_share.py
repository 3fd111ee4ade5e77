"""Out-of-share placement: what a guaranteed job outside its share leaves to pending jobs of other teams."""

from __future__ import annotations

from typing import Any

import pytest

from dlspawner.core.decisions import Admit, MustWait
from dlspawner.core.job import Job
from dlspawner.core.scheduling.admission import admit, evaluate
from dlspawner.core.scheduling.cluster_state import ClusterState
from tests.unit.core.factories import HOUR, MINUTE, NOW, Case, cluster_state, node, one_pass, queues, runs, team, wants

N1, N2, CLOSED = node("n1"), node("n2"), node("n2", cordoned=True)
HOMES = (team("a", 8), team("b", 8), N1, CLOSED)  # n1 is the share of a, and n2 that of b
TOO_MANY = (team("a", 8), team("b", 8), N1)  # quotas that can not be laid out
HELD, BIG, OLD = runs("r", "b", 1, "n1"), queues("big", "a", 8), queues("big", "a", 8, waited=HOUR)
WIDE = (team("a", 16), team("b", 16), N1, N2)


def outside(gpus: int, **more: Any) -> Job:
    """A job of team b, whose node is closed."""
    return wants("g", "b", gpus, **more)


OUT_OF_SHARE: dict[str, Case] = {
    "a job out of its share starts where no job waits": Case(cluster_state(*HOMES), outside(2), "n1"),
    "a job out of its share leaves another team's share to its waiting job at once": Case(
        cluster_state(*HOMES, HELD, BIG), outside(2), "blocked-by-earlier"
    ),
    "also before that one, in the order of the queue": Case(
        cluster_state(*HOMES, HELD, BIG), outside(2, priority=100, waited=2 * HOUR), "blocked-by-earlier"
    ),
    "a job out of its share goes where the waiting jobs have no share": Case(
        cluster_state(*HOMES, node("n3"), HELD, BIG), outside(2), "n3"
    ),
    "a job that waits for its own team's jobs blocks no job out of its share": Case(
        cluster_state(*HOMES, runs("r", "a", 7, "n1"), BIG), outside(1), "n1"
    ),
    "a job that waits for its user cap blocks no job out of its share": Case(
        cluster_state(team("a", 8, hard=1), *HOMES[1:], HELD, BIG), outside(1), "n1"
    ),
    "nor does a job behind others of its team": Case(
        cluster_state(
            *(*TOO_MANY, runs("r", "a", 4, "n1")),
            *(queues("big", "a", 8, waited=2 * HOUR), queues("small", "a", 2, waited=HOUR)),
        ),
        outside(2),
        "n1",
    ),
    "a job out of its share leaves the nodes to a job behind many with a user cap": Case(
        cluster_state(
            *(team("a", 8, hard=4), *TOO_MANY[1:], runs("r", "a", 4, "n1", user="eve"), runs("s", "b", 1, "n1")),
            *(queues(f"mine{number}", "a", 1, user="eve", waited=2 * HOUR) for number in range(20)),
            queues("big", "a", 4, user="bob", waited=HOUR),
        ),
        outside(1),
        "blocked-by-earlier",
    ),
    "with more quota than GPUs a small job passes a big one of another team": Case(
        cluster_state(*TOO_MANY, HELD, queues("big", "a", 8, waited=MINUTE)), outside(1), "n1"
    ),
    "but not one that has waited for long": Case(
        cluster_state(*TOO_MANY, HELD, OLD), outside(1, priority=100), "blocked-by-earlier"
    ),
    "unless it has waited for longer": Case(cluster_state(*TOO_MANY, HELD, OLD), outside(1, waited=2 * HOUR), "n1"),
    "closest to holding it is the node with the fewest GPUs of guaranteed jobs": Case(
        cluster_state(*WIDE, *(HELD, runs("p", "b", 5, "n1", preemptible=True)), *(runs("s", "b", 3, "n2"), OLD)),
        outside(2),
        "n2",
    ),
    "a borrower is not blocked by a job that could preempt it": Case(
        cluster_state(*TOO_MANY, HELD, OLD), wants("p", "b", 7, preemptible=True), "n1"
    ),
    "a team without a node gets nodes of no share": Case(
        cluster_state(
            *(team("a", 8), team("b", 8), team("c", 8), N1, CLOSED, node("n3", cordoned=True), node("n4")),
            *(runs("r", "c", 1, "n4"), queues("big", "b", 8, waited=HOUR)),
        ),
        wants("g", "c", 1),
        "n1",
    ),
}


@pytest.mark.parametrize(("here", "job", "expected"), OUT_OF_SHARE.values(), ids=OUT_OF_SHARE)
def test_job_outside_its_share(here: ClusterState, job: Job, expected: str) -> None:
    decision = admit(job, here, NOW)
    assert (" ".join(decision.nodes) if isinstance(decision, Admit) else decision.reason.value) == expected


def test_three_jobs_beyond_the_maximum_wait_start_in_order() -> None:
    """Within a team priority decides, between teams the submit time."""
    here = cluster_state(
        *TOO_MANY,
        queues("low", "a", 8, priority=10, waited=4 * HOUR),
        queues("between", "b", 8, waited=3 * HOUR),
        queues("high", "a", 8, priority=100, waited=2 * HOUR),
    )
    found = []
    for _ in range(3):
        (name,) = one_pass(here, NOW)
        found.append(name)
        here.remove(name)

    assert found == ["between", "high", "low"]


def test_earliest_job_is_not_blocked_by_a_later_one_of_its_team() -> None:
    here = cluster_state(
        *TOO_MANY,
        queues("low", "a", 8, priority=10, waited=4 * HOUR),
        queues("between", "b", 8, waited=3 * HOUR),
        queues("high", "a", 8, priority=100, waited=MINUTE),
    )
    assert one_pass(here, NOW) == ["low"]


def test_caches_do_not_grow_with_time() -> None:
    here = cluster_state(*HOMES, HELD, BIG)
    sizes = set()
    for minutes in range(1, 5):
        admit(outside(2), here, NOW + minutes * MINUTE)
        sizes.add((len(here.memo), len(here.node_infos["n1"].cache)))
    assert len(sizes) == 1


def test_blocked_job_gets_the_reason() -> None:
    here = cluster_state(*HOMES, HELD, BIG)
    decision = admit(outside(2), here, NOW)
    assert isinstance(decision, MustWait)
    assert decision.sentence == "A job that wants 8 GPUs comes first: it waits inside its team's quota."


def test_job_with_a_reservation_starts_on_its_share_as_soon_as_it_is_free() -> None:
    leaves = runs("p", "b", 8, "n1", preemptible=True, notice=NOW + 5 * MINUTE)
    here = cluster_state(team("a", 16), team("b", 0), N1, N2, leaves, queues("j", "a", 8, nodes=("n1",)))
    assert evaluate(here.jobs["j"], here, NOW) == Admit(("n2",))
