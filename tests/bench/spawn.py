"""POST to ready: DLSpawner against stock KubeSpawner, each in its own Hub, on the same embedded cluster.

`python -m tests.bench.spawn` starts the whole product for it.

Both start the same tiny HTTP server in the same kind of pod, so what differs is the spawner. DLSpawner does more (
template, labels, checks); the aim is that nobody waits longer for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import requests

from tests.bench.figures import Figure, publish, ratio
from tests.e2e.people import answers, events_of, wait_for
from tests.e2e.stack import ROOT, Launched, running
from tests.harness.ports import free_port

PEER = "stock KubeSpawner"
ROUNDS = 7
CROWDS = {50: 3}  # how many at once: rounds
RESPONDER = """
import os, signal, socket
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
s = socket.create_server((os.environ["POD_IP"], 8888))
while True:
    c, _ = s.accept()
    c.recv(65536)
    c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
    c.close()
"""


def templates(folder: Path) -> Path:
    """The shipped templates and one more that starts nothing but a tiny server."""
    target = folder / "templates"
    shutil.copytree(ROOT / "templates", target)
    (target / "jobs" / "tiny.yaml").write_text(json.dumps(tiny("100m")))
    return target


def tiny(cpu: str | int) -> dict[str, object]:
    """A template."""
    return {
        "title": "Tiny",
        "description": "A server that answers the Hub and does nothing else.",
        "options": {"cpu": {"default": cpu}, "memory": {"default": "64Mi"}},
        "command": ["python3", "-S", "-c", RESPONDER],
    }


@dataclass(frozen=True)
class Hub:
    """A Hub to measure, and a token of an administrator."""

    url: str
    token: str
    body: dict[str, object]

    def request(self, method: str, path: str, body: object = None) -> requests.Response:
        headers = {"Authorization": f"token {self.token}"}
        return requests.request(method, f"{self.url}/hub/api{path}", headers=headers, json=body, timeout=300)

    def spawn(self, user: str) -> float:
        """Seconds from POST to the progress stream's `ready`."""
        self.request("POST", f"/users/{user}")
        started = time.perf_counter()
        answer = self.request("POST", f"/users/{user}/server", self.body)
        assert answer.status_code in {201, 202}, answer.text
        if answer.status_code == 202:
            self._follow(user)
        return time.perf_counter() - started

    def _follow(self, user: str) -> None:
        headers = {"Authorization": f"token {self.token}"}
        url = f"{self.url}/hub/api/users/{user}/server/progress"
        with requests.get(url, headers=headers, stream=True, timeout=300) as answer:
            for event in events_of(answer):
                assert not event.get("failed"), event
                if event.get("ready"):
                    return
        raise AssertionError(f"{user} was never ready")

    def stop(self, user: str) -> None:
        self.request("DELETE", f"/users/{user}/server")
        wait_for(lambda: not self.request("GET", f"/users/{user}").json().get("servers"), f"{user} stopped", 120)


def one_at_a_time(hub: Hub, user: str) -> float:
    seconds = hub.spawn(user)
    hub.stop(user)
    return seconds


def crowd(hub: Hub, prefix: str, size: int) -> float:
    """Seconds until the last of as many spawns, posted at once, was ready."""
    users = [f"{prefix}{number}" for number in range(size)]
    with ThreadPoolExecutor(size) as pool:
        seconds = list(pool.map(hub.spawn, users))
        list(pool.map(hub.stop, users))
    return max(seconds)


# A Hub with a proxy and a database of its own, which leaves everything else to the spawner's configuration.
HUB_CONFIG = """
import os
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
c.JupyterHub.concurrent_spawn_limit = 0
"""
STOCK_CONFIG = """
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.namespace = "stock"
c.KubeSpawner.image = "tiny"
c.KubeSpawner.ip = "$(POD_IP)"
c.KubeSpawner.port = 8888
c.KubeSpawner.uid = 1000
c.KubeSpawner.gid = 1000
c.KubeSpawner.environment = {"POD_IP": {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}}
c.KubeSpawner.cmd = ["python3", "-S", "-c", os.environ["BENCH_RESPONDER"]]
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_capacity = "1Gi"
c.KubeSpawner.volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": "claim-{username}"}}]
c.KubeSpawner.volume_mounts = [{"name": "home", "mountPath": "/home/{username}"}]
"""


@contextlib.contextmanager
def running_hub(state: Path, config: str, more: Mapping[str, str], log: Path) -> Iterator[tuple[Hub, int]]:
    """A Hub with the spawner of this configuration, and its process."""
    (state / "config.py").write_text(HUB_CONFIG + config)
    url, token = f"http://127.0.0.1:{free_port()}", os.urandom(16).hex()
    env = {
        **os.environ,
        "BENCH_URL": url,
        "BENCH_HUB_PORT": str(free_port()),
        "BENCH_STATE": str(state),
        "BENCH_PROXY": str(Path(sys.prefix) / "node_modules" / ".bin" / "configurable-http-proxy"),
        "BENCH_PROXY_API": f"http://127.0.0.1:{free_port()}",
        "BENCH_TOKEN": token,
        **more,
    }
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", f"--config={state / 'config.py'}"],
            cwd=state, env=env, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_for(lambda: answers(f"{url}/hub/health"), f"the Hub answers, else see {log}", 180)
        yield Hub(url, token, {}), process.pid
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def stock_hub(stack: Launched, folder: Path) -> Iterator[Hub]:
    """JupyterHub with KubeSpawner as it comes, its pods in a namespace of their own on the same cluster."""
    stack.kubectl("create", "namespace", "stock")
    state = folder / "stock"
    state.mkdir()
    env = {**stack.kubectl_env, "BENCH_RESPONDER": RESPONDER}
    with running_hub(state, STOCK_CONFIG, env, state / "hub.log") as (hub, _):
        yield hub


def measure(stack: Launched, folder: Path) -> list[Figure]:
    """One at a time in interleaved rounds, then crowds in turn."""
    admin = stack.person("admin")
    ours = Hub(stack.url, admin.token, {"user_options": {"template": "tiny"}})
    with stock_hub(stack, folder) as stock:
        figures = compared((ours, stock), "POST to ready", ROUNDS, CROWDS)
    return figures


def compared(
    hubs: tuple[Hub, Hub], title: str, rounds: int, crowds: Mapping[int, int], aim_of_crowds: float = 1.0
) -> list[Figure]:
    """Starts one at a time and in crowds of these sizes, each on our Hub and on the stock one in turn."""
    for hub in hubs:
        one_at_a_time(hub, "warm")
    measured = {"one at a time": [[one_at_a_time(hub, f"one{n}") for hub in hubs] for n in range(rounds)]}
    for size, times in crowds.items():
        found = [[crowd(hub, f"c{size}x{n}x", size) for hub in hubs] for n in range(times)]
        measured[f"all of {size} at once"] = found
    figures = []
    for what, pairs in measured.items():
        name, (ours, stock) = f"{title}, {what}", map(list, zip(*pairs, strict=True))
        aim = 1.0 if what == "one at a time" else aim_of_crowds
        figures += [
            Figure(name, median(ours), "s"),
            Figure(f"{name}, {PEER}", median(stock), "s"),
            ratio(name, ours, stock, PEER, aim),
        ]
    return figures


def run(folder: Path) -> list[Figure]:
    """On a product that is started for it."""
    with running(folder / "state", f"--templates={templates(folder)}") as stack:
        return measure(stack, folder)


if __name__ == "__main__":
    publish("bench-spawn", run)
