"""Jobs of the template `custom` on a real cluster, made by the product's own functions, without a Hub.

Beside them runs one pod of ours: the place of a person's terminal and browser, and of the one answer that login proxies
ask the Hub for, the owner of a token (here a token is its owner's name).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dlspawner import settings
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.naming import PodIdentity, read_job
from dlspawner.spawner import owned_objects
from tests.component.spawner.test_pod import launched
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.spawner_builders import make_spawner
from tests.kubernetes.jobs import keygen

ROOT = Path(__file__).parents[2]
DEADLINE = 120
UID = 4711
PREFIX = "/user/alice/one/"
HUB = """
import http.server, json
class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.headers.get("Authorization", "").split()[-1]
        scopes = [f"access:servers!server={name}/one"]
        body = json.dumps({"kind": "user", "name": name, "groups": [], "scopes": scopes}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("", 8081), Hub).serve_forever()
"""
GET = """
import sys, urllib.error, urllib.request
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args): return None
url, *token = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": "token " + token[0]} if token else {})
try:
    answer = urllib.request.build_opener(Stay).open(request, timeout=60)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": UID,
    "fsGroup": UID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass
class Running:
    """A job that runs, and how it is reached."""

    world: World
    image: str
    name: str
    job: PodIdentity
    ip: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.world.namespace}/pods/{self.name}"

    def delete(self) -> None:
        self.world.client.delete(self.path, {"gracePeriodSeconds": 1})

    def pod(self) -> dict[str, Any]:
        return dict(self.world.client.get(self.path))

    def ssh(self, command: str, options: str = "-T") -> str:
        return self.world.run(f"{self.world.ssh(self)} {options} alice@{self.ip} {command}")

    def http(self, *token: str) -> str:
        return self.world.run('python -c "$0" "$@"', GET, f"http://{self.ip}:8888{PREFIX}", *token)

    def container(self, name: str) -> dict[str, Any]:
        statuses = self.pod()["status"].get("containerStatuses") or []
        return next((one for one in statuses if one["name"] == name), {})

    def ended(self, name: str) -> dict[str, Any]:
        """Returns the end of a container, once it has ended."""
        return dict(wait_for(lambda: self.container(name).get("state", {}).get("terminated"), f"{name} ends", DEADLINE))


