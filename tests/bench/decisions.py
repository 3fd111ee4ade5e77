"""How fast decisions are: 10,000 running and 5,000 queued jobs of 100 teams on 1,600 nodes with 12,800 GPUs.

`python -m tests.bench.decisions` prints medians and 99th percentiles; nothing else needs to run.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import quantiles
from time import process_time

from dlspawner.core.decisions import Admit, Preempt
from dlspawner.core.job import Job, JobState
from dlspawner.core.scheduling.admission import admit, schedule
from dlspawner.core.scheduling.cluster_state import ClusterState
from tests.bench.figures import Figure, publish
from tests.unit.core.factories import MINUTE, NOW, ask, node, real_hub, team, wants

TEAMS, RUNNING, QUEUED, NODES = 100, 10_000, 5_000, 1_600
SIZES = [1] * 92 + [2] * 4 + [4] * 3 + [8]


def request(number: int, chance: random.Random, of: int | None = None) -> Job:
    name = f"t{chance.randrange(TEAMS) if of is None else of}"
    return wants(
        f"j{number:06}",
        name,
        chance.choice(SIZES),
        user=f"u{chance.randrange(2000)}",
        preemptible=chance.random() < 0.2,
        priority=chance.choice([10, 10, 100]),
        waited=chance.randrange(600) * MINUTE,
        cpu=4000,
    )


def crowded(chance: random.Random) -> ClusterState:
    """A cluster that is full: as many jobs run as may, and the others wait."""
    nodes = [node(f"n{number:04}") for number in range(NODES)]
    here = real_hub(*(team(f"t{number}", 8 * NODES // TEAMS) for number in range(TEAMS)), *nodes)
    number = 0
    while len(here.jobs) < RUNNING and number < 2 * RUNNING:
        number += 1
        job = request(number, chance)
        decision = admit(job, here, NOW)
        if isinstance(decision, Preempt):
            for victim in decision.victims:
                here.remove(victim)
        if isinstance(decision, Admit | Preempt):
            started = NOW - timedelta(minutes=chance.randrange(600))
            here.put(replace(job, state=JobState.RUNNING, started=started, nodes=decision.nodes))
    for more in range(QUEUED):
        here.put(replace(request(number + 1 + more, chance), state=JobState.QUEUED))
    return here


def timed(what: Callable[[], object]) -> float:
    """Milliseconds of the processor, which is what one thread of pure code takes of an idle machine."""
    begin = process_time()
    what()
    return 1000 * (process_time() - begin)


def figures(name: str, times: list[float], aim: float | None = None) -> list[Figure]:
    cuts = quantiles(times, n=100, method="inclusive")
    return [Figure(f"{name}, median", cuts[49], "ms", aim=aim), Figure(f"{name}, p99", cuts[98], "ms")]


def one_pass(here: ClusterState) -> int:
    """A scheduling cycle that starts what it can; how many."""
    started = 0
    for job, decision in schedule(here, NOW):
        if isinstance(decision, Preempt):
            for name in decision.victims:
                here.put(replace(here.jobs[name], notice=NOW + 5 * MINUTE))
            here.put(replace(job, nodes=decision.nodes))
        else:
            here.put(replace(job, state=JobState.STARTING, nodes=decision.nodes))
        started += 1
    return started


def measure(_: Path) -> list[Figure]:
    chance = random.Random(7)
    here = crowded(chance)
    snapshot = here.snapshot()
    running = sum(job.holds for job in here.jobs.values())
    print(f"{running} running, {len(here.jobs) - running} queued jobs")
    gc.collect()
    gc.freeze()
    fresh = [request(10**5 + number, chance) for number in range(1000)]
    found = figures("admission of one new job", [timed(lambda job=job: admit(job, here, NOW)) for job in fresh], 1.0)
    gangs = [replace(job, request=ask([1] * 16, cpu=4000), preemptible=False) for job in fresh[:200]]
    found += figures(
        "admission of a job of 16 pods", [timed(lambda job=job: admit(job, here, NOW)) for job in gangs], 5.0
    )
    found += figures("building anew", [timed(lambda: ClusterState.of(snapshot)) for _ in range(5)], 50.0)
    worlds = [ClusterState.of(snapshot) for _ in range(5)]
    for one in worlds:
        admit(fresh[0], one, NOW)  # the first question lays out the shares
    while any(one_pass(one) for one in worlds):
        pass
    quiet = [timed(lambda one=one: one_pass(one)) for one in worlds]
    return found + figures("a whole pass that starts nothing", quiet, 50.0)


if __name__ == "__main__":
    publish("bench-decisions", measure)
