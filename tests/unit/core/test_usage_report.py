"""GPUs by team and type at one moment, and the free ones that are unusable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import Node
from dlspawner.core.scheduling.usage_report import TeamTypeUsage, TypeCapacity, capacity_by_type, usage_by_team
from dlspawner.core.units import GPU
from tests.unit.core.factories import cluster_state, node, queues, runs, team, wants


def test_usage_by_team() -> None:
    here = cluster_state(
        team("vision", 8),
        node("n1"),
        runs("a", "vision", 2, "n1"),
        runs("b", "vision", 3, "n1", preemptible=True),
        runs("c", "vision", 1, "n1", state=JobState.STOPPING),
        queues("d", "vision", 4),
        wants("e", "vision", 1, state=JobState.LOGIN_REQUIRED),
        wants("h", "vision", 2, state=JobState.PENDING_APPROVAL),
        runs("f", "guests", 1, "n1", preemptible=True),
        queues("g", "vision", 0),
    )
    assert usage_by_team(here) == {
        ("vision", "a100"): TeamTypeUsage(
            quota=8 * GPU, guaranteed=3 * GPU, borrowed=3 * GPU, queued=5 * GPU, unapproved=2 * GPU
        ),
        ("guests", "a100"): TeamTypeUsage(borrowed=GPU),
    }


N2 = node("n2", 4)
CLOSED = replace(N2, cordoned=True)
SILENT = replace(N2, ready=False)
SMALL_CPU = replace(N2, cpu_milli=500)
CAPACITY = {
    "without waiting jobs nothing is fragmented": ((N2,), 0, 0),
    "a cordoned node is closed": ((CLOSED,), 4, 0),
    "so is a node that is not ready": ((SILENT,), 4, 0),
    "three free on one node are too few for four, and four on the other are not": (
        (N2, queues("q", "vision", 4)),
        0,
        3,
    ),
    "a job that fits in both places makes all of it usable": ((N2, queues("q", "vision", 3)), 0, 0),
    "five fit nowhere": ((N2, queues("q", "vision", 5)), 0, 7),
    "one small job that fits makes everything usable": ((N2, queues("q", "vision", 5), queues("r", "vision", 1)), 0, 0),
    "each pod is looked at for itself": ((N2, queues("q", "vision", [4, 4])), 0, 3),
    "GPUs without the CPU that goes with them are of no use": ((SMALL_CPU, queues("q", "vision", 1)), 0, 4),
    "what is closed is not fragmented as well": ((CLOSED, queues("q", "vision", 4)), 4, 3),
    "a job that waits for another type does not count": ((N2, queues("q", "vision", 4, kind="v100")), 0, 0),
    "a job that waits for a login does not count": ((N2, wants("q", "vision", 5, state=JobState.LOGIN_REQUIRED)), 0, 0),
}


@pytest.mark.parametrize(("things", "closed", "fragmented"), CAPACITY.values(), ids=CAPACITY)
def test_closed_and_fragmented_gpus(things: tuple[Node | Job, ...], closed: int, fragmented: int) -> None:
    here = cluster_state(team("vision", 12), node("n1"), runs("a", "vision", 5, "n1"), *things)
    assert capacity_by_type(here)["a100"] == TypeCapacity(12 * GPU, 7 * GPU, closed * GPU, fragmented * GPU)


def test_a_type_without_nodes_has_nothing() -> None:
    assert capacity_by_type(cluster_state(node("n1")))["mi300"] == TypeCapacity()
