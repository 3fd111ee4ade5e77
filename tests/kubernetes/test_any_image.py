"""Images as people bring them get ssh and a web page behind the login, from nothing of their own.

Jobs of the template `custom`, made without a Hub (jobs.py); a server of this machine has the one answer that login
proxies ask the Hub for: the owner of a token, which here is its owner's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from dlspawner.core.launch import pod_status
from dlspawner.core.launch.pod import merge_pod
from tests.contract.client import RESTRICTED, Client
from tests.e2e.people import wait_for
from tests.harness.ports import free_port
from tests.kubernetes.conftest import Image, Kubectl
from tests.kubernetes.failing import address
from tests.kubernetes.jobs import Job, JobBuilder

pytestmark = pytest.mark.kubernetes

IMAGES = ("test-debian", "test-old-debian", "test-busybox")
TOKEN = "secret-token"  # of the spawner without a Hub
UID = 4711
# A web server on loopback, in images that may have none: the bundle's.
SERVE = (
    "/dl/bin/busybox mkdir -p /tmp/www && echo theirs >/tmp/www/index.html && "
    "exec /dl/bin/busybox httpd -f -p 127.0.0.1:8000 -h /tmp/www"
)


class Hub(BaseHTTPRequestHandler):
    """Tells of every token that it is its name's."""

    def do_GET(self) -> None:
        name = self.headers.get("Authorization", "").split()[-1]
        model = {"kind": "user", "name": name, "groups": [], "scopes": [f"access:servers!user={name}"]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(model).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@dataclass
class Theirs(Job):
    """A job with an image of a person's own."""

    image: str = ""

    def status(self) -> dict[str, Any]:
        return dict(self.builder.kubernetes.get(self.path)["status"])

    def http(self, token: str = "") -> tuple[int, str]:
        url = f"http://{self.status()['podIP']}:8888{prefix(self)}"
        headers = {"Authorization": f"token {token}"} if token else {}
        with contextlib.suppress(requests.ConnectionError):
            answer = requests.get(url, headers=headers, timeout=60, allow_redirects=False)
            return answer.status_code, answer.text
        return 0, ""

    def container(self, name: str) -> dict[str, Any]:
        return next((one for one in self.status().get("containerStatuses") or () if one["name"] == name), {})

    def ended(self, name: str) -> int:
        """The exit code of a container, once it has ended."""
        end = wait_for(lambda: self.container(name).get("state", {}).get("terminated"), f"{name} ends", 120)
        return int(end["exitCode"])


def prefix(job: Job) -> str:
    return f"/user/carol/{job.job.server}/"


@dataclass
class Bringing(JobBuilder):
    """A builder of jobs that ask our Hub."""

    hub: str = ""

    def render_theirs(self, image: str, template: str = "custom", **options: object) -> Theirs:
        if template == "custom":
            options |= {"image": self.named(image), "cpu": "200m"}
        made = asyncio.run(self.render("carol", UID, template, **options))
        env = {
            "JUPYTERHUB_API_URL": f"{self.hub}/hub/api",
            "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps(["access:servers!user=carol"]),
            "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{prefix(made)}oauth_callback",
            "JUPYTERHUB_SERVICE_PREFIX": prefix(made),
            "JUPYTERHUB_SERVICE_URL": "http://$(POD_IP):8888",
        }
        notebook: dict[str, Any] = {"name": "notebook", "env": [{"name": k, "value": v} for k, v in env.items()]}
        if template != "custom":
            notebook["image"] = self.named(image)
        return Theirs(self, merge_pod(made.pod, {"spec": {"containers": [notebook]}}), made.job, made.home, image)

    def named(self, image: str) -> str:
        return self.image.replace("/job:", f"/{image}:")


@pytest.fixture(scope="module")
def builder(
    kubernetes: Client,
    kubectl: Kubectl,
    image: Image,
    priority_classes: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bringing]:
    hub = ThreadingHTTPServer((address(kubernetes.kubeconfig), 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    with kubernetes.namespace("jobs", RESTRICTED) as name, pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("keys")
        at = "http://{}:{}".format(*hub.server_address)
        yield Bringing(kubernetes, kubectl, name, image("job"), folder, patch, hub=at)
    hub.shutdown()
    hub.server_close()


@contextlib.contextmanager
def started(job: Theirs) -> Iterator[Theirs]:
    job.start()
    yield job
    job.builder.kubernetes.delete(job.path, {"gracePeriodSeconds": 1})


@pytest.fixture(scope="module", params=IMAGES)
def job(builder: Bringing, request: pytest.FixtureRequest) -> Iterator[Theirs]:
    with started(builder.render_theirs(request.param, command=SERVE, http_port=8000)) as made:
        yield made


def test_command_terminal_and_login_shell_are_of_the_user(job: Theirs) -> None:
    assert job.ssh("id -u; exit 7", code=7) == str(UID)
    assert job.ssh("tty", before=("-tt",)).startswith("/dev/pts/")
    expected = "/bin/sh" if job.image == "test-busybox" else "/bin/bash"
    assert f"shell={expected}" in job.ssh(before=("-T",), given="echo shell=$SHELL; exit\n").splitlines()


def test_files_are_copied_by_sftp_scp_and_rsync(job: Theirs, tmp_path: Path) -> None:
    options, login = job.way()
    scp, rsync = ["scp", "-q", *options], ["rsync", "-e", shlex.join(["ssh", *options])]
    sent = tmp_path / "sent"
    sent.write_bytes(os.urandom(3_000_000))
    for name, copy in {"by-sftp": scp, "by-scp": [*scp, "-O"], "by-rsync": rsync}.items():
        subprocess.run([*copy, sent, f"{login}:/tmp/{name}"], check=True, timeout=60)
        subprocess.run([*scp, f"{login}:/tmp/{name}", tmp_path / name], check=True, timeout=60)
        assert (tmp_path / name).read_bytes() == sent.read_bytes()


def test_a_port_that_only_the_job_sees_is_forwarded(job: Theirs) -> None:
    options, login = job.way()
    here = free_port()
    wait_for(lambda: job.http("carol") == (200, "theirs\n"), "their page", 60)
    with subprocess.Popen(["ssh", *options, "-N", "-L", f"{here}:127.0.0.1:8000", login]) as forward:

        def text() -> str:
            with contextlib.suppress(requests.ConnectionError):
                return requests.get(f"http://127.0.0.1:{here}/", timeout=10).text
            return ""

        assert wait_for(text, "the forward") == "theirs\n"
        forward.kill()


def test_the_own_web_server_is_behind_the_hubs_login(job: Theirs) -> None:
    wait_for(lambda: job.http("carol") == (200, "theirs\n"), "their page", 60)
    assert job.http()[0] == 302
    assert job.http("bob")[0] == 403


def test_the_persons_container_holds_no_token(job: Theirs) -> None:
    seen = job.ssh(
        "cat /proc/[0-9]*/environ | tr '\\0' '\\n'; cat /etc/dlspawner/* 2>/dev/null; ls /var/run/secrets 2>&1 || true"
    )
    assert "POD_IP=" in seen
    assert TOKEN not in seen
    assert "JUPYTERHUB_USER=" not in seen
    assert job.pod["spec"]["automountServiceAccountToken"] is False
    assert "kubernetes.io" not in seen


def test_the_login_proxy_ends_when_main_has_finished(builder: Bringing) -> None:
    command = "until [ -e /tmp/end ]; do sleep 0.2; done; exit 3"
    with started(builder.render_theirs("test-debian", command=command)) as own_job:
        own_job.ssh("touch /tmp/end")
        assert own_job.ended("main") == 3
        assert own_job.ended("notebook") == 0


def test_a_notebook_in_an_image_without_jupyter_says_what_is_missing(builder: Bringing) -> None:
    job = builder.render_theirs("test-debian", "ipython", gpus=0)
    job.create()

    def judged() -> Any:
        return pod_status.evaluate(builder.kubernetes.get(job.path))

    wait_for(lambda: isinstance(judged(), pod_status.Terminated), "the job has ended", 120)
    assert "this image has no jupyterhub-singleuser" in judged().reason
    assert "pip install jupyterlab jupyterhub" in judged().reason
