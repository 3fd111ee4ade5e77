"""Two Hubs whose only difference is ``spawner_class``, and what one of them does with its event loop and its memory.

A task in the Hub's own loop sleeps for a millisecond again and again: a stall is the processor time that the loop's
thread used between two of its turns. What used most of it without a break is told too, by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.spawn import Hub, answers
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.e2e.stack import ROOT
from tests.harness.ports import free_port

SPAWNERS = {"ours": "dlspawner.spawner.DLSpawner", "stock": "kubespawner.KubeSpawner"}
FLOOR = {"floor": "tests.bench.floor.FloorSpawner"}
CONFIG = """
import asyncio, gc, json, os, time
c.JupyterHub.bind_url = os.environ["BENCH_URL"]
c.JupyterHub.hub_ip = "127.0.0.1"
c.JupyterHub.hub_port = int(os.environ["BENCH_HUB_PORT"])
c.JupyterHub.db_url = "sqlite:///" + os.environ["BENCH_STATE"] + "/hub.sqlite"
c.JupyterHub.cookie_secret_file = os.environ["BENCH_STATE"] + "/cookie_secret"
c.ConfigurableHTTPProxy.pid_file = os.environ["BENCH_STATE"] + "/proxy.pid"
c.ConfigurableHTTPProxy.command = [os.environ["BENCH_PROXY"]]
c.ConfigurableHTTPProxy.api_url = os.environ["BENCH_PROXY_API"]
c.JupyterHub.authenticator_class = "null"
c.JupyterHub.services = [{"name": "bench", "api_token": os.environ["BENCH_TOKEN"], "admin": True}]
c.JupyterHub.spawner_class = os.environ["BENCH_SPAWNER"]
c.JupyterHub.concurrent_spawn_limit = 0
c.KubeSpawner.namespace = os.environ["BENCH_NAMESPACE"]
c.KubeSpawner.image = "example.org/tiny:1"
c.KubeSpawner.scheduler_name = "kwok"
c.KubeSpawner.port = int(os.environ["BENCH_POD_PORT"])
c.KubeSpawner.delete_grace_period = 1
c.KubeSpawner.start_timeout = c.KubeSpawner.http_timeout = 300  # 200 at once take minutes on a busy machine
c.KubeSpawner.k8s_api_request_timeout, c.KubeSpawner.k8s_api_request_retry_timeout = 60, 300  # stock fails otherwise

long = []  # what used most of the loop's thread without a break: (seconds, what)

def timed(handle, run=asyncio.Handle._run):
    called, began = handle._callback, time.thread_time()
    run(handle)
    took = time.thread_time() - began
    if took > 0.002:
        task = getattr(called, "__self__", None)
        long.append((took, str(task.get_coro()) if isinstance(task, asyncio.Task) else repr(called)))

def collected(phase, info, began=[0.0]):
    if phase == "start":
        began[0] = time.thread_time()
    elif info["generation"] == 2:
        long.append((time.thread_time() - began[0], "a full garbage collection"))

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
                json.dump({"turns": len(turns), "max": turns[-1], "p99": turns[int(len(turns) * 0.99)],
                           "worst": turns[-20:], "long": sorted(long, reverse=True)[:10]}, file)
            os.rename(path + ".new", path)
            turns = []
            long.clear()

ticking = []
async def first(spawner):
    if os.environ.get("BENCH_TICKS") and not ticking:
        asyncio.Handle._run = timed
        gc.callbacks.append(collected)
        ticking.append(asyncio.create_task(tick(os.environ["BENCH_TICKS"])))
c.Spawner.pre_spawn_hook = first
"""


@dataclass(frozen=True)
class Bench:
    """A cluster to measure on, its kubeconfig, and the port at which all pods answer."""

    cluster: Client
    folder: Path
    pod_port: int

    @contextlib.contextmanager
    def namespace(self) -> Iterator[str]:
        name = f"bench-{secrets.token_hex(4)}"
        self.cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.cluster.until(f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda _account: True)
        try:
            yield name
        finally:
            self.cluster.request("DELETE", f"/api/v1/namespaces/{name}")


@dataclass(frozen=True)
class Measured(Hub):
    """A Hub of ours or stock, its process and where it writes what its loop did."""

    pid: int
    ticks: Path

    def stalls(self) -> dict[str, Any]:
        """What the event loop's turns took since the last time somebody asked, in seconds, and what took longest."""
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
        state = Path(name)
        (state / "config.py").write_text(CONFIG)
        url = f"http://127.0.0.1:{free_port()}"
        env = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig or bench.cluster.kubeconfig),
            "BENCH_URL": url,
            "BENCH_HUB_PORT": str(free_port()),
            "BENCH_STATE": name,
            "BENCH_PROXY": str(Path(sys.prefix) / "node_modules" / ".bin" / "configurable-http-proxy"),
            "BENCH_PROXY_API": f"http://127.0.0.1:{free_port()}",
            "BENCH_TOKEN": os.urandom(16).hex(),
            "BENCH_SPAWNER": (SPAWNERS | FLOOR)[which],
            "PYTHONPATH": str(ROOT),
            "BENCH_NAMESPACE": namespace,
            "BENCH_POD_PORT": str(bench.pod_port),
            "BENCH_TICKS": f"{name}/ticks" if ticks else "",
        }
        log = bench.folder / f"{which}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", f"--config={state / 'config.py'}"],
                cwd=state, env=env, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            wait_for(lambda: answers(url), f"the Hub answers, else see {log}", 180)
            yield Measured(url, env["BENCH_TOKEN"], {}, process.pid, state / "ticks")
        finally:
            process.terminate()
            process.wait(60)
