"""Jobs of several pods: all of their pods or none, so that two of them never wait for each other."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from dlspawner.core.decisions import Admit, MustWait
from dlspawner.core.job import JobState
from dlspawner.core.scheduling.admission import admit
from tests.unit.core.factories import NOW, node, team, wants, world
from tests.unit.core.simulator import Comes, play


def test_of_two_jobs_of_four_pods_one_runs_whole_and_the_other_holds_nothing() -> None:
    here = world(team("a", 6), node("n1", 3), node("n2", 3))
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
def test_every_job_of_several_pods_that_fits_gets_all_of_its_nodes_in_the_end(
    gangs: list[tuple[int, int, bool, int, int]],
) -> None:
    here = world(team("a", 6), team("b", 2), node("n1", 4), node("n2", 2), node("n3", 2))
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
