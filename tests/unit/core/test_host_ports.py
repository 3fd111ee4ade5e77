"""Ports of the host's network: each is one job's, whatever comes and goes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dlspawner.core.config import HostPorts
from dlspawner.core.decisions import Admit
from dlspawner.core.job import Job
from dlspawner.core.scheduling.admission import admit, as_admitted, find_alternatives
from tests.unit.core.factories import CLUSTER, NOW, cluster_state, node, team, wants

SEVEN = replace(CLUSTER, host_ports=HostPorts(20000, 20006))


def with_ports(name: str, *counts: int, gpus: int = 0) -> Job:
    job = wants(name, "a", (gpus,) * len(counts))
    pods = tuple(replace(pod, ports=count) for pod, count in zip(job.request.pods, counts, strict=True))
    return replace(job, request=replace(job.request, pods=pods))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)), max_size=12))
def test_a_port_is_never_two_jobs_and_a_job_that_fits_gets_all_of_its_ports(steps: list[tuple[int, int, int]]) -> None:
    here = cluster_state(team("a"), node("n", 0, None), cluster=SEVEN)
    for number, (first, second, ends) in enumerate(steps):
        job = with_ports(f"j{number}", first, second)
        decision, free = admit(job, here, NOW), len(here.free_ports())
        assert isinstance(decision, Admit) is (first + second <= free)
        if isinstance(decision, Admit):
            here.put(as_admitted(job, decision.nodes, here))
        held = [number for one in here.jobs.values() for own in one.ports for number in own]
        assert len(held) == len(set(held)) == 7 - len(here.free_ports())
        assert set(held) <= set(range(20000, 20007))
        here.remove(f"j{ends}")


def test_nothing_else_is_offered_instead_of_ports_that_are_not_there() -> None:
    here = cluster_state(team("a", 8), node("n", 8), cluster=SEVEN)
    here.put(as_admitted(with_ports("one", 5), ("n",), here))
    assert find_alternatives(with_ports("two", 3, gpus=4), here, NOW) == ()
    assert find_alternatives(with_ports("two", 2, gpus=9), here, NOW)
