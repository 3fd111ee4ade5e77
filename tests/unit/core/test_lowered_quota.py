"""Lowered quotas: jobs turn preemptible, and guaranteed again when the quota is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.config import Team
from dlspawner.core.job import Job, JobState
from dlspawner.core.nodes import Node
from dlspawner.core.scheduling.preemption import over_quota_jobs, restorable
from dlspawner.core.units import GPU
from tests.unit.core.factories import HOUR, MINUTE, NOW, cluster_state, node, queues, runs, team

N1, N2 = node("n1"), node("n2")
TWO = (team("a", 8), team("b", 8), N1, N2)
EXEMPT, NEW, J = runs("old", "a", 8, "n1", exempt_from_quota=True), runs("new", "a", 4, "n2"), runs("j", "a", 4, "n1")
OVER: dict[str, tuple[tuple[Team | Node | Job, ...], str]] = {
    "the newest beyond a lowered quota": (
        (team("a", 5), N1, *(runs(f"j{age}", "a", 2, "n1", age=age * HOUR) for age in (1, 2, 3, 4))),
        "j1 j2",
    ),
    "as few as possible": (
        (team("a", 1), N1, runs("new", "a", 1, "n1"), runs("old", "a", 4, "n1", age=2 * HOUR)),
        "old",
    ),
    "all guaranteed ones of a removed team": (
        (team("a", 8), N1, runs("j", "gone", 1, "n1"), runs("k", "gone", 1, "n1", preemptible=True)),
        "j",
    ),
    "none for jobs from before any quota": ((team("a", 4), N1, N2, EXEMPT, NEW), ""),
    "a new one beside a job from before any quota": ((team("a", 3), N1, N2, EXEMPT, NEW), "new"),
    "none where no team has a quota, also when a node leaves": (
        (N1, runs("j", "default", 8, "n1"), runs("k", "default", 8, "gone")),
        "",
    ),
    "none for a job that is stopping": ((team("a", 4), N1, J, runs("k", "a", 4, "n1", state=JobState.STOPPING)), ""),
}


@pytest.mark.parametrize(("things", "expected"), OVER.values(), ids=OVER)
def test_jobs_over_the_quota(things: tuple[Team | Node | Job, ...], expected: str) -> None:
    assert " ".join(job.id for job in over_quota_jobs(cluster_state(*things))) == expected


def turned(name: str, gpus: int, age: int, where: str = "n1", **more: object) -> Job:
    """A job of a team with a lowered quota."""
    return runs(name, str(more.pop("of", "a")), gpus, where, preemptible=True, age=age * HOUR, **more)


SOON = {"notice": NOW + MINUTE}
AGAIN: dict[str, tuple[tuple[Team | Node | Job, ...], str]] = {
    "all that the quota has room for": ((*TWO, turned("j", 4, 1), turned("k", 4, 2)), "k j"),
    "the oldest first": ((*TWO, runs("r", "a", 4, "n1"), turned("j", 4, 1), turned("k", 4, 2)), "k"),
    "a small one where an older one is too large": (
        (*TWO, runs("r", "a", 6, "n1"), turned("big", 4, 3), turned("small", 2, 1)),
        "small",
    ),
    "none while other guaranteed jobs hold the quota": ((*TWO, runs("r", "a", 8, "n1"), turned("j", 1, 1)), ""),
    "none with quota that is reserved for a job of the team": (
        (*TWO, turned("j", 1, 1), queues("q", "a", 8, nodes=("n1",))),
        "",
    ),
    "none that is stopping": ((*TWO, turned("j", 1, 1, state=JobState.STOPPING)), ""),
    "one that should leave its team's share for an out-of-share job": (
        (*TWO, turned("j", 8, 1, **SOON), queues("q", "b", 8, nodes=("n1",))),
        "j",
    ),
    "not one that should leave the share of others": ((*TWO, turned("j", 8, 1, "n2", **SOON)), ""),
    "not one that should leave for its own team's share": (
        (team("a", 16), N1, N2, turned("j", 8, 1, **SOON), queues("q", "a", 8, nodes=("n1",))),
        "",
    ),
    "all where no team has a quota any more": ((Team("a"), N1, turned("j", 8, 1)), "j"),
}


@pytest.mark.parametrize(("things", "expected"), AGAIN.values(), ids=AGAIN)
def test_jobs_that_are_guaranteed_again(things: tuple[Team | Node | Job, ...], expected: str) -> None:
    here = cluster_state(*things)
    assert " ".join(job.id for job in restorable(list(here.jobs.values()), here)) == expected


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["n1", "n2"]), st.booleans()), max_size=8),
    st.integers(0, 16),
    st.integers(0, 16),
)
@settings(max_examples=200)
def test_quota_lowered_and_raised_restores_what_fits(
    sizes: list[tuple[int, str, bool]], lowered: int, raised: int
) -> None:
    jobs = [
        runs(f"j{number}", "a", gpus, where, age=number * MINUTE, notice=NOW + MINUTE if leaves else None)
        for number, (gpus, where, leaves) in enumerate(sizes)
    ]
    here = cluster_state(team("a", lowered), team("b", 1), N1, N2, *jobs)
    beyond = over_quota_jobs(here)
    for job in beyond:
        here.put(replace(job, preemptible=True))
    here.configure(here.cluster, cluster_state(team("a", raised), team("b", 1)).teams)
    back = restorable([job for job in here.jobs.values() if job.preemptible], here)
    before = here.guaranteed("a", "a100")
    for job in back:
        here.put(replace(job, preemptible=False))

    left = here.available_quota("a", "a100")
    assert here.guaranteed("a", "a100") <= max(before, raised * GPU)
    assert {job.id for job in back} <= {job.id for job in beyond}
    assert all(job.request.gpus > left for job in here.jobs.values() if job.preemptible)
