"""The whole product with 5,000 users, 2,000 running jobs and 100,000 that have ended: `python -m tests.bench.scale`.

With another number of users (`python -m tests.bench.scale 1000`) there is as much less of the others. The processes are
those of `make run`; pods are run by ``kwok``, so that nothing is measured but the product and the embedded API server.
While it is measured a server is started and stopped every two seconds, and people read the portal. Takes some ten
minutes on two cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles

import requests

from dlspawner.manager.db import gpu_hours
from dlspawner.manager.db.store import Database
from tests.bench.figures import ROOT, Figure, processor_seconds, publish, resident_mib
from tests.bench.kwok import kubelet
from tests.bench.pair import stall, ticking
from tests.bench.spawn import Hub, one_at_a_time, templates, tiny
from tests.component.manager.history import Past, write_past
from tests.contract.client import Client, node
from tests.contract.conftest import Server
from tests.e2e.stack import Launched
from tests.harness import faults
from tests.kubernetes.conftest import leased
from tests.kubernetes.instance import GPU_LABELS

USERS = int(sys.argv[1]) if sys.argv[1:] else 5000
RUNNING, ENDED, DAYS = USERS * 2 // 5, USERS * 20, 90
NODES, GPUS = RUNNING // 16 + 1, 16  # a GPU more at least, for the one that starts and stops
ADDRESS = "127.254.7.1"  # of all pods: outside the embedded cluster's own
PAGES = ("", "queue", "cluster", "all", "history")
SECONDS = 60.0


def configuration(folder: Path) -> Path:
    """The shipped one with a quota for everybody, and a task in the Hub that measures its loop."""
    target = folder / "config"
    shutil.copytree(ROOT / "hub_config", target)
    (target / "teams.yaml").write_text(json.dumps({"teams": {"default": {"quota": {"a100": NODES * GPUS}}}}))
    (target / "overrides.py").write_text(ticking(folder / "stall"))
    return target


def job_templates(folder: Path) -> Path:
    target = templates(folder)
    one = {**tiny("100m"), "pod": {"schedulerName": "kwok"}}
    one["options"] = {"gpus": {"default": 1, "max": 1}, "gpu_type": {"default": "a100"}}
    (target / "jobs" / "kwok.yaml").write_text(json.dumps(one))
    return target


def history(path: Path) -> None:
    """Write the ended jobs and aggregate their GPU-hours, as a Manager has done by then."""
    noon, dice = datetime.now(UTC).replace(hour=0) - timedelta(days=DAYS + 2), random.Random(7)

    def past(number: int) -> Past:
        end = 2 + dice.randrange(30)
        at = noon + timedelta(days=number % DAYS, seconds=dice.randrange(3600))
        return Past(f"Q0 T1 R1 X{end - 0.1} E{end}", f"user{number % USERS}", "default", 1, "a100", noon=at)

    async def write() -> None:
        store = await asyncio.to_thread(Database.open, f"sqlite:///{path}")
        for first in range(0, ENDED, 5000):
            await write_past(store, *(past(number) for number in range(first, first + 5000)))
        while await store.write(lambda connection: gpu_hours.aggregate(connection, datetime.now(UTC), 1000)):
            pass
        await store.close()

    asyncio.run(write())


@contextlib.contextmanager
def nodes(cluster: Client) -> Iterator[None]:
    """Nodes whose kubelets renew their leases."""
    names = [f"kwok-{number:03}" for number in range(NODES)]
    for name in names:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **GPU_LABELS}
        cluster.create("/api/v1/nodes", node(name, labels, **{"nvidia.com/gpu": str(GPUS)}))
    with leased(cluster, *names, seconds=20):
        yield


def fill(hub: Hub, users: list[str]) -> None:
    """Register everybody and start a server of each of the first ones."""
    for first in range(0, len(users), 100):
        hub.request("POST", "/users", {"usernames": users[first : first + 100]}).raise_for_status()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(hub.spawn, users[:RUNNING]))


def read_pages(url: str, token: str, stop: threading.Event) -> dict[str, list[float]]:
    """Milliseconds of each page of the portal, asked for in turn."""
    taken: dict[str, list[float]] = {page: [] for page in PAGES}
    with requests.Session() as session:
        session.headers["Authorization"] = f"token {token}"
        while not stop.is_set():
            for page in PAGES:
                begun = time.perf_counter()
                session.get(f"{url}/services/jobs/{page}", timeout=60).raise_for_status()
                taken[page].append(1000 * (time.perf_counter() - begun))
    return taken


def busy_minute(hub: Hub, user: str, stop: threading.Event) -> None:
    while not stop.wait(2):
        one_at_a_time(hub, user)


def measure(folder: Path) -> list[Figure]:
    server, told = Server(folder / "api"), folder / "stall"
    with contextlib.ExitStack() as stack:
        cluster = server.start()
        stack.callback(server.stop)
        api = stack.enter_context(faults.before(cluster.kubeconfig, folder / "counted"))
        stack.enter_context(nodes(cluster))
        stack.enter_context(kubelet(cluster.kubeconfig, "kwok-000", 8888, ADDRESS))
        more = (f"--templates={job_templates(folder)}", f"--config={configuration(folder)}")
        product = Launched(folder / "state", more=(*more, f"--kubeconfig={folder / 'counted'}"))
        product.start()
        product.stop()
        history(product.state / "manager.sqlite")
        product.start()
        stack.callback(product.stop)
        admin = product.person("admin")
        hub = Hub(product.url, admin.token, {"user_options": {"template": "kwok"}})
        users = [f"user{number}" for number in range(USERS)]
        begun = time.perf_counter()
        fill(hub, users)
        filled = time.perf_counter() - begun
        time.sleep(10)
        stall(told)
        asked = len(api.requests)
        time.sleep(SECONDS)
        at_rest, calm = stall(told), 60 / SECONDS * (len(api.requests) - asked)
        programs = {"Hub": "jupyterhub", "Manager": "dlspawner.manager", "gateway": "ssh_gateway"}
        pids = {name: product.process_of(word) for name, word in programs.items()}
        pids["proxy"] = product.process_of("--api-ip=127.0.0.1", f"--port={product.port}")
        before, stop = {name: processor_seconds(pid) for name, pid in pids.items()}, threading.Event()
        with ThreadPoolExecutor(2) as threads:
            pages = threads.submit(read_pages, product.url, admin.token, stop)
            busy = threads.submit(busy_minute, hub, users[-1], stop)
            stop.wait(SECONDS)
            stop.set()
            taken = pages.result(120)
            busy.result(120)
        computed = {name: 1000 * (processor_seconds(pid) - before[name]) / SECONDS for name, pid in pids.items()}
        in_use = stall(told)
        databases = {name: (product.state / f"{name}.sqlite").stat().st_size / 2**20 for name in ("hub", "manager")}
        sizes = {name: resident_mib(pid) for name, pid in pids.items()}
    every = [one for page in taken.values() for one in page]
    slowest = max(taken, key=lambda page: median(taken[page]))
    what = f"{RUNNING} jobs run"
    return [
        Figure(f"{RUNNING} jobs started", filled, "s"),
        Figure(f"{what}: portal, all pages, 99 %", quantiles(every, n=100)[-1], "ms", aim=500),
        Figure(f"{what}: portal, the slowest page (/{slowest}), median", median(taken[slowest]), "ms", aim=500),
        Figure(f"{what}: longest stall of the Hub's loop, at rest", 1000 * at_rest, "ms", aim=10),
        Figure(f"{what}: longest stall of the Hub's loop, in use", 1000 * in_use, "ms", aim=10),
        *(Figure(f"{what}: memory of the {name}", size, "MiB") for name, size in sizes.items()),
        *(Figure(f"{what}: CPU of the {name}, in use", used, "mCPU") for name, used in computed.items()),
        Figure(f"{what}: requests to the API server a minute, at rest", calm, "1"),
        *(Figure(f"{ENDED} ended jobs: database of the {name}", size, "MiB") for name, size in databases.items()),
    ]


if __name__ == "__main__":
    publish("bench-scale", measure)
