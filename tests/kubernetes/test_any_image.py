"""Images as people bring them get ssh and a web page behind the login, from nothing of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlspawner.spawner.kube import pod_status
from tests.contract.client import RESTRICTED, Client
from tests.e2e.people import wait_for
from tests.kubernetes.any_image import UID, Running, World

pytestmark = pytest.mark.kubernetes

IMAGES = ("test-debian", "test-old-debian", "test-busybox")
TOKEN = "secret-token"  # of the spawner without a Hub
# A web server on loopback, in images that may have none: the bundle's.
SERVE = (
    "/dl/bin/busybox mkdir -p /tmp/www && echo theirs >/tmp/www/index.html && "
    "exec /dl/bin/busybox httpd -f -p 127.0.0.1:8000 -h /tmp/www"
)


@pytest.fixture(scope="module")
def world(
    kubernetes: Client,
    kubectl: Callable[..., str],
    image: Callable[[str], str],
    priority_classes: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    with kubernetes.namespace("jobs", RESTRICTED) as name:
        made = World(kubernetes, kubectl, image, name, tmp_path_factory.mktemp("keys"))
        made.start()
        yield made


@pytest.fixture(scope="module", params=IMAGES)
def job(world: World, request: pytest.FixtureRequest) -> Iterator[Running]:
    made = world.job(request.param, command=SERVE, http_port=8000)
    yield made
    made.delete()


@pytest.fixture
def own_job(world: World) -> Iterator[Running]:
    """One that a test may end."""
    made = world.job("test-debian", command="until [ -e /tmp/end ]; do sleep 0.2; done; exit 3")
    yield made
    made.delete()


def test_command_terminal_and_login_shell_are_of_the_user(job: Running) -> None:
    assert job.ssh("'id -u; exit 7'") == f"{UID}\nstatus=7\n"
    assert job.ssh("tty", "-tt").startswith("/dev/pts/")
    said = job.world.run(f"echo 'echo shell=$SHELL; exit' | {job.world.ssh(job)} -T alice@{job.ip}")
    expected = "/bin/sh" if job.image == "test-busybox" else "/bin/bash"
    assert f"shell={expected}\n" in said


def test_files_are_copied_by_sftp_scp_and_rsync(job: Running) -> None:
    scp = job.world.ssh(job, "scp")
    shell = job.world.ssh(job)
    said = job.world.run(
        f"""set -e
        cd "$(mktemp -d)"
        head -c 3000000 /dev/urandom >sent
        {scp} sent alice@{job.ip}:/tmp/by-sftp
        {scp} -O sent alice@{job.ip}:/tmp/by-scp
        rsync -e '{shell}' sent alice@{job.ip}:/tmp/by-rsync
        for name in by-sftp by-scp by-rsync; do
            {scp} alice@{job.ip}:/tmp/$name $name
            cmp sent $name
        done
        echo equal"""
    )
    assert said == "equal\n"


def test_a_port_that_only_the_job_sees_is_forwarded(job: Running) -> None:
    here = 9000 + int(job.name.rpartition("-")[2])
    wait_for(lambda: job.http("alice") == "200 theirs\n\n", "their page", 60)
    forwards = f"-f -o ExitOnForwardFailure=yes -L {here}:127.0.0.1:8000"
    said = job.world.run(
        # ssh ends by itself, once the command has ended and the forward is not in use any more.
        f"""{job.world.ssh(job)} {forwards} alice@{job.ip} sleep 30 >/dev/null 2>&1
        python -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:{here}/").read().decode())'"""
    )
    assert said == "theirs\n\n"


def test_the_own_web_server_is_behind_the_hubs_login(job: Running) -> None:
    wait_for(lambda: job.http("alice") == "200 theirs\n\n", f"their page; now it is {job.http('alice')}", 60)
    assert job.http().startswith("302")
    assert job.http("bob").startswith("403")


def test_the_persons_container_holds_no_token(job: Running) -> None:
    seen = job.ssh(
        '\'cat /proc/[0-9]*/environ | tr "\\\\0" "\\\\n"; cat /etc/dlspawner/* 2>/dev/null; ls /var/run/secrets\''
    )
    assert "POD_IP=" in seen
    assert TOKEN not in seen
    assert "JUPYTERHUB_USER=" not in seen
    assert job.pod()["spec"]["automountServiceAccountToken"] is False
    assert "kubernetes.io" not in seen


def test_the_login_proxy_ends_when_main_has_finished(own_job: Running) -> None:
    own_job.ssh("touch /tmp/end")
    assert own_job.ended("main")["exitCode"] == 3
    assert own_job.ended("notebook")["exitCode"] == 0


def test_the_login_proxy_ends_when_mains_first_process_is_killed(own_job: Running) -> None:
    container = own_job.container("main")["containerID"].rpartition("/")[2]
    first = process_one(container)
    if first is None:
        pytest.skip("the node's processes are not this machine's")
    os.kill(first, signal.SIGKILL)
    assert own_job.ended("main")["exitCode"] == 128 + signal.SIGKILL
    assert own_job.ended("notebook")["exitCode"] == 0


def test_a_notebook_in_an_image_without_jupyter_says_what_is_missing(world: World) -> None:
    job = world.create("test-debian", template="ipython", gpus=0)
    wait_for(lambda: isinstance(pod_status.evaluate(job.pod()), pod_status.Terminated), "the job has ended", 120)
    judged = pod_status.evaluate(job.pod())
    assert isinstance(judged, pod_status.Terminated)
    assert "this image has no jupyterhub-singleuser" in judged.reason
    assert "pip install jupyterlab jupyterhub" in judged.reason


def process_one(container: str) -> int | None:
    """The process that is number 1 in a container, as this machine numbers it."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if container not in (folder / "cgroup").read_text():
                continue
            numbers = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("NSpid"))
        except OSError:
            continue  # ended meanwhile
        if numbers.split()[-1] == "1":
            return int(folder.name)
    return None
