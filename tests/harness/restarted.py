"""A Hub that is killed again and again, and its state in Hub and cluster: for tests of restarts on any cluster.

The Hub is asked by REST which servers it knows, the cluster which pods, Secrets, Services and claims there are.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from dlspawner.core import naming
from tests.e2e.people import events_of, wait_for
from tests.harness.spawner_hub import ROOT, Hub

# Answers every request with 200, and exits at /end.
SERVER = """
import http.server, os

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/end":
            os._exit(0)
        self.send_response(200)
        self.end_headers()

http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8888), Handler).serve_forever()
"""
TINY = f"""
title: Tiny
command: [python3, -c, {json.dumps(SERVER)}]
endpoints:
  - {{name: ssh, port: 2222, protocol: ssh, expose: nodeport}}
mounts: {{team_data: none}}
grace_period_seconds: 5
pod:
  containers:
    - name: notebook
      resources: {{requests: {{cpu: 10m, memory: 16Mi}}, limits: {{cpu: 500m, memory: 256Mi}}}}
"""
TOKEN = "the-token-of-the-tests"
EXTRA = f"""
from pathlib import Path
from tests.harness import hub_breakpoints
hub_breakpoints.install(Path({{held!r}}))
c.JupyterHub.services.append({{{{"name": "tests", "api_token": "{TOKEN}"}}}})
scopes = ["admin:users", "admin:servers", "admin:server_state"]
c.JupyterHub.load_roles.append({{{{"name": "tests", "scopes": scopes, "services": ["tests"]}}}})
c.JupyterHub.tornado_settings = {{{{"slow_spawn_timeout": 0.1, "slow_stop_timeout": 0.1}}}}
c.Spawner.poll_interval = 1
c.Spawner.http_timeout = 120
c.KubeSpawner.k8s_api_request_retry_timeout = 600
c.DLSpawner.orphan_seconds = 4

def nowhere(spawner):
    if spawner.name == "pending":  # no node is right for its pod
        spawner.node_selector = {{{{"nowhere": "yes"}}}}