@dataclass
class World:
    """A namespace, our own pod in it, and everything that is needed to make jobs beside it."""

    client: Client
    kubectl: Callable[..., str]
    image: Callable[[str], str]
    namespace: str
    directory: Path
    hub: str = ""
    made: int = 0
    settings: settings.Settings = field(
        default_factory=lambda: settings.load(ROOT / "templates/jobs", ROOT / "hub_config/cluster.yaml")
    )

    def start(self) -> None:
        """Our own pod, and the key pair that plays the gateway's user CA and the person's key."""
        for name in ("ca", "user"):
            keygen("-t", "ed25519", "-N", "", "-f", str(self.directory / name))
        passwd = {"passwd": f"root:x:0:0::/root:/bin/sh\ntester:x:{UID}:{UID}::/tmp:/bin/bash\n"}
        core = f"/api/v1/namespaces/{self.namespace}"
        self.client.create(f"{core}/configmaps", {"metadata": {"name": "passwd"}, "data": passwd})
        container = {
            "name": "terminal",
            "image": self.image("job"),
            "command": ["python", "-c", HUB],
            "env": [{"name": "HOME", "value": "/tmp"}],
            "securityContext": CONTAINER,
            "volumeMounts": [{"name": "passwd", "mountPath": "/etc/passwd", "subPath": "passwd"}],
        }
        volumes = [{"name": "passwd", "configMap": {"name": "passwd"}}]
        spec = {"containers": [container], "securityContext": RESTRICTED, "volumes": volumes}
        spec |= {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
        self.client.create(f"{core}/pods", {"metadata": {"name": "terminal"}, "spec": spec})
        pod = wait_for(lambda: self._ready("terminal"), "our own pod runs", DEADLINE)
        self.hub = f"http://{pod['status']['podIP']}:8081/hub/api"
        self.run("umask 077; cat >/tmp/user", input=(self.directory / "user").read_text())

    def _ready(self, name: str) -> dict[str, Any] | None:
        pod: dict[str, Any] = self.client.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        statuses = pod["status"].get("containerStatuses") or []
        return pod if statuses and all(one["ready"] for one in statuses) else None

    def run(self, script: str, *arguments: str, input: str | None = None) -> str:
        """A shell script in our own pod; what it printed, and its status when that is not 0."""
        noted = f"{{ {script}\n}} 2>&1 || echo status=$?"
        stdin = ["-i"] if input is not None else []
        command = ["-n", self.namespace, "exec", *stdin, "terminal", "--", "bash", "-c", noted, *arguments]
        return self.kubectl(*command, input=input)

    def ssh(self, job: Running, program: str = "ssh") -> str:
        """The command line up to the address."""
        options = ["IdentitiesOnly=yes", "BatchMode=yes", "LogLevel=ERROR", "StrictHostKeyChecking=yes"]
        options += [f"CertificateFile=/tmp/{job.name}-cert.pub", f"UserKnownHostsFile=/tmp/{job.name}.known"]
        port = "-p" if program == "ssh" else "-P"
        return f"{program} -F none -i /tmp/user {port} 2222 {' '.join(f'-o {one}' for one in options)}"

    def create(self, image: str, uid: int = UID, **options: object) -> Running:
        """A job, when its pod and its Secret are made."""
        self.made += 1
        name = f"job-{self.made}"
        manifest, host_key = self._manifest(name, image, uid, options)
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        pod = self.client.create(pods, manifest)
        job = read_job(pod["metadata"])
        assert job is not None
        ca = (self.directory / "ca.pub").read_text()
        secret = owned_objects.secret(pod, job, owned_objects.SecretFiles(host_key, ca, "<p>how to get in</p>"), 2222)
        self.client.create(f"/api/v1/namespaces/{self.namespace}/secrets", secret)
        return Running(self, image, name, job, "")

    def job(self, image: str, **options: object) -> Running:
        """A job that runs and can be reached by ssh."""
        made = self.create(image, **options)
        pod = wait_for(lambda: self._ready(made.name), f"{made.name} of {image} runs", DEADLINE)
        job = Running(self, image, made.name, made.job, pod["status"]["podIP"])
        certificate = self.directory / f"{job.name}-cert.pub"
        (self.directory / f"{job.name}.pub").write_text((self.directory / "user.pub").read_text())
        ca, public = str(self.directory / "ca"), str(self.directory / f"{job.name}.pub")
        keygen("-s", ca, "-I", "alice", "-n", job.job.id, public)
        self.run(f"cat >/tmp/{certificate.name}", input=certificate.read_text())
        self.run(f"cat >/tmp/{job.name}.known", input=f"[{job.ip}]:2222 {job.job.ssh_host_key}\n")
        wait_for(lambda: job.ssh("echo hello") == "hello\n", f"sshd answers in {image}", DEADLINE)
        return job

    def _manifest(
        self, name: str, image: str, uid: int, options: dict[str, object]
    ) -> tuple[dict[str, Any], owned_objects.HostKey]:
        wanted = {"template": "custom", "image": self.image(image), "cpu": "200m", **options}
        given = {
            "namespace": self.namespace,
            "pod_name_template": name,
            "image": self.image("job" if wanted["template"] == "custom" else image),
            "ssh_image": self.image("ssh"),
            "ip": "$(POD_IP)",
            **{"uid": uid, "gid": uid, "fs_gid": uid},
        }
        if wanted["template"] != "custom":
            del wanted["image"]
        with pytest.MonkeyPatch.context() as patched:
            spawner = make_spawner(patched, "alice", "one", settings=self.settings, config=given)
            pod = asyncio.run(launched(spawner, self.directory, **wanted))
            host_key = spawner._launch.host_key
        env = {
            "JUPYTERHUB_API_URL": self.hub,
            "JUPYTERHUB_BASE_URL": "/",
            "JUPYTERHUB_CLIENT_ID": "jupyterhub-user-alice-one",
            "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps(["access:servers!server=alice/one"]),
            "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{PREFIX}oauth_callback",
            "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
            "JUPYTERHUB_SERVICE_URL": "http://$(POD_IP):8888",
            "JUPYTERHUB_USER": "alice",
        }
        hub = [{"name": key, "value": value} for key, value in env.items()]
        return merge_pod(pod, {"spec": {"containers": [{"name": "notebook", "env": hub}]}}), host_key
