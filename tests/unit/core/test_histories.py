"""Invariants under any order of submits, cycles, ends, restarts, and changes of files and nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlspawner.core.config import Team, TeamsConfig
from dlspawner.core.decisions import Admit
from dlspawner.core.job import JobState
from dlspawner.core.scheduling import cycle, limits
from dlspawner.core.scheduling.admission import admit
from dlspawner.core.scheduling.cluster_state import ClusterState
from dlspawner.core.scheduling.preemption import over_quota_jobs, restorable
from dlspawner.core.units import GPU
from tests.unit.core.factories import CLUSTER, NOW, cluster_state, node, team, wants

NVIDIA = "nvidia.com/gpu"
NODES = {"n1": node("n1"), "n2": node("n2"), "n3": node("n3", 4)}


def teams(quotas: tuple[int, int]) -> tuple[Team, ...]:
    return (team("a", quotas[0], borrow_limit=6), team("b", quotas[1], preempt_within_team=True))


@dataclass
class History:
    """A cluster state that things happen to, and a clock."""

    here: ClusterState = field(default_factory=lambda: cluster_state(*teams((8, 12)), *NODES.values()))
    now: datetime = NOW
    number: int = 0
    turned: set[str] = field(default_factory=set)  # jobs that a lowered quota made preemptible

    def submit(self, of: str, gpus: int, preemptible: bool, priority: int) -> None:
        self.number += 1
        job = replace(
            wants(f"j{self.number:03}", of, gpus, preemptible=preemptible, priority=priority), submitted=self.now
        )
        decision = admit(job, self.here, self.now)
        if isinstance(decision, Admit):
            cycle.start(job, decision.nodes, self.here, self.now)
        else:
            self.here.put(replace(job, state=JobState.QUEUED))

    def serve(self) -> None:
        for job in cycle.run(self.here, self.now).noticed:
            assert job.preemptible or self.here.team(job.team).preempt_within_team

    def wait(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)
        self.serve()

    def end(self, index: int) -> None:
        names = sorted(self.here.jobs)
        if names:
            self.here.remove(names[index % len(names)])

    def restart(self) -> None:
        self.here = ClusterState.of(self.here.snapshot())

    def change_quotas(self, first: int, second: int) -> None:
        self.here.configure(CLUSTER, TeamsConfig(teams((first, second))))
        for job in restorable([job for job in self.here.jobs.values() if job.id in self.turned], self.here):
            self.here.put(replace(job, preemptible=False, notice=None))
        for job in over_quota_jobs(self.here):
            self.here.put(replace(job, preemptible=True))
            self.turned.add(job.id)

    def cordon(self, name: str, cordoned: bool) -> None:
        self.here.put_node(replace(NODES[name], cordoned=cordoned))

    def lose(self, name: str) -> None:
        self.here.remove_node(name)


SUBMIT = st.tuples(
    st.just("submit"),
    st.sampled_from("ab"),
    st.sampled_from([1, 2, 0, 4, 8]),
    st.booleans(),
    st.sampled_from([10, 100]),
)
EVENTS = st.one_of(
    *[SUBMIT] * 3,  # or no quota is ever used up
    st.tuples(st.just("serve")),
    st.tuples(st.just("wait"), st.sampled_from([-60, 1, 6, 45])),
    st.tuples(st.just("end"), st.integers(0, 99)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("change_quotas"), st.sampled_from([0, 4, 8]), st.sampled_from([2, 12, 30])),
    st.tuples(st.just("cordon"), st.sampled_from(sorted(NODES)), st.booleans()),
    st.tuples(st.just("lose"), st.sampled_from(sorted(NODES))),
)


@given(st.lists(EVENTS, max_size=40), st.sampled_from([(8, 12), (2, 2)]))
@example([("submit", "b", 1, False, 10), ("submit", "b", 2, False, 100)], (2, 2))
@settings(max_examples=80)
def test_no_gpu_is_held_twice_and_no_quota_grows_beyond_its_limit(events: list[Any], quotas: tuple[int, int]) -> None:
    history = History()
    history.change_quotas(*quotas)
    for name, *more in events:
        before = {of: _held(of, history) for of in "ab"}
        borrowed = history.here.borrowed("a")
        getattr(history, name)(*more)
        history.serve()
        here = history.here
        assert all(room.gpus[NVIDIA] >= 0 for room in here.node_infos.values()), "more is held than there is"
        for of in "ab":
            assert _held(of, history) <= max(here.quota(of, "a100"), before[of])
        if name != "change_quotas":
            assert here.borrowed("a") <= max(6 * GPU, borrowed)


def _held(of: str, history: History) -> int:
    """Without promises: what a team's own jobs have to give back counts until they are gone."""
    jobs = [job for job in history.here.jobs.values() if job.team == of and job.holds and not job.preemptible]
    return sum(job.request.gpus for job in jobs)


@given(st.lists(EVENTS, max_size=30))
@settings(max_examples=50)
def test_no_startable_job_waits_after_recovery(events: list[Any]) -> None:
    history = History()
    for name, *more in events:
        getattr(history, name)(*more)
    for name in NODES:
        history.cordon(name, False)
    history.change_quotas(8, 12)
    for _ in range(100):
        before = len(history.here.jobs)
        history.serve()
        history.wait(15)
        for job in list(history.here.jobs.values()):
            if job.holds:
                history.here.remove(job.id)
        if not history.here.jobs or len(history.here.jobs) == before:
            break
    assert [job for job in history.here.jobs.values() if not _is_too_large(job, history)] == []


def _is_too_large(job: Any, history: History) -> bool:
    """True if the job may wait for ever: it exceeds its team's quota, its borrow limit, or every node."""
    asked = job.request.gpus
    limit = 6 * GPU if job.preemptible and job.team == "a" else None
    if limit is not None and asked > limit:
        return True
    exceeds_quota = not job.preemptible and asked > history.here.quota(job.team, "a100")
    return exceeds_quota or limits.larger_than_nodes(job.request, history.here) is not None
