"""The embedded node joins a real control plane: what differs from the embedded API is shown here, all else by contract.

Its addresses are on loopback, so the API server must run on this machine to ask it for logs and exec.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import machines
from tests.contract.client import Client
from tests.contract.machines import Machine

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def machine(kubernetes: Client, state: Path) -> Iterator[Machine]:
    if not machines.is_here(kubernetes):
        pytest.skip("the API server runs on another machine")
    with machines.simulated(kubernetes, state) as made:
        yield made


def _node(kubernetes: Client, machine: Machine) -> dict[str, Any]:
    name = machine.placement["nodeSelector"]["kubernetes.io/hostname"]
    return dict(kubernetes.get(f"/api/v1/nodes/{name}"))


def test_the_kubelet_shows_a_certificate_and_wants_one(kubernetes: Client, machine: Machine) -> None:
    status = _node(kubernetes, machine)["status"]
    address = next(entry["address"] for entry in status["addresses"] if entry["type"] == "InternalIP")
    port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]

    def ask(context: ssl.SSLContext) -> bytes:
        with (
            socket.create_connection((address, port), timeout=10) as raw,
            context.wrap_socket(raw, server_hostname=address) as stream,
        ):
            stream.sendall(b"GET /containerLogs/a/b/c HTTP/1.1\r\nHost: x\r\n\r\n")
            return stream.recv(100).split()[1]

    assert ask(kubernetes.unarmed) == b"401"
    assert ask(kubernetes.context) == b"404"  # an administrator may ask; there is no such pod


def test_node_name_in_use_is_refused(kubernetes: Client, machine: Machine, state: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dlspawner.devcluster.node", f"--kubeconfig={kubernetes.kubeconfig}"]
    command += [f"--state={tmp_path}", f"--nodes={state / 'nodes.yaml'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    name = machine.placement["nodeSelector"]["kubernetes.io/hostname"]
    assert f"the cluster has a node {name} already" in done.stderr
    assert "Traceback" not in done.stderr
