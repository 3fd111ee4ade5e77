"""Jobs of several pods: all of their pods or none, so that two of them never wait for each other."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.decisions import Admit, MustWait
from dlspawner.core.job import Job, JobState
from dlspawner.core.resources import ResourceRequest
from dlspawner.core.scheduling.admission import admit, grow
from tests.unit.core.factories import NOW, ask, cluster_state, node, one_pass, team, wants
from tests.unit.core.simulator import Comes, play


def test_of_two_jobs_of_four_pods_one_runs_whole_and_the_other_holds_nothing() -> None:
    here = cluster_state(team("a", 6), node("n1", 3), node("n2", 3))
    first, second = (replace(wants(name, "a", (1, 1, 1, 1)), state=JobState.QUEUED) for name in ("one", "two"))
    decision = admit(first, here, NOW)
    assert isinstance(decision, Admit)
    assert len(decision.nodes) == 4
    here.put(replace(first, state=JobState.RUNNING, nodes=decision.nodes))
    waits = admit(second, here, NOW)
    assert isinstance(waits, MustWait)
    here.remove("one")
    assert isinstance(admit(second, here, NOW + timedelta(minutes=1)), Admit)


GANGS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 2), st.booleans(), st.integers(0, 40), st.integers(1, 30)),
    min_size=2,
    max_size=8,
)


@given(GANGS)
@settings(max_examples=30)
def test_every_job_of_several_pods_that_fits_gets_all_of_its_nodes_in_the_end(
    gangs: list[tuple[int, int, bool, int, int]],
) -> None:
    here = cluster_state(team("a", 6), team("b", 2), node("n1", 4), node("n2", 2), node("n3", 2))
    coming = [
        Comes(
            wants(f"j{number}", "a", (gpus,) * min(pods, 6 // gpus), preemptible=preemptible, requeue=True),
            minute,
            minutes,
        )
        for number, (pods, gpus, preemptible, minute, minutes) in enumerate(gangs)
    ]
    places: dict[str, tuple[str | None, ...]] = {}
    started = play(here, coming, places=places)
    assert started.keys() == {one.job.id for one in coming}
    for one in coming:
        assert len(places[one.job.id]) == len(one.job.request.pods)
        assert None not in places[one.job.id]


STEPS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(1, 2), st.booleans(), st.sampled_from("ab")),
    min_size=2,
    max_size=8,
)


@given(STEPS, st.data())
def test_jobs_grow_by_what_no_other_may_have_and_never_start_with_fewer_than_their_least_pods(
    drawn: list[tuple[int, int, int, bool, str]], data: st.DataObject
) -> None:
    quotas, sizes = {"a": 6, "b": 2}, {"n1": 4, "n2": 2, "n3": 2}
    here = cluster_state(*(team(*one) for one in quotas.items()), *(node(*one) for one in sizes.items()))
    least: dict[str, int] = {}
    waits: dict[str, list[ResourceRequest]] = {}
    for number, (pods, more, gpus, preemptible, of) in enumerate(drawn):
        fit = min(pods, quotas[of] // gpus)
        job = wants(f"j{number}", of, (gpus,) * fit, preemptible=preemptible, state=JobState.QUEUED)
        here.put(replace(job, submitted=NOW + timedelta(seconds=number)))
        least[job.id], waits[job.id] = fit, [ask(gpus)] * more
    for minute in range(1, 30):
        now = NOW + timedelta(minutes=minute)
        here.tick(now)
        one_pass(here, now)
        queued = [job for job in here.jobs.values() if job.state is JobState.QUEUED]
        assert not [job for job in queued if isinstance(admit(job, here, now), Admit)]
        for job in list(here.jobs.values()):
            while waits[job.id] and isinstance(larger := grow(here.jobs[job.id], waits[job.id][-1], here, now), Job):
                waits[job.id].pop()
                here.put(larger)
        running = [job for job in here.jobs.values() if job.holds]
        assert all(least[job.id] <= len(job.request.pods) == len(job.nodes) for job in running)
        on = [(name, pod) for job in running for name, pod in zip(job.nodes, job.request.pods, strict=True)]
        assert all(sum(pod.gpus for at, pod in on if at == name) <= size * 1000 for name, size in sizes.items())
        assert all(here.guaranteed(name, "a100") <= quota * 1000 for name, quota in quotas.items())
        if running:
            here.remove(data.draw(st.sampled_from(sorted(job.id for job in running)), "the job that ends"))
    assert not here.jobs
