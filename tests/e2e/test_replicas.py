"""Two gateways behind one Service, as hub_config/kubernetes/README.md says, and one of them goes."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.deployed import Deployed
from tests.e2e.people import Person, Ssh, Stack, begun, read_until, wait_for
from tests.e2e.stack import KUBECTL
from tests.kubernetes.conftest import run_kubectl as kubectl

pytestmark = pytest.mark.kubernetes

SPACE = "--namespace=dlspawner"
LABEL = "app.kubernetes.io/name=gateway"
SECONDS = 60


def gateways() -> list[str]:
    """The pods that are ready and stay, by name."""
    found: list[dict[str, Any]] = json.loads(kubectl(SPACE, "get", "pods", "-l", LABEL, "-o", "json"))["items"]
    return sorted(
        one["metadata"]["name"]
        for one in found
        if "deletionTimestamp" not in one["metadata"]
        and any(state["ready"] for state in one["status"].get("containerStatuses", ()))
    )


@contextlib.contextmanager
def doubled(*names: str) -> Iterator[None]:
    """Two replicas of each of these Deployments."""
    deployments = [f"deployment/{name}" for name in names]
    kubectl(SPACE, "scale", *deployments, "--replicas=2")
    try:
        yield
    finally:
        kubectl(SPACE, "scale", *deployments, "--replicas=1")


@pytest.fixture
def two(stack: Stack) -> Iterator[tuple[str, str]]:
    assert isinstance(stack, Deployed)
    with doubled("gateway"):
        first, second = wait_for(lambda: len(found := gateways()) == 2 and found, "both are ready", 120) or ()
        yield first, second
    wait_for(lambda: len(gateways()) == 1, "one is left", 120)


@contextlib.contextmanager
def forwarded(target: str, port: int) -> Iterator[int]:
    """The port of this machine that leads to one of the product's pods."""
    command = [KUBECTL, SPACE, "port-forward", "--address=127.0.0.1", target, f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None
            yield int(found[1])
        finally:
            process.kill()


@contextlib.contextmanager
def way_to(pod: str) -> Iterator[tuple[str, ...]]:
    """Options of ssh that lead to this very gateway."""
    with forwarded(f"pod/{pod}", 2222) as port:
        yield "-o", "HostName=127.0.0.1", "-o", f"Port={port}", "-o", "HostKeyAlias=gateway"


@contextlib.contextmanager
def session(client: Ssh, options: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """A terminal on the job `train` that repeats what it is told."""
    with begun(client.line("train", "echo in; cat", options=("-tt", *options)), subprocess.PIPE) as process:
        read_until(process.stdout, "in")
        yield process


def test_two_gateways_have_one_host_key_and_sessions_of_one_outlast_the_other(
    alice: Person, two: tuple[str, str], tmp_path: Path
) -> None:
    client = alice.ssh(tmp_path)
    alice.launch("train", seconds=180, template="ssh")
    goes, stays = two
    with contextlib.ExitStack() as ends:
        there = {pod: ends.enter_context(way_to(pod)) for pod in two}
        on = {pod: ends.enter_context(session(client, there[pod])) for pod in two}
        known = {line.split(maxsplit=1)[1] for line in (tmp_path / "known_hosts").read_text().splitlines()}
        assert len(known) == 1, "they have one host key"

        kubectl(SPACE, "delete", "pod", goes, "--wait=false")
        read_until(on[goes].stdout, "The SSH gateway is restarting")
        wait_for(lambda: goes not in gateways() and len(gateways()) == 2, "another one has taken its place", 120)
        for number in range(6):  # wherever the Service leads to
            done = client.run("train", f"echo {number}", seconds=SECONDS)
            assert (done.returncode, done.stdout) == (0, f"{number}\n"), done.stderr
        stream = on[stays].stdin
        assert stream is not None
        stream.write("still here\n")
        stream.flush()
        read_until(on[stays].stdout, "still here")
        kubectl(SPACE, "delete", "pod", goes, "--wait=false", "--grace-period=0", "--force")  # its drain is long
    alice.stop("train")
