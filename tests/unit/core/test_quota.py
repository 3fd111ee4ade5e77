"""Quota: every rule of DESIGN.md's table as a sentence, and what the decision is."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dlspawner.core.config import ClusterConfig, CpuJobs, ExtendedResource, Team, TeamsConfig
from dlspawner.core.decisions import Admit, Decision, MustWait, Preempt, Refuse
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import ForeignUsage, NodePlacement, Taint
from dlspawner.core.resources import PodRequest, ResourceRequest
from dlspawner.core.scheduling.admission import admit, as_admitted
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.units import GPU
from tests.unit.core.factories import (
    CLUSTER,
    GIB,
    MIG,
    MINUTE,
    NOW,
    Case,
    ask,
    cluster_state,
    node,
    queues,
    runs,
    team,
    wants,
)

N1, N2 = node("n1"), node("n2")
FAST = ResourceRequest("a100", (replace(ask().pods[0], placement=NodePlacement((("gpu", "a100"), ("zone", "fast")))),))
TWO = (team("a", 8), team("b", 8), N1, N2)
ONE, PAIR = (team("a", 8), N1), (team("a", 16), N1, N2)
MIGS = (team("a", {"a100-1g": Fraction(994, 1000)}), node("m", 14, "a100-1g"))


def said(decision: Decision) -> str:
    """A decision in one word or two, as a table shows it."""
    match decision:
        case Admit(nodes):
            return f"admit {' '.join(nodes)}".strip()
        case Preempt(victims, nodes):
            return f"preempt {' '.join(sorted(victims))} on {' '.join(nodes)}"
        case MustWait(reason):
            return f"wait {reason.value}"
        case Refuse(reason, _, maximum):
            return f"refuse {reason.value}" + ("" if maximum is None else f" {maximum // GPU}")


def asks(gpus: int | list[int] = 1, **more: Any) -> Job:
    """The job that asks, of team a."""
    return wants("j", "a", gpus, **more)


RULES: dict[str, Case] = {
    # guaranteed or preemptible
    "a guaranteed job inside its team's quota starts": Case(cluster_state(*TWO), asks(8), "admit n1"),
    "a guaranteed job goes to its team's share": Case(cluster_state(*TWO), wants("j", "b", 1), "admit n2"),
    "a guaranteed job beyond its team's quota waits although GPUs are idle": Case(
        cluster_state(*TWO, runs("r", "a", 4, "n1")), asks(5), "wait team-quota"
    ),
    "a preemptible job is charged to no quota": Case(
        cluster_state(*TWO, runs("r", "a", 8, "n1")), asks(8, preemptible=True), "admit n2"
    ),
    "a preemptible job takes the fullest node that can hold it": Case(
        cluster_state(*TWO, runs("r", "b", 6, "n2", preemptible=True)), asks(2, preemptible=True), "admit n2"
    ),
    "a preemptible job keeps away from guaranteed ones if it can": Case(
        cluster_state(*TWO, runs("r", "b", 6, "n2")), asks(2, preemptible=True), "admit n1"
    ),
    "a preemptible job waits while no GPU is idle, and has no victims": Case(
        cluster_state(*TWO, runs("r", "a", 8, "n1", preemptible=True), runs("s", "b", 8, "n2")),
        asks(preemptible=True, priority=100),
        "wait no-fit",
    ),
    "a team borrows no more than its limit": Case(
        cluster_state(team("a", 8, borrow_limit=3), N1, N2, runs("r", "a", 2, "n2", preemptible=True)),
        asks(2, preemptible=True),
        "wait borrow-limit",
    ),
    "more than the borrow limit is refused with the limit": Case(
        cluster_state(team("a", 8, borrow_limit=3), N1), asks(4, preemptible=True), "refuse exceeds-limit 3"
    ),
    # what can start
    "more than the whole quota is refused with the quota": Case(
        cluster_state(*TWO, runs("r", "a", 8, "n1")), asks(9), "refuse exceeds-limit 8"
    ),
    "more GPUs on one node than any node has wait": Case(cluster_state(*PAIR), asks(16), "wait no-fit"),
    "two pods of 8 are on two nodes": Case(cluster_state(*PAIR), asks([8, 8]), "admit n1 n2"),
    "three pods of 6 wait on two nodes": Case(
        cluster_state(team("a", 18), N1, N2, node("n3", 4)), asks([6, 6, 6]), "wait no-fit"
    ),
    "a job of a chief without GPUs and two workers has a node for each pod": Case(
        cluster_state(*PAIR, node("z", 0, None)), asks([0, 8, 8]), "admit n1 n1 n2"
    ),
    "a node without the CPU for it does not count": Case(
        cluster_state(team("a", 16), replace(N1, cpu_milli=500), N2), asks(), "admit n2"
    ),
    "a node whose memory others hold does not count": Case(
        cluster_state(*ONE, runs("r", "a", 1, "n1", charge=ask(1, memory=512 * GIB))), asks(), "wait no-fit"
    ),
    "a cordoned node starts nothing": Case(
        cluster_state(team("a", 8), replace(N1, cordoned=True)), asks(), "wait no-fit"
    ),
    "a silent node starts nothing": Case(cluster_state(team("a", 8), replace(N1, ready=False)), asks(), "wait no-fit"),
    "a taint that the job does not tolerate keeps it away": Case(
        cluster_state(team("a", 8), replace(N1, taints=(Taint("own"),)), N2), asks(2), "admit n2"
    ),
    "a job that wants a label goes where it is, even outside its share": Case(
        cluster_state(*TWO[:3], replace(N2, labels=(*N2.labels, ("zone", "fast")))), asks(charge=FAST), "admit n2"
    ),
    "a type that no node has waits for its first one": Case(
        cluster_state(team("a", {"v100": 4}), N1), asks(kind="v100"), "wait no-fit"
    ),
    "GPUs of another vendor are another type": Case(
        cluster_state(team("a", {"a100": 8, "mi300": 2}), N1, node("m", 4, "mi300")), asks(2, kind="mi300"), "admit m"
    ),
    "jobs without GPUs go where no GPUs are": Case(
        cluster_state(team("a"), N1, node("z", 0, None)), asks(0), "admit z"
    ),
    "without quotas every GPU may be used": Case(cluster_state(team("a", {}), N1), asks(8), "admit n1"),
    "and the caps count all the same": Case(
        cluster_state(team("a", {}, hard=2), N1), asks(3), "refuse exceeds-limit 2"
    ),
    "jobs without GPUs leave GPUs the CPU that comes with them": Case(
        cluster_state(team("a"), replace(N1, cpu_milli=33_000)), asks(0, cpu=1001), "wait no-fit"
    ),
    "jobs without GPUs use what is left beside it": Case(
        cluster_state(team("a"), replace(N1, cpu_milli=33_000)), asks(0, cpu=1000), "admit n1"
    ),
    "jobs without GPUs do not take what a job with GPUs has left of its share": Case(
        cluster_state(
            team("a", 8), replace(N1, cpu_milli=33_000), runs("r", "a", 8, "n1", cpu=100), runs("c", "a", 0, "n1")
        ),
        asks(0),
        "wait no-fit",
    ),
    "GPUs that pods of others hold keep nothing": Case(
        cluster_state(
            team("a"), replace(N1, cpu_milli=33_000, others=ForeignUsage((("nvidia.com/gpu", 2 * GPU),), 1000))
        ),
        asks(0, cpu=4000),
        "admit n1",
    ),
    "jobs without GPUs may use all of a node where the cluster says so": Case(
        cluster_state(
            team("a"),
            replace(N1, cpu_milli=33_000),
            cluster=replace(CLUSTER, cpu_jobs=CpuJobs(allow_on_gpu_nodes=True)),
        ),
        asks(0, cpu=33_000),
        "admit n1",
    ),
    "jobs without GPUs go to nodes with GPUs if there is no other room": Case(
        cluster_state(team("a"), N1, node("z", 0, None, cpu_milli=500)), asks(0), "admit n1"
    ),
    # no job is stopped for nothing, and no guaranteed job for another team
    "the owner's GPUs come back from the borrower": Case(
        cluster_state(*TWO, runs("r", "b", 8, "n1", preemptible=True)), asks(4), "preempt r on n1"
    ),
    "an empty node of the own share is taken before a job is stopped": Case(
        cluster_state(*PAIR, runs("r", "b", 8, "n1", preemptible=True)), asks(4), "admit n2"
    ),
    "a guaranteed job of another team is no victim": Case(
        cluster_state(*TWO, runs("r", "b", 8, "n1")), asks(4), "admit n2"
    ),
    "one guaranteed and misplaced job is no victim either": Case(
        cluster_state(*ONE, runs("r", "b", 8, "n1")), asks(4, priority=100), "wait no-fit"
    ),
    "a job that has not run for the minimum time is told that it must leave after that": Case(
        cluster_state(*TWO, runs("r", "b", 8, "n1", preemptible=True, age=9 * MINUTE)), asks(4), "preempt r on n1"
    ),
    "a job that is starting, too": Case(
        cluster_state(*TWO, replace(runs("r", "b", 8, "n1", preemptible=True, state=JobState.STARTING), started=None)),
        asks(4),
        "preempt r on n1",
    ),
    "beside leaving victims no others are stopped": Case(
        cluster_state(
            *TWO,
            runs("r", "b", 4, "n1", preemptible=True, state=JobState.STOPPING),
            runs("s", "b", 4, "n1", preemptible=True),
        ),
        asks(4),
        "wait victims-terminating",
    ),
    "a job keeps what it was promised": Case(
        cluster_state(*TWO, queues("p", "a", 8, nodes=("n1",))), queues("p", "a", 8, nodes=("n1",)), "admit n1"
    ),
    "a reservation is kept from other jobs": Case(
        cluster_state(*ONE, queues("p", "a", 8, nodes=("n1",))), asks(preemptible=True), "wait no-fit"
    ),
    "what is promised counts for the quota": Case(
        cluster_state(*ONE, N2, queues("p", "a", 8, nodes=("n1",))), asks(), "wait team-quota"
    ),
    # within a team
    "a higher priority alone has no victims": Case(
        cluster_state(*ONE, runs("r", "a", 8, "n1", priority=10)), asks(4, priority=100), "wait team-quota"
    ),
    "a team that opted in stops its own lower priority": Case(
        cluster_state(team("a", 8, preempt_within_team=True), N1, runs("r", "a", 8, "n1", priority=10)),
        asks(4, priority=100),
        "preempt r on n1",
    ),
    # people
    "a person's hard cap makes the next job wait": Case(
        cluster_state(team("a", 8, hard=2), N1, runs("r", "a", 2, "n1")), asks(), "wait user-cap"
    ),
    "more than the hard cap is refused with the cap": Case(
        cluster_state(team("a", 8, hard=2), N1), asks(3), "refuse exceeds-limit 2"
    ),
    "more than the soft cap waits for an approval": Case(
        cluster_state(team("a", 8, soft=2, hard=4), N1), asks(3), "wait approval"
    ),
    "more than the hard cap is refused in spite of an approval": Case(
        cluster_state(team("a", 8, soft=2, hard=4), N1), asks(5, approved=True), "refuse exceeds-limit 4"
    ),
    "no approval is offered where the caps are the same": Case(
        cluster_state(team("a", 8, soft=2, hard=2), N1, runs("r", "a", 2, "n1")), asks(), "wait user-cap"
    ),
    "a job that was queued before the soft cap was lowered waits": Case(
        cluster_state(team("a", 8, soft=2, hard=4), N1), queues("j", "a", 3), "wait approval"
    ),
    "a job that waits for an approval competes with no other": Case(
        cluster_state(
            team("a", 8, soft=2), N1, replace(queues("first", "a", 8, user="bob"), state=JobState.PENDING_APPROVAL)
        ),
        asks(),
        "admit n1",
    ),
    "jobs without GPUs need no approval": Case(cluster_state(team("a", 8, soft=0), N1), asks(0), "admit n1"),
    "what is approved starts": Case(
        cluster_state(team("a", 8, soft=2, hard=4), N1), asks(3, approved=True), "admit n1"
    ),
    "another person's jobs are not counted": Case(
        cluster_state(team("a", 8, hard=2), N1, runs("r", "a", 2, "n1", user="bob")), asks(2), "admit n1"
    ),
    "a blocked user starts nothing": Case(cluster_state(*ONE, blocked=["alice"]), asks(0), "refuse blocked"),
    "jobs without GPUs have a cap per person": Case(
        cluster_state(team("a"), N1, runs("r", "a", 0, "n1"), cluster=replace(CLUSTER, cpu_jobs=CpuJobs(1, 9))),
        asks(0),
        "wait user-cap",
    ),
    "jobs without GPUs have a cap per team": Case(
        cluster_state(team("a"), N1, runs("r", "a", 0, "n1"), cluster=replace(CLUSTER, cpu_jobs=CpuJobs(9, 1))),
        asks(0, user="bob"),
        "wait team-cap",
    ),
    # files that change
    "an unknown team is refused": Case(cluster_state(*ONE), wants("j", "x"), "refuse unknown-team"),
    "a queued job of a removed team waits": Case(cluster_state(*ONE), queues("j", "x"), "wait unknown-team"),
    "a queued job of a removed template waits": Case(
        cluster_state(*ONE, templates={"lab": ()}), queues("j", "a", template="old"), "wait unknown-template"
    ),
    "a queued job of a template that its team may not use any more waits": Case(
        cluster_state(team("a", 8, templates=("lab",)), N1, templates={"lab": (), "ide": ()}),
        queues("j", "a", template="ide"),
        "wait unknown-template",
    ),
    "a queued job of a template that is other teams' by now waits": Case(
        cluster_state(*ONE, templates={"lab": ("b",)}), queues("j", "a", template="lab"), "wait unknown-template"
    ),
    "a template that is there is no hindrance": Case(
        cluster_state(team("a", 8, templates=("lab",)), N1, templates={"lab": ("a",)}),
        queues("j", "a", template="lab"),
        "admit n1",
    ),
    "a new template may be one that only the Hub has read": Case(
        cluster_state(*ONE, templates={"lab": ()}), asks(template="new"), "admit n1"
    ),
    "an unknown type is refused": Case(
        cluster_state(*ONE), asks(charge=replace(ask(1), gpu_type="h100")), "refuse unknown-type"
    ),
    "a queued job larger than a lowered quota waits": Case(
        cluster_state(team("a", 2), N1), queues("j", "a", 3), "wait exceeds-limit"
    ),
    "quota above what the nodes have starts what fits": Case(cluster_state(team("a", 99), N1), asks(8), "admit n1"),
    "without any team all users share everything": Case(cluster_state(N1), wants("j", "default", 8), "admit n1"),
    "a user without a team has no quota": Case(cluster_state(*ONE), wants("j", "default", 1), "refuse exceeds-limit 0"),
    "what stops holds its GPUs until it is gone": Case(
        cluster_state(*ONE, runs("r", "a", 8, "n1", state=JobState.STOPPING)), asks(), "wait team-quota"
    ),
    "a job on a node that is gone holds its quota": Case(
        cluster_state(*ONE, runs("r", "a", 8, "gone")), asks(), "wait team-quota"
    ),
    "pods that are no jobs hold what they hold": Case(
        cluster_state(team("a", 8), replace(N1, others=ForeignUsage((("nvidia.com/gpu", 8 * GPU),)))),
        asks(),
        "wait no-fit",
    ),
    # parts of a GPU
    "a quota of one GPU holds its seven parts": Case(
        cluster_state(*MIGS, runs("r", "a", 6, "m", kind="a100-1g")), asks(kind="a100-1g"), "admit m"
    ),
    "and not eight of them": Case(
        cluster_state(*MIGS, runs("r", "a", 6, "m", kind="a100-1g")), asks(2, kind="a100-1g"), "wait team-quota"
    ),
    "parts that others borrowed go back": Case(
        cluster_state(*MIGS, runs("r", "b", 14, "m", kind="a100-1g", preemptible=True)),
        asks(kind="a100-1g"),
        "preempt r on m",
    ),
    "parts that pods of others hold are not free": Case(
        cluster_state(replace(MIGS[-1], others=ForeignUsage(((MIG.resource, 13 * GPU),)))),
        wants("j", "default", 2, kind="a100-1g"),
        "wait no-fit",
    ),
    "jobs without GPUs leave each part the CPU that comes with it": Case(
        cluster_state(replace(MIGS[-1], cpu_milli=8_000)), wants("j", "default", 0, cpu=1001), "wait no-fit"
    ),
    # victims although GPUs of the team's own share are idle
    "no job is stopped where another node of the share has as much left": Case(
        cluster_state(
            team("a", 16),
            N1,
            N2,
            runs("r", "a", 4, "n1"),
            runs("s", "a", 4, "n2"),
            runs("l", "b", 4, "n1", preemptible=True),
        ),
        asks(2),
        "admit n2",
    ),
    "a borrower leaves the fuller node of the share, so that the other one stays whole": Case(
        cluster_state(*PAIR, runs("r", "a", 4, "n1"), runs("l", "b", 4, "n1", preemptible=True)),
        asks(2),
        "preempt l on n1",
    ),
    "no job is stopped for one that the fuller node cannot hold": Case(
        cluster_state(*PAIR, runs("r", "a", 4, "n1"), runs("l", "b", 4, "n1", preemptible=True)), asks(5), "admit n2"
    ),
}


@pytest.mark.parametrize(("here", "job", "expected"), RULES.values(), ids=RULES)
def test_rule(here: ClusterState, job: Job, expected: str) -> None:
    assert said(admit(job, here, NOW)) == expected


SENTENCES: dict[str, Case] = {
    "how much is free and how much of it on one node": Case(
        cluster_state(*PAIR, runs("r", "a", 5, "n1"), runs("s", "a", 3, "n2")),
        asks(6),
        "Idle GPUs of type a100: 8, at most 5 on one node; this job needs 6 on one node.",
    ),
    "how many all pods of a job need": Case(
        cluster_state(*PAIR, runs("r", "b", 5, "n1"), runs("s", "b", 5, "n2")),
        asks([3, 3, 3]),
        "Idle GPUs of type a100: 6, at most 3 on one node; this job needs 9.",
    ),
    "which nodes are closed": Case(
        cluster_state(team("a", 8), node("n1", cordoned=True), node("small", 2, cordoned=True)),
        asks(4),
        "Idle GPUs of type a100: 0, at most 0 on one node; this job needs 4. A node with GPUs of type a100 is closed "
        "for maintenance.",
    ),
    "which nodes do not answer": Case(
        cluster_state(*ONE, runs("r", "b", 8, "n1"), *(node(one, ready=False) for one in ("n2", "n3"))),
        asks(4),
        "Idle GPUs of type a100: 0, at most 0 on one node; this job needs 4. 2 nodes with GPUs of type a100 do not "
        "answer.",
    ),
    "which nodes are closed to a job without GPUs": Case(
        cluster_state(node("n1", kind=None, cordoned=True)),
        wants("j", "default", 0),
        "No node that this job could use takes jobs now; this job needs 1 CPU and 1 GiB of memory. A node is closed "
        "for maintenance.",
    ),
    "how much CPU and memory is free for a job without GPUs": Case(
        cluster_state(N1, runs("r", "default", 0, "n1", cpu=30_000)),
        wants("j", "default", 0, cpu=8_000),
        "Free on the one node that this job could use, beside what comes with GPUs: 2 CPUs and 383 GiB of memory; "
        "this job needs 8 CPUs and 1 GiB of memory.",
    ),
    "how much CPU and memory is free for it on the best of several nodes": Case(
        cluster_state(N1, N2, runs("r", "default", 0, "n1", cpu=31_500), runs("s", "default", 0, "n2", cpu=28_000)),
        wants("j", "default", 0, cpu=8_000),
        "Free on the best of 2 nodes that this job could use, beside what comes with GPUs: 4 CPUs and 383 GiB of "
        "memory; this job needs 8 CPUs and 1 GiB of memory.",
    ),
    "that no node has the type": Case(
        cluster_state(team("a", {"v100": 4}), N1),
        asks(kind="v100"),
        "No node has GPUs of type v100 now; this job waits until one has.",
    ),
    "parts of a GPU in GPUs": Case(
        cluster_state(*MIGS, runs("r", "a", 7, "m", kind="a100-1g")),
        asks(1, kind="a100-1g"),
        "Team a uses 0.994 of its 0.994 GPUs of type a100-1g; this job needs 0.142.",
    ),
    "the quota and what is used of it": Case(
        cluster_state(*TWO, runs("r", "a", 7, "n1")),
        asks(2),
        "Team a uses 7 of its 8 GPUs of type a100; this job needs 2.",
    ),
    "what is promised of the quota apart from what is used": Case(
        cluster_state(
            team("a", 8, preempt_within_team=True),
            N1,
            runs("r", "a", 8, "n1", notice=NOW + MINUTE),
            queues("k", "a", 4, nodes=("n1",), priority=100),
        ),
        asks(6),
        "Team a uses 8 of its 8 GPUs of type a100, and 4 are promised to others of the team; this job needs 6.",
    ),
    "what is promised to others, not to the job itself": Case(
        cluster_state(
            team("a", 8),
            N1,
            runs("r", "a", 6, "n1"),
            queues("k", "a", 1, nodes=("n1",)),
            queues("j", "a", 4, nodes=("n1",)),
        ),
        queues("j", "a", 4, nodes=("n1",)),
        "Team a uses 6 of its 8 GPUs of type a100, and 1 is promised to others of the team; this job needs 4.",
    ),
    "what would work beyond the quota": Case(
        cluster_state(*TWO),
        asks(9),
        "Team a has a quota of 8 GPUs of type a100; you asked for 9. A preemptible job may use idle GPUs of others.",
    ),
    "that a preemptible job may, where the template offers that and the team may borrow so many": Case(
        cluster_state(team("a", 8, borrow_limit=9), N1, borrowing=["lab"]),
        asks(9, template="lab"),
        "Team a has a quota of 8 GPUs of type a100; you asked for 9. A preemptible job may use idle GPUs of others.",
    ),
    "nothing of preemptible jobs where the template does not offer them": Case(
        cluster_state(*ONE, borrowing=["lab"]),
        asks(9, template="tiny"),
        "Team a has a quota of 8 GPUs of type a100; you asked for 9.",
    ),
    "nor where the team may not borrow": Case(
        cluster_state(team("a", 8, borrow_limit=0), N1),
        asks(9),
        "Team a has a quota of 8 GPUs of type a100; you asked for 9.",
    ),
    "how many more a team may borrow": Case(
        cluster_state(team("a", 8, borrow_limit=4), N1, runs("r", "a", 3, "n1", preemptible=True)),
        asks(2, preemptible=True),
        "Team a borrows 3 of at most 4 GPUs and may borrow 1 more; this job needs 2.",
    ),
    "that a team may borrow no more": Case(
        cluster_state(team("a", 8, borrow_limit=4), N1, runs("r", "a", 4, "n1", preemptible=True)),
        asks(2, preemptible=True),
        "Team a borrows 4 of at most 4 GPUs and may borrow no more; this job needs 2.",
    ),
    "how much memory a node has, in words that are no more than it has": Case(
        cluster_state(team("a", 8), node("n1", memory_bytes=64 * GIB - 1)),
        asks(charge=ask(1, memory=64 * GIB)),
        "No node that this job could use has more than 63 GiB of memory; you asked for 64 GiB.",
    ),
    "how much of both a node with so many GPUs has": Case(
        cluster_state(*ONE, node("large", 2, cpu_milli=128_000, memory_bytes=1024 * GIB)),
        asks(4, charge=ask(4, cpu=65_000, memory=600 * GIB)),
        "No node that this job could use has more than 64 CPUs and 512 GiB of memory; you asked for 65 and 600 GiB.",
    ),
    "what a node with so much CPU has where another one has the memory": Case(
        cluster_state(team("a", 8), node("n1", memory_bytes=100 * 2**20), node("n2", cpu_milli=4000)),
        asks(cpu=32_000),
        "No node that this job could use with 32 CPUs has more than 100 MiB of memory; you asked for 1 GiB.",
    ),
    "what is left beside the GPUs for a job without": Case(
        cluster_state(N1),
        wants("j", "default", 0, cpu=33_000),
        "No node that this job could use has more than 32 CPUs beside what comes with its GPUs; you asked for 33.",
    ),
    "that no node is one for the job": Case(
        cluster_state(node("n1", kind=None)),
        wants(
            "j",
            "default",
            0,
            charge=ResourceRequest(None, (PodRequest("", 0, 100, GIB, NodePlacement((("own", "rack"),))),)),
        ),
        "There is no node that this job could use; choose another template.",
    ),
    "how many of a job's pods there could be at one time": Case(
        cluster_state(team("a", 18), N1, N2, node("n3", 4)),
        asks([6, 6, 6]),
        "The cluster's nodes can not hold the 3 pods of this job together, only 2 of them.",
    ),
    "what to do where the nodes with such GPUs are not for the job": Case(
        cluster_state(*ONE),
        wants(
            "j",
            "a",
            1,
            charge=ResourceRequest("a100", (replace(ask().pods[0], placement=NodePlacement((("own", "rack"),))),)),
        ),
        "No node has GPUs of type a100 that this job could use; choose another type of GPU or another template.",
    ),
    "how many the soft cap allows, and the approvers": Case(
        cluster_state(team("a", 8, soft=2, admins=("vera",)), N1),
        asks(3),
        "Team a gives one person at most 2 GPUs without approval; you asked for 3, so it waits for "
        "approval. vera can approve it for team a.",
    ),
    "what the person holds besides, and that a team without admins has the Hub's": Case(
        cluster_state(team("a", 8, soft=2), N1, runs("r", "a", 1, "n1")),
        asks(3),
        "Team a gives one person at most 2 GPUs without approval; you asked for 3 and hold 1, so it waits for "
        "approval. Team a has no admin: an administrator of the Hub can approve it.",
    ),
    "that it can wait for the person's own jobs instead": Case(
        cluster_state(team("a", 8, soft=3, admins=("vera", "victor", "wim")), N1, runs("r", "a", 2, "n1")),
        asks(3),
        "You hold 2 GPUs of the 3 that team a gives one person without approval; this job waits until 2 of them are "
        "free, or until it is approved. vera, victor or wim can approve it for team a.",
    ),
    "that users do not approve their own jobs, and what an approval does not do": Case(
        cluster_state(team("a", 8, soft=2, hard=4, admins=("alice",)), N1, runs("r", "a", 2, "n1")),
        asks(3),
        "Team a gives one person at most 2 GPUs without approval; you asked for 3 and hold 2, so it waits for "
        "approval. Once approved, it still waits for your other jobs: one person holds at most 4. "
        "Team a has no other admin: an administrator of the Hub can approve it.",
    ),
    "what the person was promised": Case(
        cluster_state(team("a", 8, hard=3), N1, queues("k", "a", 1, nodes=("n1",)), runs("r", "a", 1, "n1")),
        asks(3),
        "You hold or were promised 2 GPUs of the 3 that team a gives one person; this job waits until 2 of them are "
        "free.",
    ),
}


@pytest.mark.parametrize(("here", "job", "expected"), SENTENCES.values(), ids=SENTENCES)
def test_sentence_of_a_decision(here: ClusterState, job: Job, expected: str) -> None:
    decision = admit(job, here, NOW)
    assert isinstance(decision, MustWait | Refuse)
    assert decision.sentence == expected


def test_wait_for_a_notice_has_its_end() -> None:
    here = cluster_state(*TWO, runs("r", "b", 8, "n1", preemptible=True, notice=NOW + 3 * MINUTE))
    decision = admit(asks(4), here, NOW)
    assert isinstance(decision, MustWait)
    assert decision.until == NOW + 3 * MINUTE


@pytest.mark.parametrize(("teams", "expected"), [((), True), ((team("a", 8),), False)], ids=["none", "some"])
def test_job_admitted_without_quotas_is_exempt(teams: tuple[Team, ...], expected: bool) -> None:
    assert as_admitted(asks(), ["n1"], cluster_state(*teams, N1)).exempt_from_quota is expected


LIMITS: dict[str, tuple[TeamsConfig, ClusterConfig, bool]] = {
    "a quota": (TeamsConfig((team("a", 1),)), CLUSTER, True),
    "a cap": (TeamsConfig((team("a", {}, soft=1),)), CLUSTER, True),
    "a borrow limit": (TeamsConfig((team("a", {}, borrow_limit=0),)), CLUSTER, True),
    "a number of jobs without GPUs": (TeamsConfig(), replace(CLUSTER, cpu_jobs=CpuJobs(per_team=1)), True),
    "a quota of an extended resource": (TeamsConfig((team("a", {}, extended_quota=(("x/y", 1),)),)), CLUSTER, True),
    "a number of extended resources": (
        TeamsConfig(),
        replace(CLUSTER, extended_resources=(ExtendedResource("x/y", max_per_job=1),)),
        True,
    ),
    "teams alone": (TeamsConfig((team("a", {}),)), CLUSTER, False),
}


@pytest.mark.parametrize(("teams", "cluster", "expected"), LIMITS.values(), ids=LIMITS)
def test_limits_require_admission(teams: TeamsConfig, cluster: ClusterConfig, expected: bool) -> None:
    assert teams.has_limits(cluster) is expected
