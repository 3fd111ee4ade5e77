"""A Hub on a real cluster with jobs that fail on demand: a patch with the server's name breaks its pod."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.e2e.people import wait_for
from tests.harness.spawner_hub import Hub, Person, running

# Answers the Hub, ends when asked to, and does what /tmp/do says.
PROGRAM = r"""
import http.server, os, signal, sys, threading, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
def obey():
    while not os.path.exists("/tmp/do"):
        time.sleep(0.1)
    what = open("/tmp/do").read().strip()
    if what == "exit":
        sys.stderr.write("No such dataset.\n")
        sys.stderr.flush()
        os._exit(7)
    if what == "memory":
        hoard = []
        while True:
            hoard.append(b"x" * (1 << 20) + str(len(hoard)).encode())
    open("/tmp/big", "wb").write(os.urandom(1 << 20) * 60)
threading.Thread(target=obey, daemon=True).start()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served by the job")
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8888), Answer).serve_forever()
"""
TEMPLATE = {
    "title": "Job",
    "command": ["python3", "-c", PROGRAM],
    "grace_period_seconds": 2,
}
LAB = """
title: Notebook
command: [/bin/sh, -c, "export HOME=/tmp JUPYTERHUB_ROOT_DIR=/tmp; exec jupyterhub-singleuser"]
grace_period_seconds: 5
pod:
  containers:
    - name: notebook
      resources: {requests: {cpu: 50m, memory: 256Mi}, limits: {cpu: "2", memory: 1Gi}}
"""
SSH = {"name": "ssh", "port": 2222, "protocol": "ssh", "expose": "nodeport"}
CLUSTER = """
gpu_types:
  ours: {{title: Ours, resource: {gpu}, cpu_per_gpu: 1, memory_per_gpu: 1Gi, max_per_job: 2}}
cpu_only:
  cpu: {{default: 50m, max: 4}}
  memory: {{default: 128Mi, max: 8Gi}}
storage: {{home_size: 1Gi, access_modes: [ReadWriteOnce]}}
defaults: {{template: job}}
"""
EXTRA = """
import json
from pathlib import Path
from dlspawner.core.launch.pod import merge_pod

def fail(spawner, pod):
    patch = Path({folder!r}) / (spawner.name + ".json")
    if not patch.exists():
        return pod
    return spawner.pods.model(merge_pod(dict(spawner.pods.plain(pod)), json.loads(patch.read_text())))

c.KubeSpawner.modify_pod_hook = fail
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = "IfNotPresent"
c.KubeSpawner.storage_pvc_ensure = False
c.DLSpawner.start_timeout = {seconds}
c.DLSpawner.ephemeral_storage_limit = "40Mi"
c.Spawner.poll_interval = 1
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 1}}
"""


def address(kubeconfig: Path) -> str:
    """This machine's address towards the API server, which reaches it there."""
    config = yaml.safe_load(kubeconfig.read_text())
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    with socket.create_connection((server.hostname or "", server.port or 443), 10) as connection:
        return str(connection.getsockname()[0])


@contextlib.contextmanager
def running_hub(
    state: Path,
    namespace: str,
    image: str,
    kubeconfig: Path,
    *,
    seconds: int,
    gpu: str = "example.com/gpu",
    more: str = "",
) -> Iterator[Hub]:
    """Patches go to the folder ``patches``; `more` is configuration."""
    (state / "patches").mkdir()
    config, templates = state / "config", state / "templates"
    (templates / "jobs").mkdir(parents=True)
    config.mkdir()
    made = Hub(state, namespace=namespace, cluster=kubeconfig, address=address(kubeconfig))
    (templates / "hub").symlink_to(made.templates / "hub")
    (templates / "jobs" / "job.yaml").write_text(yaml.safe_dump(TEMPLATE))
    (templates / "jobs" / "shell.yaml").write_text(yaml.safe_dump({**TEMPLATE, "endpoints": [SSH]}))
    (templates / "jobs" / "lab.yaml").write_text(LAB)
    (config / "jupyterhub_config.py").symlink_to(made.config / "jupyterhub_config.py")
    (config / "cluster.yaml").write_text(CLUSTER.format(gpu=gpu))
    (config / "teams.yaml").write_text("teams:\n  default: {title: Everybody}\n")
    made.templates, made.config = templates, config
    made.extra = EXTRA.format(folder=str(state / "patches"), image=image, seconds=seconds) + more
    with running(made, cluster=False):
        yield made


@dataclass
class Outcome:
    """The sentences of one start."""

    steps: list[str] = field(default_factory=list)
    refused: str = ""
    ready: bool = False
    seconds: float = 0.0


def start(person: Person, server: str, patch: Mapping[str, Any] | None = None, template: str = "job") -> Outcome:
    """Start a server with this patch on its pod, and watch until it is ready or given up."""
    if patch:
        (person.hub.state / "patches" / f"{server}.json").write_text(json.dumps(patch))
    outcome = Outcome()
    began = time.monotonic()
    answer = person.start(server, template=template)
    if answer.status_code not in {201, 202}:
        outcome.refused, outcome.seconds = str(answer.json()["message"]), time.monotonic() - began
        return outcome
    if answer.status_code == 202 or not person.server(server).get("ready"):  # 201 too, of a start that just failed
        for step in person.progress(server):
            outcome.steps.append(str(step["message"]))
            if step.get("failed"):
                outcome.refused = str(step["message"]).removeprefix("Spawn failed: ")
    outcome.seconds = time.monotonic() - began
    outcome.ready = bool(person.server(server).get("ready"))
    return outcome


def left(person: Person, server: str) -> str:
    """Returns the objects of a server that are left."""
    name = person.pod_name(server)
    found = person.hub.kubectl("get", "pods,secrets,services", "-o", "name").splitlines()
    return " ".join(line for line in found if line.partition("/")[2].startswith(name))


def wait_until_gone(person: Person, server: str, seconds: float = 60) -> None:
    wait_for(lambda: not left(person, server), f"nothing is left of {server}", seconds)


def reason(person: Person, server: str) -> str:
    """Returns the home page's note on a server of a Hub without a Manager."""
    page = person.get("/hub/home").content.decode()
    return page.split(f"<strong>{server}</strong>: ")[1].split("<")[0] if f"<strong>{server}</strong>: " in page else ""
