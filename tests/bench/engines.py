"""Each engine's path against the native one: `python -m tests.bench.engines [NAME…]`.

From the admission request to a pod with a node: on a real control plane with the real engine beside it, and a Manager
in this process, without a Hub. Rounds of the native queue and of the engine take turns on the same control plane. A
round is some jobs one after the other, whose median counts, and a crowd, whose pods per second count.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median

from dlspawner.clients.kubernetes import NODES, PODS, KubernetesClient
from dlspawner.core.config import SchedulerName
from dlspawner.core.launch.additions import merged
from tests.bench.figures import Figure, publish, ratio, seconds_of
from tests.bench.kueue import make_queues
from tests.component.manager.manager_harness import NAMESPACE, Leader, ManagerHarness, pod_of, prepare, until, wants
from tests.kubernetes import engines, kueue, planes

NAMES = {"kueue": "", "volcano": "", "coscheduling": engines.COSCHEDULING, "gang": "default-scheduler"}
ROUNDS, ALONE, CROWD, AT_ONCE = 3, 8, 32, 8


async def start(leader: Leader, harness: ManagerHarness, user: str) -> None:
    """Until the job's pod has a node."""
    job = wants(user)
    answer = await leader.ask(job)
    if answer.decision != "admit":
        await until(lambda: leader.is_due(job), "it is admitted")
        answer = await leader.ask(job)
    assert answer.decision == "admit", answer
    pod = pod_of(job)
    if answer.additions:
        pod = merged(pod, answer.additions[0])
    name = pod["metadata"]["name"]
    await harness.cluster.create(PODS, pod, NAMESPACE)

    async def placed() -> bool:
        return bool((await harness.cluster.get(PODS, name, NAMESPACE))["spec"].get("nodeName"))

    await until(placed, "it has a node", 120)


async def one_round(harness: ManagerHarness, scheduler: str, number: str) -> tuple[float, float]:
    """Milliseconds of a job alone, and pods per second of a crowd."""
    file = harness.folder / "cluster.yaml"
    file.write_text(file.read_text().partition("scheduler:")[0] + scheduler)
    users = [f"{number}-{one}" for one in range(ALONE + CROWD)]
    harness.hub.servers = {(user, "") for user in users}
    async with harness.manager() as leader:
        begin = partial(start, leader, harness)
        alone = await seconds_of(users[:ALONE], 1, begin)
        begun = time.perf_counter()
        await seconds_of(users[ALONE:], AT_ONCE, begin)
        rate = CROWD / (time.perf_counter() - begun)
        for name in await harness.pods():
            await harness.cluster.delete(PODS, name, NAMESPACE, grace=0)
        await until(lambda: not leader.service.store.records, "all have ended")
        return 1000 * median(alone), rate


async def measured(state: Path, name: str, kubeconfig: Path) -> list[Figure]:
    more = f", scheduler_name: {NAMES[name]}" if NAMES[name] else ""
    engine = f"scheduler: {{name: {name}{more}}}\n"
    async with await KubernetesClient.connect(kubeconfig) as cluster:
        harness = ManagerHarness(state, f"sqlite:///{state / 'manager.sqlite'}", cluster)
        await harness.make_node(gpus=ALONE + CROWD)
        taint = {"spec": {"taints": None}}  # of a node that has just come
        await cluster.patch(NODES, "gpu-1", taint)
        if name == SchedulerName.KUEUE.value:
            (state / "cluster.yaml").open("a").write(engine)
            await make_queues(cluster, state, NAMESPACE)
        native, ours = [], []
        for number in range(ROUNDS):
            native.append(await one_round(harness, "scheduler: {name: native}\n", f"n{number}"))
            ours.append(await one_round(harness, engine, f"e{number}"))
    alone, alone_native = [one[0] for one in ours], [one[0] for one in native]
    rate, rate_native = [one[1] for one in ours], [one[1] for one in native]
    added = median(a - b for a, b in zip(alone, alone_native, strict=True))
    return [
        Figure(f"{name}: request to a pod with a node, median", median(alone), "ms", peer="native"),
        Figure(f"{name}: added to the native queue's {median(alone_native):.0f} ms", added, "ms", peer="native"),
        Figure(f"{name}: pods per second, {AT_ONCE} at once", median(rate), "1/s", "higher", peer="native"),
        ratio(f"{name}: pods per second", rate, rate_native, "native", better="higher"),
    ]


def measure(folder: Path) -> list[Figure]:
    found: list[Figure] = []
    for name in sys.argv[1:] or NAMES:
        state, plane = folder / name, planes.take()
        state.mkdir()
        prepare(state, ALONE + CROWD)
        os.environ["KUBECONFIG"] = str(plane.kubeconfig)  # of the Manager
        is_kueue = name == SchedulerName.KUEUE.value
        try:
            with kueue.running(plane, state / "kueue") if is_kueue else nullcontext(engines.install(name, plane)):
                found += asyncio.run(measured(state, name, plane.kubeconfig))
        finally:
            planes.discard(plane)
    planes.stop_all()
    return found


if __name__ == "__main__":
    publish("bench-engines", measure)
