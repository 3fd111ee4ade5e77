"""Two Hubs whose only difference is ``spawner_class``, and what one of them does with its event loop and its memory.

A task in the Hub's own loop sleeps for a millisecond again and again: a stall is the processor time that the loop's
thread used between two of its turns.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.spawn import Hub, running_hub
from tests.contract.client import Client
from tests.e2e.people import wait_for

SPAWNERS = {"ours": "dlspawner.spawner.DLSpawner", "stock": "kubespawner.KubeSpawner"}
CONFIG = """
c.JupyterHub.spawner_class = os.environ["BENCH_SPAWNER"]
c.KubeSpawner.namespace = os.environ["BENCH_NAMESPACE"]
c.KubeSpawner.image = "example.org/tiny:1"
c.KubeSpawner.scheduler_name = "kwok"
c.KubeSpawner.port = int(os.environ["BENCH_POD_PORT"])
c.KubeSpawner.delete_grace_period = 1
c.KubeSpawner.start_timeout = c.KubeSpawner.http_timeout = 300  # 200 at once take minutes on a busy machine
c.KubeSpawner.k8s_api_request_timeout, c.KubeSpawner.k8s_api_request_retry_timeout = 60, 300  # stock fails otherwise
"""
TICKS = """
import asyncio, os, time

async def tick(path):
    # A turn that had no work costs a few hundredths of a millisecond itself.
    longest = 0.0
    while True:
        began = time.thread_time()
        await asyncio.sleep(0.001)
        longest = max(longest, time.thread_time() - began)
        if os.path.exists(path + ".ask"):
            os.unlink(path + ".ask")
            with open(path + ".new", "w") as file:
                file.write(str(longest))
            os.rename(path + ".new", path)
            longest = 0.0

ticking = []
async def first(spawner):
    if not ticking:
        ticking.append(asyncio.create_task(tick({path!r})))
c.Spawner.pre_spawn_hook = first
"""


def ticking(told: Path) -> str:
    """Configuration of a Hub whose loop is measured from its first start on; `stall` asks."""
    return TICKS.replace("{path!r}", repr(str(told)))


def stall(told: Path) -> float:
    """The longest turn of the Hub's loop since the last question, in seconds."""
    told.unlink(missing_ok=True)
    told.with_name(f"{told.name}.ask").touch()
    wait_for(told.exists, "the Hub tells of its loop", 60)
    return float(told.read_text())


@dataclass(frozen=True)
class Bench:
    """A cluster to measure on, its kubeconfig, and the port at which all pods answer."""

    cluster: Client
    folder: Path
    pod_port: int


@dataclass(frozen=True)
class Measured(Hub):
    """A Hub of ours or stock, its process and where it writes what its loop did."""

    pid: int
    ticks: Path


@contextlib.contextmanager
def hub(
    bench: Bench, which: str, namespace: str, kubeconfig: Path | None = None, *, ticks: bool = False
) -> Iterator[Measured]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as name:
        env = {
            "KUBECONFIG": str(kubeconfig or bench.cluster.kubeconfig),
            "BENCH_SPAWNER": SPAWNERS[which],
            "BENCH_NAMESPACE": namespace,
            "BENCH_POD_PORT": str(bench.pod_port),
        }
        told = Path(name) / "ticks"
        config = CONFIG + (ticking(told) if ticks else "")
        with running_hub(Path(name), config, env, bench.folder / f"{which}.log") as (made, pid):
            yield Measured(made.url, made.token, {}, pid, told)
