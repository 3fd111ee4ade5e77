"""How a cluster stands, in numbers that people can trust: what is held, promised or closed is not free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlspawner.core.config import ExtendedResource
from dlspawner.core.job import JobState
from dlspawner.core.scheduling import usage_report
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.units import GPU
from tests.unit.core.factories import CLUSTER, ask, cluster_state, node, queues, runs, team

VISION = team("vision", 8)
HELD = (("rdma/hca", 3 * GPU),)
NAMED = replace(CLUSTER, extended_resources=(ExtendedResource("rdma/hca", "Adapters"),))


def a100(here: ClusterState) -> tuple[float, ...]:
    """Total, free, most on one node, on closed nodes, in whole GPUs."""
    [found, *_] = usage_report.type_statuses(here, usage_report.node_statuses(here))
    return tuple(milli / GPU for milli in (found.total, found.free, found.most, found.unschedulable))


N1, N2 = node("n1", 8), node("n2", 4)
FREE = {
    "nothing runs": (cluster_state(VISION, N1, N2), (12, 12, 8, 0)),
    "what runs is not free": (cluster_state(VISION, N1, N2, runs("a", "vision", 3, "n1")), (12, 9, 5, 0)),
    "what is promised is not free": (
        cluster_state(VISION, N1, N2, queues("a", "vision", 6, nodes=("n1",))),
        (12, 6, 4, 0),
    ),
    "what is on a cordoned node is closed": (cluster_state(VISION, N1, replace(N2, cordoned=True)), (12, 8, 8, 4)),
    "what is on a node that does not answer is closed": (
        cluster_state(VISION, replace(N1, ready=False), N2),
        (12, 4, 4, 8),
    ),
    "nodes of other types do not count": (cluster_state(VISION, N1, node("v", 4, "v100")), (8, 8, 8, 0)),
    "there is no node": (cluster_state(VISION), (0, 0, 0, 0)),
    "more is held than there is": (cluster_state(VISION, N2, runs("a", "vision", 8, "n2")), (4, 0, 0, 0)),
}


@pytest.mark.parametrize(("here", "expected"), FREE.values(), ids=FREE)
def test_free_gpus(here: ClusterState, expected: tuple[float, ...]) -> None:
    assert a100(here) == expected


def test_state_of_a_node() -> None:
    lost = replace(node("lost"), ready=False, cordoned=True)
    found = usage_report.node_statuses(cluster_state(replace(node("b"), cordoned=True), lost, node("a")))
    assert [(one.name, one.state) for one in found] == [("a", "ready"), ("b", "cordoned"), ("lost", "unhealthy")]


def test_waiting_jobs_are_counted_by_type() -> None:
    here = cluster_state(VISION, N1, queues("a", "vision", 8), queues("b", "vision", (2, 2), preemptible=True))
    [found, other, *_] = usage_report.type_statuses(here, ())
    assert (found.waiting_jobs, found.waiting_gpus) == (2, 12 * GPU)
    assert (other.waiting_jobs, other.waiting_gpus) == (0, 0)


def test_quota_status_separates_used_and_borrowed() -> None:
    stopping = runs("c", "vision", 1, "n1", state=JobState.STOPPING)
    here = cluster_state(
        VISION, N1, N2, runs("a", "vision", 5, "n1"), runs("b", "vision", 2, "n2", preemptible=True), stopping
    )
    [found, *_] = usage_report.quota_statuses(here, [VISION])
    told = (found.quota, found.used, found.borrowed, found.free)
    assert told == (8 * GPU, 6 * GPU, 2 * GPU, 2 * GPU)


def test_extended_resources_of_nodes_and_of_a_quota() -> None:
    """Of nodes those that the cluster file names."""
    here = replace(node("n1"), gpus=(("nvidia.com/gpu", 8 * GPU), ("rdma/hca", 4 * GPU), ("x.io/y", GPU)))
    mine = team("vision", 8, extended_quota=(("rdma/hca", 6),))
    job = runs("a", "vision", 1, "n1", charge=replace(ask(), pods=(replace(ask().pods[0], extended=HELD),)))
    now = cluster_state(mine, here, replace(here, name="n2", cordoned=True), job, cluster=NAMED)
    open_node, closed_node = (one.extended for one in usage_report.node_statuses(now))
    assert open_node == (usage_report.NodeExtended("rdma/hca", 4 * GPU, GPU),)
    assert closed_node == (usage_report.NodeExtended("rdma/hca", 4 * GPU, 0),)
    status = usage_report.quota_statuses(now, [mine])[-1]
    assert (status.gpu_type, status.resource) == (None, "rdma/hca")
    assert (status.quota, status.used, status.free) == (6 * GPU, 3 * GPU, 3 * GPU)


def test_quota_below_its_use_has_no_free_gpus() -> None:
    small = team("vision", 2)
    [found, *_] = usage_report.quota_statuses(cluster_state(small, N1, runs("a", "vision", 5, "n1")), [small])
    assert (found.used, found.free) == (5 * GPU, 0)
