"""A real Hub with its real proxy and our configuration, on the embedded cluster or another; no Manager, no gateway.

With `DLSPAWNER_TESTS_CLUSTER=kubernetes` the embedded nodes join a real control plane (tests/kubernetes/planes.py), and
every test that starts a cluster runs there unchanged.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

from dlspawner import settings
from tests.e2e import people
from tests.e2e.people import answers, events_of, wait_for
from tests.harness.ports import free_port
from tests.kubernetes import planes

ROOT = Path(__file__).resolve().parents[2]
JUPYTERHUB_5_5 = Path(sys.prefix) / "jupyterhub-5.5"  # put there by the Makefile
CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}


@dataclass
class Hub:
    """The processes, their addresses and secrets; everything lives in ``state``."""

    state: Path
    templates: Path = ROOT / "templates"
    config: Path = ROOT / "hub_config"
    port: int = field(default_factory=free_port)
    hub_port: int = field(default_factory=free_port)
    api_port: int = field(default_factory=free_port)
    password: str = "a password for everybody"
    extra: str = ""
    python_path: str = ""
    prefix: str = ""  # JupyterHub.base_url without its last /
    namespace: str = "jobs"
    address: str = "127.0.0.1"  # where pods reach the Hub
    cluster: Path | None = None  # the kubeconfig of another cluster than the embedded one
    nodes: Path | None = None  # what the embedded one's nodes are, if not the usual ones
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    plane: planes.ControlPlane | None = None  # the real one beneath its nodes

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    @property
    def kubeconfig(self) -> Path:
        return self.cluster or self.state / "cluster" / "kubeconfig"

    @property
    def kubectl_program(self) -> str:
        if self.plane:
            return planes.kubectl()
        return os.environ.get("DLSPAWNER_KUBECTL", "kubectl") if self.cluster else "kubectl"

    @property
    def log(self) -> str:
        return (self.state / "hub.log").read_text()

    def env(self) -> dict[str, str]:
        ca = self.state / "user_ca"
        if not ca.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ca)], check=True)
        wanted = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
            "KUBECONFIG": str(self.kubeconfig),
            "CONFIGPROXY_AUTH_TOKEN": "proxy-token",
            "DLSPAWNER_STATE": str(self.state),
            "DLSPAWNER_CONFIG_DIR": str(self.config),
            "DLSPAWNER_TEMPLATES": str(self.templates),
            "DLSPAWNER_NAMESPACE": self.namespace,
            "DLSPAWNER_BIND_URL": self.url,
            "DLSPAWNER_HUB_URL": f"http://{self.address}:{self.hub_port}",
            "DLSPAWNER_HUB_DB_URL": f"sqlite:///{self.state / 'hub.sqlite'}",
            "DLSPAWNER_PROXY_API_URL": f"http://127.0.0.1:{self.api_port}",
            "DLSPAWNER_MANAGER_URL": f"http://127.0.0.1:{self.hub_port}",
            "DLSPAWNER_MANAGER_TOKEN": "manager-token",
            "DLSPAWNER_GATEWAY_TOKEN": "gateway-token",
            "DLSPAWNER_SSH_HOST": "127.0.0.1",
            "DLSPAWNER_SSH_PORT": "2222",
            "DLSPAWNER_SSH_CA": f"{ca}.pub",
            "DLSPAWNER_PASSWORD": self.password,
            "DLSPAWNER_ADMIN_PASSWORD": "an admin password of thirty-two letters",
        }
        if self.python_path:
            wanted["PYTHONPATH"] = self.python_path
        return {**os.environ, **wanted}

    def run(self, name: str, *command: str) -> None:
        with (self.state / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, env=self.env(), cwd=ROOT, stdout=log, stderr=log)

    def start_cluster(self) -> None:
        given = [f"--nodes={self.nodes}"] if self.nodes else []
        module = ["dlspawner.devcluster"]
        if planes.WANTED:
            self.join_real()
            module = ["dlspawner.devcluster.node", f"--kubeconfig={self.kubeconfig}"]
        self.run("cluster", sys.executable, "-m", *module, f"--state={self.state / 'cluster'}", *given)
        wait_for(self.kubeconfig.exists, "the kubeconfig", 120)
        ready = [self.kubectl_program, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s"]

        def nodes() -> bool:
            return subprocess.run(ready, env=self.env(), capture_output=True, check=False).returncode == 0

        wait_for(nodes, "the nodes", 120)
        wanted = settings.load(self.templates / "jobs", self.config / "cluster.yaml", self.config / "teams.yaml")
        for team in wanted.teams.teams:
            for mount in team.mounts:
                self.apply("v1", "PersistentVolumeClaim", mount.claim, spec=CLAIM)
        classes = wanted.cluster.scheduling.classes
        for name in filter(None, {classes.guaranteed, classes.preemptible}):
            self.apply("scheduling.k8s.io/v1", "PriorityClass", name, value=0, preemptionPolicy="Never")

    def join_real(self) -> None:
        """Have a real control plane; the one from before where that was killed."""
        if self.plane:
            self.plane.start()
            return
        self.plane = planes.take()
        self.kubeconfig.parent.mkdir()
        shutil.copy(self.plane.kubeconfig, self.kubeconfig)

    def leave_real(self) -> None:
        if self.plane:
            planes.give_back(self.plane)
            self.plane = None

    def apply(self, api_version: str, kind: str, name: str, **fields: object) -> None:
        """kubectl apply of an object in the jobs' namespace."""
        manifest = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **fields}
        command = [self.kubectl_program, "-n", self.namespace, "apply", "-f", "-"]
        subprocess.run(command, env=self.env(), input=json.dumps(manifest).encode(), check=True, capture_output=True)

    def start_proxy(self) -> None:
        beside = Path(sys.prefix) / "node_modules" / ".bin" / "configurable-http-proxy"
        program = str(beside) if beside.exists() else "configurable-http-proxy"
        hub = f"http://{self.address}:{self.hub_port}"
        self.run(
            "proxy",
            program,
            "--ip=127.0.0.1",
            f"--port={self.port}",
            "--api-ip=127.0.0.1",
            f"--api-port={self.api_port}",
            f"--default-target={hub}",
            f"--error-target={hub}{self.prefix}/hub/error",
        )

    def without_limits(self) -> Path:
        """teams.yaml without what only a Manager counts."""
        teams = yaml.safe_load((self.config / "teams.yaml").read_text())
        for team in teams["teams"].values():
            for limit in ("quota", "borrow_limit", "user_caps"):
                team.pop(limit, None)
        file = self.state / "teams.yaml"
        file.write_text(yaml.safe_dump(teams))
        return file

    def start_hub(self) -> None:
        config = self.state / "jupyterhub_config.py"
        ours = str(self.config / "jupyterhub_config.py")
        # There is no Manager at its address: the Hub would wait for it.
        config.write_text(
            f"load_subconfig({ours!r})\nc.JupyterHub.services = c.JupyterHub.services[1:]\n"
            "c.JupyterHub.load_roles = [r for r in c.JupyterHub.load_roles if r['name'] != 'jobs']\n"
            "for role in c.JupyterHub.load_roles:\n"
            "    role['scopes'] = [s for s in role['scopes'] if '=jobs' not in s]\n"
            "c.DLSpawner.manager_token = ''\nc.KubeSpawner.uid = c.KubeSpawner.gid = 1000\n"
            f"c.DLSpawner.teams_file = {str(self.without_limits())!r}\n" + self.extra
        )
        self.run("hub", sys.executable, "-m", "jupyterhub", f"--config={config}")

        def up() -> bool:
            assert self.running["hub"].poll() is None, self.log
            return answers(f"{self.url}/hub/health")

        wait_for(up, "the Hub", 180)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        process = self.running.pop(name)
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(5)
        finally:
            if name == "cluster":
                self.leave_real()

    def kubectl(self, *arguments: str) -> str:
        command = [self.kubectl_program, "-n", self.namespace, *arguments]
        done = subprocess.run(command, env=self.env(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


class Person(people.Person):
    """A user of such a Hub."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        super().__init__(hub, name, hub.password)

    def progress(self, server: str) -> Iterator[dict[str, Any]]:
        """Returns the events of the progress page until the start has ended.

        JupyterHub answers 400 ("is not starting") while it clears up after a start that has just failed
        (`User.stop` takes the mark of a start away, and the failure is only told when it is over): asked again then.
        """
        headers = {"Authorization": f"token {self.token}"}
        url = f"{self.hub.url}/hub/api{self.server_path(server)}/progress"
        for _ in range(100):
            pending = self.server(server).get("pending")
            with requests.get(url, headers=headers, stream=True, timeout=120) as answer:
                if answer.status_code != 400 or not pending:
                    yield from events_of(answer)
                    return
            time.sleep(0.1)

    def launch(self, server: str, seconds: float = 60, **options: object) -> dict[str, Any]:
        try:
            return super().launch(server, seconds, **options)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.hub.log[-3000:]}") from None

    def pod_name(self, server: str) -> str:
        return f"jupyter-{self.name}--{server}" if server else f"jupyter-{self.name}"


@contextlib.contextmanager
def running(hub: Hub, *, cluster: bool = True) -> Iterator[Hub]:
    """Cluster, proxy and Hub; all of them are gone at the end."""
    try:
        if cluster:
            hub.start_cluster()
        hub.start_proxy()
        hub.start_hub()
        yield hub
    finally:
        for name in ("hub", "proxy", "cluster"):
            if name in hub.running:
                hub.stop(name)


def alert(page: str) -> str:
    """The error on a page, as text."""
    found = re.search(r'<p class="spawn-error-msg[^>]*>(.*?)</p>', page, re.DOTALL)
    return " ".join((found.group(1) if found else "").split())


def form_back(person: Person, server: str, **fields: str) -> requests.Response:
    """The form that comes back of a start that fails at once.

    JupyterHub waits a second for that, and leads to the page of a start that goes on where a machine is busy: then it
    is sent again once that start is over.
    """

    def back() -> list[requests.Response]:
        answer = person.post(f"/hub/spawn/{person.name}/{server}", **fields)
        return [] if answer.status_code == 302 or "is pending" in answer.text else [answer]

    [answer] = wait_for(back, "the form")
    return answer


def new_name(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(3)}"