c.Spawner.pre_spawn_hook = nowhere
"""
WITHOUT_TEMPLATES = f"""
c.DLSpawner.templates_dir = ""
c.KubeSpawner.cmd = ["python3", "-c", {SERVER!r}]
c.KubeSpawner.services_enabled = True
c.KubeSpawner.get_pod_url = lambda spawner, pod: f"http://{{pod['status']['podIP']}}:8888"
c.KubeSpawner.delete_grace_period = 5
"""
SECONDS = 120.0  # for everything to come to rest, on a machine that does much else

KINDS = ("Pod", "Secret", "Service", "PersistentVolumeClaim")


@dataclass
class RestartedHub:
    """One Hub and what it has in the cluster; everything belongs to one person."""

    hub: Hub
    user: str
    templates: bool
    left: bool = False
    waiting: set[str] = field(default_factory=set)  # servers that are meant to wait
    before: dict[str, str] = field(default_factory=dict)  # server -> uid of its pod when the Hub was killed

    @property
    def held(self) -> Path:
        return self.hub.state / "held"

    def api(self, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": f"token {TOKEN}"}
        return requests.request(method, f"{self.hub.url}/hub/api{path}", headers=headers, json=body, timeout=60)

    def start(self, server: str) -> requests.Response:
        body = {"user_options": {"template": "tiny"} if self.templates else {}}
        return self.api("POST", f"/users/{self.user}/servers/{server}", body)

    def servers(self) -> dict[str, dict[str, Any]]:
        answer = self.api("GET", f"/users/{self.user}?include_stopped_servers=1")
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["servers"])

    def ready(self, server: str) -> bool:
        return bool(self.servers().get(server, {}).get("ready"))

    def all_objects(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The person's objects by kind and name."""
        kinds: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        for one in json.loads(self.hub.kubectl("get", ",".join(KINDS), "-o", "json"))["items"]:
            if f"-{self.user}-" in f"{one['metadata']['name']}-":
                kinds[one["kind"]][one["metadata"]["name"]] = one
        return kinds

    def pods(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.hub.kubectl("get", "pod", "-o", "json"))["items"]
        names = {one["metadata"]["name"]: one for one in found}
        return {name: one for name, one in names.items() if f"-{self.user}-" in f"{name}-"}

    def pod_name(self, server: str) -> str:
        return f"jupyter-{self.user}--{server}"

    def progress(self, server: str) -> Iterator[dict[str, Any]]:
        """Returns the events of the progress page."""
        url = f"{self.hub.url}/hub/api/users/{self.user}/servers/{server}/progress"
        with requests.get(url, headers={"Authorization": f"token {TOKEN}"}, stream=True, timeout=60) as answer:
            yield from events_of(answer)

    def kill(self) -> None:
        self.before = {
            pod["metadata"]["annotations"]["hub.jupyter.org/servername"]: pod["metadata"]["uid"]
            for pod in self.pods().values()
        }
        self.hub.stop("hub", signal.SIGKILL)

    def create(self, manifest: str) -> None:
        command = [self.hub.kubectl_program, "-n", self.hub.namespace, "create", "-f", "-"]
        subprocess.run(command, env=self.hub.env(), input=manifest.encode(), check=True, capture_output=True)

    def uid(self, server: str) -> str | None:
        pod = self.pods().get(self.pod_name(server))
        return pod["metadata"]["uid"] if pod else None

    def problems(self) -> list[str]:
        """Returns the deviations from the expected state at rest."""
        servers = {name: server for name, server in self.servers().items() if name not in self.waiting}
        found = self.all_objects()
        pods = found["Pod"]
        uids = {pod["metadata"]["uid"] for pod in pods.values()}
        for name in self.waiting:
            pods.pop(self.pod_name(name), None)
        active = {name: server for name, server in servers.items() if not server["stopped"]}
        names = Counter(server["state"]["pod_name"] for server in active.values())
        wrong = [f"server {name} is pending {one['pending']}" for name, one in servers.items() if one["pending"]]
        wrong += [f"the servers' pod {name} is missing" for name in names.keys() - pods.keys()]
        wrong += [f"pod {name} belongs to no server" for name in pods.keys() - names.keys()]
        wrong += [f"pod {name} belongs to {number} servers" for name, number in names.items() if number > 1]
        wrong += [line for pod in pods.values() for line in self._lacks(pod, found)]
        wrong += [f"claim {name}" for name in found["PersistentVolumeClaim"].keys() - {f"home-{self.user}"}]
        return wrong + [
            f"{kind} {name} is left over"
            for kind in ("Secret", "Service")
            for name, child in found[kind].items()
            if not {owner["uid"] for owner in child["metadata"].get("ownerReferences") or ()} & uids
        ]

    def _lacks(self, pod: dict[str, Any], found: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
        name = pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") != "Running":
            yield f"pod {name} does not run"
        for kind in ("Service", "Secret") if self.templates else ("Service",):
            child = found[kind].get(f"{name}-ssh" if self.templates else name)
            if child is None:
                yield f"pod {name} has no {kind}"
            elif child["metadata"]["ownerReferences"][0]["uid"] != pod["metadata"]["uid"]:
                yield f"the {kind} of pod {name} is another pod's"
            elif kind == "Secret":
                key = base64.b64decode(child["data"]["ssh_host_ed25519_key.pub"]).decode().strip()
                if key != pod["metadata"]["annotations"][naming.SSH_HOST_KEY_ANNOTATION]:
                    yield f"pod {name} announces another host key"

    def settled(self) -> None:
        last: list[str] = []

        def none() -> bool:
            last[:] = self.problems()
            return not last

        try:
            wait_for(none, "nothing is wrong", SECONDS)
        except AssertionError:
            raise AssertionError(f"{last}\n{self.hub.log[-5000:]}") from None


def hub_of(state: Path, more: str = "", **given: Any) -> Hub:
    """A Hub that this module's tests can hold; JUPYTERHUB_PATH puts another JupyterHub before the installed one."""
    other = os.environ.get("JUPYTERHUB_PATH", "")
    path = f"c.JupyterHub.data_files_path = {other + '/share/jupyterhub'!r}\n" if other else ""
    return Hub(state, extra=EXTRA.format(held=str(state / "held")) + path + more, python_path=other, **given)


def with_tiny(folder: Path) -> Path:
    """The project's templates and the tiny one."""
    shutil.copytree(ROOT / "templates", folder / "templates")
    (folder / "templates" / "jobs" / "tiny.yaml").write_text(TINY)
    return folder / "templates"
