"""Jobs on a real cluster without a Hub: rendered by the real spawner from the shipped templates, started by the test.

What asks the Hub (JupyterLab, the login proxies) is replaced by a program that only stays; everything else of the pod,
its Secret and its Service is what the product makes.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from dlspawner import settings
from dlspawner.core import naming
from dlspawner.core.config import Team, TeamMount, TeamsConfig
from dlspawner.core.template import Template
from dlspawner.settings import Settings
from dlspawner.spawner import owned_objects
from tests.contract.client import Client
from tests.e2e.people import wait_for
from tests.harness.spawner_builders import make_spawner

ROOT = Path(__file__).resolve().parents[2]
SHARED = TeamMount("vision-data", "/data/vision")
TEAMS = TeamsConfig((Team("vision", members=("alice", "bob"), mounts=(SHARED,), gid=5001), Team("default")))
STAY = "trap 'exit 0' TERM; while :; do sleep 1; done"
SMALL: dict[str, object] = {"gpus": 0, "cpu": "100m", "memory": "256Mi"}
_numbers = itertools.count()


def shipped() -> Settings:
    found = settings.load(ROOT / "templates" / "jobs", ROOT / "hub_config" / "cluster.yaml")
    return Settings(found.templates, found.cluster, TEAMS)


@dataclass
class Job:
    """One job's pod, as its test reaches it."""

    builder: JobBuilder
    pod: dict[str, Any]
    job: naming.PodIdentity
    home: str

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.builder.namespace}/pods/{self.name}"

    def start(self) -> Job:
        """Make the pod and what belongs to it; returns when it is ready."""
        self.create()
        kube, namespace = self.builder.kubernetes, self.builder.namespace
        if self.job.ssh_host_key:
            template = self.builder.template(self.job.template)
            kube.create(
                f"/api/v1/namespaces/{namespace}/services", owned_objects.ssh_service(self.pod, self.job, template.ssh)
            )
        self.builder.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"pod/{self.name}", "--timeout=110s")
        if self.job.ssh_host_key:
            wait_for(self._ssh_answers, "the job's sshd", 60)
        return self

    def _address(self) -> tuple[str, int]:
        kube = self.builder.kubernetes
        service = kube.get(f"/api/v1/namespaces/{self.builder.namespace}/services/{naming.ssh_object(self.name)}")
        return kube.get(self.path)["status"]["hostIP"], service["spec"]["ports"][0]["nodePort"]

    def _ssh_answers(self) -> bool:
        try:
            with socket.create_connection(self._address(), 2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def create(self) -> Job:
        self.pod = self.builder.kubernetes.create(self.path.rpartition("/")[0], self.pod)
        if owned_objects.wants_secret(self.pod):
            files = owned_objects.SecretFiles(
                self.builder.host_key, (self.builder.folder / "user_ca.pub").read_text(), "<p>page</p>"
            )
            secret = owned_objects.secret(self.pod, self.job, files, 2222)
            self.builder.kubernetes.create(f"/api/v1/namespaces/{self.builder.namespace}/secrets", secret)
        return self

    def run(self, script: str) -> str:
        """Returns the output of a shell in the work container, like a cell of its notebook."""
        command = ["exec", self.name, "-c", "main" if self.job.template == "custom" else "notebook", "--"]
        return self.builder.kubectl("-n", self.builder.namespace, *command, "sh", "-c", script).strip()

    def sftp(self, batch: str) -> str:
        return self.ssh(program="sftp", before=("-b", "-"), given=batch)

    def ssh(
        self, *arguments: str, program: str = "ssh", before: tuple[str, ...] = (), given: str = "", code: int = 0
    ) -> str:
        """The same over the job's own sshd."""
        options, login = self.way()
        line = [program, *options, *before, login, *arguments]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, input=given)
        assert done.returncode == code, done.stderr
        return done.stdout.strip()

    def way(self) -> tuple[list[str], str]:
        """Options of OpenSSH's programs, and where they lead, as the gateway: NodePort, certificate, pinned key."""
        folder, (host, port) = self.builder.folder, self._address()
        key = folder / self.job.id
        if not key.exists():
            keygen("-t", "ed25519", "-N", "", "-f", str(key))
            keygen("-s", str(folder / "user_ca"), "-I", "t", "-n", self.job.id, "-V", "+5m", f"{key}.pub")
            key.with_suffix(".known").write_text(f"[{host}]:{port} {self.builder.host_key.public}\n")
        options = ["-F", "none", "-i", str(key), "-o", f"Port={port}", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
        options += ["-o", f"UserKnownHostsFile={key}.known", "-o", "StrictHostKeyChecking=yes"]
        return options, f"{self.job.ssh_login}@{host}"


def keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *arguments], check=True, capture_output=True)


