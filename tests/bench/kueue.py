"""Admission through the real Kueue with 500 jobs that wait: `python -m tests.bench.kueue`.

A real control plane and Kueue beside it; the Manager in this process, without a Hub. Stalls are processor time between
two turns of a task that sleeps for a millisecond: time taken by the machine, on which Kueue and the control plane run
too, is left out.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from dlspawner.clients.kubernetes import KubernetesClient, ResourceKind
from dlspawner.core.decisions import EngineWaits
from dlspawner.core.schedulers.kueue import queue_objects
from dlspawner.manager.model.event_reason import EventReason
from dlspawner.manager.model.records import JobRecord
from dlspawner.manager.state import lifecycle
from dlspawner.manager.state.job_store import Transaction
from dlspawner.settings import load
from tests.bench.figures import Figure, publish, resident_mib, seconds_of
from tests.component.manager.manager_harness import Leader, ManagerHarness, prepare, until, wants
from tests.kubernetes import kueue, planes

WAITING, RUNNING, AT_ONCE, CHANGES = 500, 8, 20, 40


async def stalls(while_: Callable[[], Awaitable[object]]) -> list[float]:
    """Milliseconds of processor time between turns of the loop."""
    found: list[float] = []

    async def look() -> None:
        while True:
            begun = time.process_time()
            await asyncio.sleep(0.001)
            found.append(1000 * (time.process_time() - begun))

    looking = asyncio.create_task(look())
    try:
        await while_()
    finally:
        looking.cancel()
    return found


async def make_queues(cluster: KubernetesClient, state: Path, namespace: str) -> None:
    """What `dlspawner kueue apply` makes of the files."""
    settings = load(state / "jobs", state / "cluster.yaml", state / "teams.yaml")
    for one in queue_objects(settings.cluster, settings.teams, [namespace]):
        await cluster.create(ResourceKind(one.kind.group_version, one.kind.plural, one.kind.namespaced), one.manifest)


def waiting(leader: Leader) -> int:
    """Jobs that know their position in Kueue."""
    verdicts = leader.service.store.cluster_state.verdicts.values()
    return sum(isinstance(one, EngineWaits) and one.position is not None for one in verdicts)


def _end(transaction: Transaction, *, record: JobRecord) -> None:
    lifecycle.fail_start(transaction, record, EventReason.NOT_STARTED)


async def measured(state: Path, kubeconfig: Path) -> list[Figure]:
    (state / "cluster.yaml").open("a").write("scheduler: {name: kueue}\n")
    async with await KubernetesClient.connect(kubeconfig) as cluster:
        await make_queues(cluster, state, "jobs")
        harness = ManagerHarness(state, f"sqlite:///{state / 'manager.sqlite'}", cluster, reservation_seconds=3000)
        await harness.make_node()
        users = [f"u{number}" for number in range(RUNNING + WAITING)]
        harness.hub.servers = {(user, "") for user in users}
        async with harness.manager() as leader:
            memory = resident_mib("self")
            answers: list[float] = []

            async def fill() -> None:
                answers.extend(await seconds_of(map(wants, users), AT_ONCE, leader.ask))
                await until(lambda: waiting(leader) >= WAITING, "all wait", 300)

            filling = await stalls(fill)
            memory = resident_mib("self") - memory
            turns: list[float] = []

            async def change() -> None:
                """Jobs leave one by one; each time Kueue admits the next one."""
                for _ in range(CHANGES):
                    held = [one for one in leader.service.store.records.values() if one.job.holds]
                    begun, before = time.perf_counter(), {one.job.id for one in held}
                    await leader.service.store.transact(partial(_end, record=held[0]))

                    def admitted(before: set[str] = before) -> bool:
                        return any(
                            one.job.holds for job, one in leader.service.store.records.items() if job not in before
                        )

                    await until(admitted, "the next one is admitted")
                    turns.append(time.perf_counter() - begun)

            changing = await stalls(change)
    return [
        Figure(
            f"Kueue: {WAITING + RUNNING} jobs come, {AT_ONCE} at once: answer, median", 1000 * median(answers), "ms"
        ),
        Figure("Kueue: stall of the Manager's loop while they come, p99", quantiles(filling, n=100)[98], "ms", aim=20),
        Figure("Kueue: longest stall while they come", max(filling), "ms"),
        Figure(f"Kueue: memory of {WAITING} jobs that wait", memory, "MiB"),
        Figure(f"Kueue: a job ends until the next of {WAITING} is admitted, median", 1000 * median(turns), "ms"),
        Figure("Kueue: stall of the Manager's loop meanwhile, p99", quantiles(changing, n=100)[98], "ms", aim=20),
        Figure("Kueue: longest stall meanwhile", max(changing), "ms"),
    ]


def measure(state: Path) -> list[Figure]:
    prepare(state, RUNNING)
    plane = planes.take()
    os.environ["KUBECONFIG"] = str(plane.kubeconfig)  # of the Manager
    try:
        with kueue.running(plane, state / "kueue"):
            return asyncio.run(measured(state, plane.kubeconfig))
    finally:
        planes.stop_all()


if __name__ == "__main__":
    publish("bench-kueue", measure)
