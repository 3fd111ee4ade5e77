"""POST to ready: DLSpawner against stock KubeSpawner, each in its own Hub, on the same embedded cluster.

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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import requests

from tests.bench.figures import Figure, ratio
from tests.e2e.people import wait_for
from tests.e2e.stack import ROOT, Launched
from tests.harness.ports import free_port

ROUNDS = 7
CROWD = 50
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
    tiny = {
        "title": "Tiny",
        "description": "A server that answers the Hub and does nothing else.",
        "command": ["python3", "-S", "-c", RESPONDER],
    }
    (target / "jobs" / "tiny.yaml").write_text(json.dumps(tiny))
    return target


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
        with requests.get(url, headers=headers, stream=True, timeout=300) as events:
            for line in events.iter_lines():
                event = json.loads(line[6:]) if line.startswith(b"data: ") else {}
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


def crowd(hub: Hub, prefix: str, size: int = CROWD) -> list[float]:
    """Seconds until each of as many spawns, posted at once, was ready."""
    users = [f"{prefix}{number}" for number in range(size)]
    with ThreadPoolExecutor(size) as pool:
        seconds = list(pool.map(hub.spawn, users))
        list(pool.map(hub.stop, users))
    return seconds


STOCK_CONFIG = """
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
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.concurrent_spawn_limit = 0
c.JupyterHub.allow_named_servers = True
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
def stock_hub(stack: Launched, folder: Path) -> Iterator[Hub]:
    """JupyterHub with KubeSpawner as it comes, its pods in a namespace of their own on the same cluster."""
    stack.kubectl("create", "namespace", "stock")
    state = folder / "stock"
    state.mkdir()
    (state / "config.py").write_text(STOCK_CONFIG)
    url = f"http://127.0.0.1:{free_port()}"
    env = {
        **stack.kubectl_env,
        "BENCH_URL": url,
        "BENCH_HUB_PORT": str(free_port()),
        "BENCH_STATE": str(state),
        "BENCH_PROXY": str(Path(sys.prefix) / "node_modules" / ".bin" / "configurable-http-proxy"),
        "BENCH_PROXY_API": f"http://127.0.0.1:{free_port()}",
        "BENCH_TOKEN": os.urandom(16).hex(),
        "BENCH_RESPONDER": RESPONDER,
    }
    with (state / "hub.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", f"--config={state / 'config.py'}"],
            cwd=state, env=env, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_for(lambda: answers(url), "the stock Hub answers", 60)
        yield Hub(url, env["BENCH_TOKEN"], {})
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"{url}/hub/health", timeout=5).ok
    return False


def measure(stack: Launched, folder: Path) -> list[Figure]:
    """One at a time in interleaved rounds, then the crowd, twice each way round."""
    admin = stack.person("admin")
    ours = Hub(stack.url, admin.token, {"user_options": {"template": "tiny"}})
    with stock_hub(stack, folder) as stock:
        one_at_a_time(ours, "warm"), one_at_a_time(stock, "warm")
        pairs = [(one_at_a_time(ours, f"one{n}"), one_at_a_time(stock, f"one{n}")) for n in range(ROUNDS)]
        crowds = [(crowd(ours, f"a{n}x"), crowd(stock, f"a{n}x")) for n in range(3)]
    admin.close()
    ours_one, stock_one = map(list, zip(*pairs, strict=True))
    ours_last = [max(mine) for mine, _ in crowds]
    stock_last = [max(theirs) for _, theirs in crowds]
    ours_mid = [median(mine) for mine, _ in crowds]
    stock_mid = [median(theirs) for _, theirs in crowds]
    peer = "stock KubeSpawner"
    return [
        Figure("POST to ready, one at a time", median(ours_one), "s"),
        Figure("POST to ready, one at a time, stock KubeSpawner", median(stock_one), "s"),
        ratio("POST to ready, one at a time", ours_one, stock_one, peer, 1.0),
        Figure(f"POST to all {CROWD} ready", median(ours_last), "s"),
        Figure(f"POST to all {CROWD} ready, stock KubeSpawner", median(stock_last), "s"),
        ratio(f"POST to all {CROWD} ready", ours_last, stock_last, peer, 1.0),
        ratio(f"POST to ready, median of {CROWD} at once", ours_mid, stock_mid, peer, 1.0),
    ]
