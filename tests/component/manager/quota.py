"""A Hub with quota: one GPU type, one team with 8 GPUs, real Managers beside it, and jobs that start at once.

Everything is the real thing but what runs in the pods. The Managers listen one each on an address of its own behind the
one that the Hub knows, so that one of them can be killed; a thread watches the cluster and counts what is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import requests
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text

from tests.bench.spawn import RESPONDER
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.spawner_hub import ROOT, Hub, answers, free_port

GPUS = 8
TEMPLATE = {
    "title": "Tiny",
    "description": "A server that answers the Hub and does nothing else.",
    "command": ["python3", "-S", "-c", RESPONDER],
    "options": {"gpus": {"default": 1, "max": 8}, "gpu_type": {}, "team": {}},
    "grace_period_seconds": 1,
}
OPTIONS = {**TEMPLATE["options"], "preemptible": {"default": False}, "requeue": {"default": False}}
GPU = "nvidia.com/gpu"
CLUSTER = """
gpu_types:
  gpu:
    title: GPU
    resource: %s
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
    cpu_per_gpu: 50m
    memory_per_gpu: 64Mi
    max_per_job: 8
cpu_only:
  cpu: {default: 100m, max: 4}
  memory: {default: 64Mi, max: 8Gi}
accounts: {first_uid: 20000, last_uid: 59999}
defaults: {template: tiny}
"""
TEAMS = "teams:\n  default: {title: Everybody, quota: {gpu: %d}}\n"
EXTRA = """
c.JupyterHub.services.append({"name": "tests", "api_token": "tests-token"})
c.JupyterHub.load_roles.append(
    {
        "name": "tests",
        "services": ["tests"],
        "scopes": ["admin:users", "servers", "read:servers", "list:users", "read:metrics"],
    }
)
c.KubeSpawner.storage_pvc_ensure = False
c.Spawner.poll_interval = 2
c.Spawner.start_timeout = 120
c.DLSpawner.orphan_seconds = 10
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1}
"""
# A start is answered when it is refused or ready, also where a busy machine takes longer than a second for that.
PATIENT = '\nc.JupyterHub.tornado_settings = {"slow_spawn_timeout": 30}\n'
Made = TypeVar("Made", bound="QuotaHub")


@dataclass
class QuotaHub(Hub):
    """Hub, proxy, cluster and Managers; `db_url` is the Managers' database, SQLite unless it is given."""

    db_url: str = ""
    gpus: int = GPUS
    manager_port: int = field(default_factory=free_port)
    manager_kubeconfig: Path | None = None
    settings: tuple[str, ...] = ()
    resource: str = GPU
    teams: str = TEAMS  # teams.yaml, with %d for the quota
    policy: str = ""  # what cluster.yaml has besides
    own_templates: Mapping[str, object] = field(default_factory=dict)  # beside tiny or in its place, by name
    python_path: str = field(default_factory=lambda: os.environ.get("JUPYTERHUB_PATH", ""))  # another JupyterHub

    def __post_init__(self) -> None:
        self.db_url = self.db_url or f"sqlite:///{self.state / 'manager.sqlite'}"

    def prepare(self) -> None:
        """Write the administrators' files."""
        config, templates = self.state / "config", self.state / "templates"
        (templates / "jobs").mkdir(parents=True)
        config.mkdir()
        (templates / "hub").symlink_to(ROOT / "templates" / "hub")
        for name, template in {"tiny": TEMPLATE, **self.own_templates}.items():
            (templates / "jobs" / f"{name}.yaml").write_text(json.dumps(template))
        (config / "jupyterhub_config.py").symlink_to(ROOT / "hub_config" / "jupyterhub_config.py")
        (config / "cluster.yaml").write_text(CLUSTER % self.resource + self.policy)
        self.config, self.templates = config, templates
        self.set_quota(self.gpus)

    def set_quota(self, gpus: int) -> None:
        (self.config / "teams.yaml").write_text(self.teams.replace("%d", str(gpus)))

    def env(self) -> dict[str, str]:
        wanted = {
            **super().env(),
            "DLSPAWNER_MANAGER_URL": self.manager_url(),
            "JUPYTERHUB_API_TOKEN": "manager-token",
            "JUPYTERHUB_API_URL": f"http://{self.address}:{self.hub_port}{self.prefix}/hub/api",
            "JUPYTERHUB_BASE_URL": f"{self.prefix}/",
            "JUPYTERHUB_SERVICE_NAME": "jobs",
            "JUPYTERHUB_SERVICE_PREFIX": f"{self.prefix}/services/jobs/",
        }
        return wanted

    def manager_url(self) -> str:
        return f"http://127.0.0.1:{self.manager_port}"

    def start_manager(self, name: str = "manager", port: int = 0) -> None:
        """One Manager; the one that the Hub asks unless it gets another port."""
        port = port or self.manager_port
        own = {"JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}"}
        if self.manager_kubeconfig is not None:
            own["KUBECONFIG"] = str(self.manager_kubeconfig)
        command = [
            *(sys.executable, "-m", "dlspawner.manager", f"--db-url={self.db_url}"),
            f"--Manager.cluster_file={self.config / 'cluster.yaml'}",
            f"--Manager.teams_file={self.config / 'teams.yaml'}",
            f"--Manager.templates_dir={self.templates}",
            f"--Manager.namespace={self.namespace}",
            *self.settings,
        ]
        self.run_with(name, command, own)
        health = f"http://127.0.0.1:{port}{self.prefix}/services/jobs/health"

        def up() -> bool:
            assert self.running[name].poll() is None, (self.state / f"{name}.log").read_text()[-3000:]
            return answers(health)

        wait_for(up, f"{name} answers", 120)

    def run_with(self, name: str, command: list[str], own: Mapping[str, str]) -> None:
        self.run(name, "env", *(f"{key}={value}" for key, value in own.items()), *command)

    def start_hub(self) -> None:
        config = self.state / "jupyterhub_config.py"
        ours = str(self.config / "jupyterhub_config.py")
        config.write_text(f"load_subconfig({ours!r})\n{EXTRA}{self.extra}")
        self.run("hub", sys.executable, "-m", "jupyterhub", f"--config={config}")

        def up() -> bool:
            assert self.running["hub"].poll() is None, self.log[-3000:]
            return answers(f"{self.url}/hub/health")

        wait_for(up, "the Hub", 180)

    def kill(self, name: str) -> None:
        """SIGKILL, as by a node that loses power."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        if name == "cluster" and self.plane:
            self.plane.kill()

    def metric(self, name: str, **labels: str) -> float | None:
        """What this Manager tells a Prometheus by now; ``None`` while it tells nothing of it."""
        url = f"{self.manager_url()}/services/jobs/api/metrics"
        answer = requests.get(url, headers={"Authorization": "Bearer tests-token"}, timeout=60)
        assert answer.status_code == 200, answer.text
        samples = (one for family in text_string_to_metric_families(answer.text) for one in family.samples)
        return next((one.value for one in samples if (one.name, one.labels) == (name, labels)), None)

    # What tests ask of the Hub

    def api(self, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": "token tests-token"}
        url = f"http://{self.address}:{self.hub_port}/hub/api{path}"
        return requests.request(method, url, headers=headers, json=body, timeout=120)

    def add_users(self, names: list[str]) -> None:
        answer = self.api("POST", "/users", {"usernames": names})
        assert answer.status_code == 201, answer.text

    def start_server(self, user: str, **options: Any) -> requests.Response:
        return self.api("POST", f"/users/{user}/server", {"user_options": options} if options else None)

    def refusal(self, user: str, answer: requests.Response) -> str:
        """The sentences with which the start of a default server, answered so, is refused.

        JupyterHub answers 201 or 202 to what takes longer than a moment, also where it is refused after that. While it
        clears up after a start that has just failed it answers 400 to who asks how that gets on: asked again then.
        """
        if answer.status_code in {403, 429}:
            return str(answer.json()["message"])
        assert answer.status_code in {201, 202}, answer.text
        path = f"/users/{user}/server/progress"
        told = wait_for(lambda: (said := self.api("GET", path)).ok and said.text, "how the start has ended", 60)
        last = json.loads([line for line in told.splitlines() if line.startswith("data: ")][-1][len("data: ") :])
        assert last.get("failed"), told
        return str(last["message"]).removeprefix("Spawn failed: ")

    def servers(self) -> dict[str, str]:
        """What the Hub says of every server: ready or what it waits for."""
        users: list[Any] = []
        while page := self.api("GET", f"/users?offset={len(users)}").json():  # it tells of 200 at one time
            users += page
        return {
            f"{user['name']}/{name}": "ready" if server["ready"] else str(server["pending"])
            for user in users
            for name, server in user["servers"].items()
        }

    def ready(self) -> list[str]:
        return [name for name, state in self.servers().items() if state == "ready"]

    def storm(self, users: list[str], **options: Any) -> list[int]:
        """Everybody starts a server at once; the statuses, 0 for who got no answer because the Hub was killed."""

        def start(user: str) -> int:
            for _ in range(600):
                try:
                    return self.start_server(user, **options).status_code
                except requests.ConnectionError:
                    time.sleep(0.1)
            return 0

        with ThreadPoolExecutor(len(users)) as pool:
            return list(pool.map(start, users))

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
        return found

    def held(self) -> int:
        """GPUs that pods hold now, in the cluster's own words."""
        return sum(gpus_of(pod, self.resource) for pod in self.pods())

    def rows(self, statement: str) -> list[tuple[str, ...]]:
        """What the Managers' database has."""
        engine = create_engine(self.db_url)
        try:
            with engine.connect() as connection:
                return [tuple(str(value) for value in row) for row in connection.execute(text(statement))]
        finally:
            engine.dispose()

    def jobs(self) -> dict[str, str]:
        """The state of every job that has not ended, by its user."""
        return dict(self.rows("SELECT user_name, state FROM jobs WHERE state <> 'ended'"))

    def clear(self) -> None:
        """Stops all servers, until none runs, waits or holds anything: those that wait start meanwhile."""

        def empty() -> bool:
            for name in self.ready():
                user, _, server = name.partition("/")
                self.api("DELETE", f"/users/{user}/servers/{server}" if server else f"/users/{user}/server")
            return not self.servers() and not self.held() and not self.jobs()

        wait_for(empty, "all of it is stopped", 120)

    def start_gateway(self, port: int, home: str = "") -> None:
        """The SSH gateway at ``port``; ``home`` is the Hub as people type it."""
        keys = self.state / "gateway"
        keys.mkdir(mode=0o700)
        for name in ("user_ca", "user_ca.pub"):
            shutil.copy(self.state / name, keys / name)
        command = [
            *(sys.executable, "-m", "ssh_gateway", "--Gateway.ip=127.0.0.1", f"--Gateway.port={port}"),
            *(f"--Gateway.state_dir={keys}", f"--Gateway.namespace={self.namespace}"),
            f"--Gateway.manager_url={self.manager_url()}{self.prefix}/services/jobs",
            f"--Gateway.hub_public_url={home or self.url}/",
        ]
        self.run_with("gateway", command, {"JUPYTERHUB_API_TOKEN": "gateway-token"})
        log = self.state / "gateway.log"
        wait_for(lambda: "event=ready" in log.read_text(), f"the gateway: see {log}")

    def check_logs(self) -> None:
        for name in ("hub", "manager"):
            _, found, after = (self.state / f"{name}.log").read_text().partition("Traceback")
            assert not found, f"{name}.log: {found}{after[:8000]}"


