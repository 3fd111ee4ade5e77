"""More gateways of a running product, each a process of its own with settings of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlspawner.local.processes import NAMESPACE
from tests.e2e.people import wait_for
from tests.e2e.stack import ROOT, Launched
from tests.harness.ports import free_port


@dataclass(frozen=True)
class Another:
    """One that is ready."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def way(self) -> tuple[str, ...]:
        """Options of OpenSSH's programs that lead to it."""
        return "-o", f"Port={self.port}"


@contextlib.contextmanager
def another(stack: Launched, log: Path, *settings: str) -> Iterator[Another]:
    """With the launcher's keys, token and Manager; told to stop in the end."""
    port, ports = free_port(), json.loads((stack.state / "ports.json").read_text())
    command = [sys.executable, "-m", "ssh_gateway", f"--Gateway.port={port}", *settings]
    command += [f"--Gateway.state_dir={stack.state / 'gateway'}", f"--Gateway.hub_public_url={stack.url}/"]
    command += [f"--Gateway.manager_url=http://127.0.0.1:{ports['manager']}/services/jobs"]
    command += ["--Gateway.namespace=" + NAMESPACE]
    env = {
        **os.environ,
        "KUBECONFIG": str(stack.state / "cluster" / "kubeconfig"),
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{ports['hub']}/hub/api",
        "JUPYTERHUB_API_TOKEN": stack.secrets["gateway_token"],
    }
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
    try:
        wait_for(lambda: "event=ready" in log.read_text(), f"another gateway: see {log}")
        yield Another(port, process)
    finally:
        process.terminate()
        process.wait(30)
