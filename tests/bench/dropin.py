"""DLSpawner without templates against stock KubeSpawner: two Hubs whose only difference is ``spawner_class``.

`python -m tests.bench.dropin` measures on the cluster of $KUBECONFIG, as its administrator; `make bench` on an embedded
API server. Pods are run by ``kwok``, so nothing is measured but Hub, spawner and API server:

* POST to ready, one at a time and in crowds;
* what one spawn asks of the API server and is sent by it, stop included, by a proxy before it (``harness.faults``);
* with thousands of other people's pods in the namespace: memory of the Hub, and how long its event loop is held up
  (``pair``). Time that the machine gave to others is not the spawner's, and is left out.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure, publish, resident_mib
from tests.bench.kwok import kubelet, running
from tests.bench.pair import SPAWNERS, Bench, hub, stall
from tests.bench.spawn import PEER, compared, one_at_a_time
from tests.contract.client import Client
from tests.harness import faults
from tests.harness.ports import free_port
from tests.kubernetes.conftest import leased, made_node

ROUNDS = 9
CROWDS = {50: 3, 200: 2}  # how many at once: rounds
COUNTED, AMONG = 20, 1000  # spawns, and other people's pods beside them
FILLED = 5000  # other people's pods while the loop and the memory are measured
WATCHED_SECONDS = 70.0  # six or seven lists of stock KubeSpawner's
CHANGES_A_SECOND = 5


def spawns(bench: Bench) -> list[Figure]:
    """Both Hubs, measured in turn."""
    space = bench.cluster.namespace
    with (
        space("bench") as mine,
        space("bench") as theirs,
        hub(bench, "ours", mine) as ours,
        hub(bench, "stock", theirs) as stock,
    ):
        return compared((ours, stock), "drop-in, POST to ready", ROUNDS, CROWDS, 0.7)


def counted(bench: Bench, node: str) -> list[Figure]:
    """Requests, and bytes that lists and watches send, for each spawn and its stop, beside other people's pods."""
    with bench.cluster.namespace("bench") as namespace:
        fill(bench, namespace, node, range(AMONG))
        found = {which: _count(bench, which, namespace) for which in SPAWNERS}
    figures = []
    for what, unit in (("API requests a spawn", "1"), ("KiB of lists and watches a spawn", "KiB")):
        ours, stock = (found[which][what] for which in ("ours", "stock"))
        figures += [
            Figure(f"drop-in among {AMONG} pods, {what}", ours, unit),
            Figure(f"drop-in among {AMONG} pods, {what}, {PEER}", stock, unit),
            Figure(f"drop-in among {AMONG} pods, {what}: ratio to {PEER}", ours / stock, "ratio", aim=1.0, peer=PEER),
        ]
    return figures


def _count(bench: Bench, which: str, namespace: str) -> dict[str, float]:
    kubeconfig = bench.folder / f"counted-{which}"
    with (
        faults.before(bench.cluster.kubeconfig, kubeconfig) as api,
        hub(bench, which, namespace, kubeconfig) as measured,
    ):
        one_at_a_time(measured, "warm")
        asked, sent, began = len(api.requests), api.sent("list", "watch"), time.monotonic()
        for number in range(COUNTED):
            one_at_a_time(measured, f"counted{number}")
        # What is asked for anyway is asked as often by who is quick: the same time for both.
        time.sleep(max(0.0, 2.0 * COUNTED - (time.monotonic() - began)))
        asked, sent = len(api.requests) - asked, api.sent("list", "watch") - sent
    return {"API requests a spawn": asked / COUNTED, "KiB of lists and watches a spawn": sent / COUNTED / 1024}


def other_pod(name: str, node: str) -> dict[str, Any]:
    """Somebody's server: as large as a real one with its managedFields."""
    labels = {"component": "singleuser-server", "app": "jupyterhub", "hub.jupyter.org/username": name}
    environment = [{"name": f"JUPYTERHUB_SETTING_{n}", "value": f"value-{n}-of-{name}"} for n in range(47)]
    container = {
        "name": "notebook",
        "image": "example.org/tiny:1",
        "env": environment,
        "ports": [{"name": "notebook-port", "containerPort": 8888}],
        "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [{"name": f"v{n}", "mountPath": f"/mnt/v{n}"} for n in range(6)],
    }
    spec = {
        "nodeName": node,
        "schedulerName": "nobody",
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(6)],
    }
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {"hub.jupyter.org/username": name}},
        "spec": spec,
    }


def fill(bench: Bench, namespace: str, node: str, numbers: range) -> None:
    """Make pods that run."""
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def some(mine: range) -> None:
        for number in mine:
            name = f"jupyter-person-{number:05}"
            made = other_pod(name, node)
            bench.cluster.create(pods, made)
            change = {"status": running(made, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")}
            bench.cluster.patched(f"{pods}/{name}/status", change)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(some, (numbers[part::4] for part in range(4))))


def churn(bench: Bench, namespace: str, until: threading.Event) -> None:
    """Changes of other people's pods, a few a second, so that the watch is never idle."""
    number = 0
    while not until.wait(1 / CHANGES_A_SECOND):
        path = f"/api/v1/namespaces/{namespace}/pods/jupyter-person-{number % 1000:05}"
        bench.cluster.patched(path, {"metadata": {"annotations": {"bench/change": str(number)}}})
        number += 1


def full_namespace(bench: Bench, namespace: str, which: str) -> dict[str, float]:
    """A Hub from its start: before and after somebody starts a server there, and for a minute."""
    stop = threading.Event()
    with hub(bench, which, namespace, ticks=True) as measured, ThreadPoolExecutor(1) as threads:
        changes = threads.submit(churn, bench, namespace, stop)
        try:
            measured.spawn("one")  # the ticking begins before the first list
            first = stall(measured.ticks)
            time.sleep(WATCHED_SECONDS)
            longest, memory = max(first, stall(measured.ticks)), resident_mib(measured.pid)
            measured.stop("one")
        finally:
            stop.set()
        changes.result(60)
    return {"max": 1000 * longest, "memory": memory}


def crowded(bench: Bench, node: str) -> list[Figure]:
    """In one full namespace, each Hub alone."""
    with bench.cluster.namespace("bench") as namespace:
        fill(bench, namespace, node, range(FILLED))
        ours, stock = (full_namespace(bench, namespace, which) for which in ("ours", "stock"))
    where = f"{FILLED} pods in the namespace"
    return [
        Figure(f"{where}: longest stall of the loop", ours["max"], "ms", aim=10.0),
        Figure(f"{where}: longest stall of the loop, {PEER}", stock["max"], "ms"),
        Figure(f"{where}: memory of the Hub", ours["memory"], "MiB", aim=round(stock["memory"], 1), peer=PEER),
        Figure(f"{where}: memory of the Hub, {PEER}", stock["memory"], "MiB"),
    ]


def measure(cluster: Client, folder: Path) -> list[Figure]:
    """All figures, on one cluster."""
    bench = Bench(cluster, folder, free_port())
    with (
        made_node(cluster) as node,
        leased(cluster, node),
        kubelet(bench.cluster.kubeconfig, node, bench.pod_port),
    ):
        return [*spawns(bench), *counted(bench, node), *crowded(bench, node)]


if __name__ == "__main__":
    publish("bench-dropin", lambda folder: measure(Client(Path(os.environ["KUBECONFIG"])), folder))