def gpus_of(pod: Mapping[str, Any], resource: str = GPU) -> int:
    """GPUs that a pod holds: none once it has ended."""
    if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    containers = pod["spec"]["containers"]
    return sum(int(((one.get("resources") or {}).get("limits") or {}).get(resource, 0)) for one in containers)


class Sampler:
    """Watches all pods of the jobs' namespace in a thread, and remembers the most that was ever held at once.

    What is known is complete after the end of the ``with``.
    """

    def __init__(self, hub: QuotaHub, resource: str = "") -> None:
        self._client, self._resource = Client(hub.kubeconfig), resource or hub.resource
        self._path = f"/api/v1/namespaces/{hub.namespace}/pods"
        self._held: dict[str, int] = {}
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: BaseException | None = None
        self.most = 0

    def __enter__(self) -> Sampler:
        listed = self._client.get(self._path)
        for pod in listed["items"]:
            self._note("ADDED", pod)
        self._version = listed["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(60)
        assert self._failed is None
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._enough.is_set():
                query = {"resourceVersion": self._version, "timeoutSeconds": "1"}
                with self._client.watch(self._path, **query) as watcher:
                    for event in watcher.rest():
                        self._version = event["object"]["metadata"]["resourceVersion"]
                        self._note(event["type"], event["object"])
        except BaseException as failed:
            self._failed = failed
            raise

    def _note(self, kind: str, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._held.pop(uid, None)
        else:
            self._held[uid] = gpus_of(pod, self._resource)
        self.most = max(self.most, sum(self._held.values()))


@contextlib.contextmanager
def running(hub: Made, *, cluster: bool = True) -> Iterator[Made]:
    """All of it; everything is gone at the end."""
    hub.prepare()
    try:
        if cluster:
            hub.start_cluster()
        hub.start_manager()
        hub.start_proxy()
        hub.start_hub()
        yield hub
    finally:
        for name in [*hub.running][::-1]:
            if name != "cluster":
                hub.stop(name)
        if "cluster" in hub.running:
            hub.stop("cluster")