@dataclass
class JobBuilder:
    """A namespace with people's claims, and the spawner that would make their jobs."""

    kubernetes: Client
    kubectl: Any
    namespace: str
    image: str
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    access_modes: tuple[str, ...] = ("ReadWriteOnce",)
    storage_class: str | None = None
    strict_groups: bool = False
    host_key: owned_objects.HostKey = field(default_factory=owned_objects.make_host_key)
    settings: Settings = field(default_factory=shipped)

    def __post_init__(self) -> None:
        keygen("-t", "ed25519", "-N", "", "-f", str(self.folder / "user_ca"))

    def template(self, name: str) -> Template:
        found = self.settings.template(name)
        assert found is not None
        return found

    def spawner(self, person: str, uid: int, server: str) -> Any:
        """As in hub_config, for a user with a uid from the authenticator."""
        config = {
            "namespace": self.namespace,
            "image": self.image,
            "ip": "$(POD_IP)",
            "environment": {"POD_IP": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}},
            "extra_pod_config": {"enableServiceLinks": False},
            "storage_pvc_ensure": True,
            "pvc_name_template": "home-{username}",
            "storage_capacity": "1Gi",
            "storage_access_modes": list(self.access_modes),
            "storage_class": self.storage_class,
            "strict_groups": self.strict_groups,
            "account_keys": {"uid": "uid"},
            "ssh_image": self.image.replace("/job:", "/ssh:"),
            "ssh_ca_public_key_file": str(self.folder / "user_ca.pub"),
        }
        spawner = make_spawner(self.monkeypatch, person, server, settings=self.settings, config=config)
        spawner.user.get_auth_state = AsyncMock(return_value={"uid": uid})
        return spawner

    async def render(self, person: str, uid: int, template: str, **options: object) -> Job:
        """The pod that a start would create, and the claim of its home directory; nothing is made yet but the claim."""
        spawner = self.spawner(person, uid, f"s{next(_numbers)}")
        spawner.user_options = {"template": template, **options}
        await spawner.load_user_options()
        spawner._launch = replace(spawner._launch, host_key=self.host_key)
        plain = spawner.api.api_client.sanitize_for_serialization
        self._claim(plain(spawner.get_pvc_manifest()))
        pod = plain(await spawner.get_pod_manifest())
        pod["metadata"]["annotations"][naming.SSH_HOST_KEY_ANNOTATION] = self.host_key.public
        job = naming.read_job(pod["metadata"])
        assert job is not None
        return Job(self, pod, job, f"/home/{naming.unix_name(person)}")

    async def job(self, person: str, uid: int, template: str = "ssh", **options: object) -> Job:
        """A job that runs, without what would ask the Hub."""
        return self.stays(await self.render(person, uid, template, **SMALL, **options))

    def stays(self, made: Job) -> Job:
        """It runs, and does nothing."""
        for container in made.pod["spec"]["containers"]:
            container["args"] = ["sh", "-c", STAY]
            container["resources"] = {}
        return made.start()

    def _claim(self, manifest: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        if self.kubernetes.request("GET", f"{path}/{manifest['metadata']['name']}").code == 404:
            self.kubernetes.create(path, manifest)
