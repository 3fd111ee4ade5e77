"""Two Hubs whose only difference is ``spawner_class``, and what one of them does with its event loop and its memory.

A task in the Hub's own loop sleeps for a millisecond again and again: a stall is the processor time that the loop's
thread used between two of its turns.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.spawn import Hub, running_hub
from tests.contract.client import Client
from tests.e2e.people import wait_for

SPAWNERS = {"ours": "dlspawner.spawner.DLSpawner", "stock": "kubespawner.KubeSpawner"}
CONFIG = """
import asyncio, json, time
c.JupyterHub.spawner_class = os.environ["BENCH_SPAWNER"]
c.KubeSpawner.namespace = os.environ["BENCH_NAMESPACE"]
c.KubeSpawner.image = "example.org/tiny:1"
c.KubeSpawner.scheduler_name = "kwok"
c.KubeSpawner.port = int(os.environ["BENCH_POD_PORT"])
c.KubeSpawner.delete_grace_period = 1
c.KubeSpawner.start_timeout = c.KubeSpawner.http_timeout = 300  # 200 at once take minutes on a busy machine
c.KubeSpawner.k8s_api_request_timeout, c.KubeSpawner.k8s_api_request_retry_timeout = 60, 300  # stock fails otherwise

async def tick(path):
    # A turn that had no work costs a few hundredths of a millisecond itself.
    turns, written = [], time.monotonic()
    while True:
        began = time.thread_time()
        await asyncio.sleep(0.001)
        turns.append(time.thread_time() - began)
        if os.path.exists(path + ".ask"):
            os.unlink(path + ".ask")
            turns.sort()
            with open(path + ".new", "w") as file:
                json.dump({"turns": len(turns), "max": turns[-1]}, file)
            os.rename(path + ".new", path)
            turns = []

ticking = []
async def first(spawner):
    if os.environ.get("BENCH_TICKS") and not ticking:
        ticking.append(asyncio.create_task(tick(os.environ["BENCH_TICKS"])))
c.Spawner.pre_spawn_hook = first
"""


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

    def stalls(self) -> dict[str, Any]:
        """What the event loop's turns took since the last time somebody asked, in seconds."""
        self.ticks.unlink(missing_ok=True)
        self.ticks.with_name(f"{self.ticks.name}.ask").touch()
        wait_for(self.ticks.exists, "the Hub tells of its loop", 30)
        return dict(json.loads(self.ticks.read_text()))

    def memory(self) -> float:
        """MiB resident."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


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
            "BENCH_TICKS": f"{name}/ticks" if ticks else "",
        }
        with running_hub(Path(name), CONFIG, env, bench.folder / f"{which}.log") as (made, pid):
            yield Measured(made.url, made.token, {}, pid, Path(name) / "ticks")
