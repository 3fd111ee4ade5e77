"""Where pods of the contract really run: a node of the cluster or, where it has none, a simulated one that joins it."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.contract.client import Client, pod

# sh and coreutils are enough; an image of the project's own is there where its tests run, and elsewhere one is pulled.
_PREFIX = os.environ.get("DLSPAWNER_IMAGE_PREFIX", "")
_OWN = f"{_PREFIX}/job:{os.environ.get('DLSPAWNER_IMAGE_TAG', '0.1.0')}" if _PREFIX else "debian:12"
IMAGE = os.environ.get("DLSPAWNER_CONTRACT_IMAGE", _OWN)
_OURS = "contract.example.org/only"


@dataclass(frozen=True)
class Machine:
    """A node that takes pods which `pod` makes."""

    placement: dict[str, Any]

    def pod(self, script: str, name: str = "p", *, container: dict[str, Any] | None = None, **spec: Any) -> Any:
        """One container that runs a shell script."""
        main = {"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}
        spec = {"terminationGracePeriodSeconds": 5, "restartPolicy": "Never", **self.placement, **spec}
        return pod(name, containers=[main | (container or {})], **spec)


def real(cluster: Client) -> Machine | None:
    """A node of the cluster that is ready and is no test's or simulation's own."""
    for node in cluster.get("/api/v1/nodes")["items"]:
        labels, conditions = node["metadata"]["labels"], node["status"].get("conditions") or []
        ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
        simulated = labels.get("node.kubernetes.io/instance-type") == "devcluster"
        if ready and not simulated and "contract/node" not in labels and not node["spec"].get("taints"):
            return Machine({"nodeSelector": {"kubernetes.io/hostname": node["metadata"]["name"]}})
    return None


def is_here(cluster: Client) -> bool:
    """True if the API server runs on this machine: no other one could ask a simulated node for logs."""
    with socket.socket() as probe:
        try:
            probe.bind((str(cluster.server.hostname), 0))
        except OSError:
            return False
        return True


@contextmanager
def simulated(cluster: Client, state: Path) -> Iterator[Machine]:
    """A simulated node that only takes the contract's pods."""
    name = f"contract-{secrets.token_hex(4)}"
    taint = {"key": _OURS, "value": name, "effect": "NoSchedule"}
    nodes = state / "nodes.yaml"
    nodes.write_text(yaml.safe_dump({"nodes": [{"name": name, "taints": [taint]}]}))
    with joined(cluster, nodes, state):
        tolerations = [{"key": _OURS, "operator": "Exists"}]
        yield Machine({"nodeSelector": {"kubernetes.io/hostname": name}, "tolerations": tolerations})


@contextmanager
def joined(cluster: Client, nodes: Path, state: Path) -> Iterator[None]:
    """The simulated nodes that a file describes are part of the cluster."""
    command = [sys.executable, "-m", "dlspawner.devcluster.node", f"--kubeconfig={cluster.kubeconfig}"]
    command += [f"--state={state}", f"--nodes={nodes}", "--backoff=0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline().startswith("Nodes ready:")
            yield
        finally:
            process.terminate()
            process.wait(60)
            for node in yaml.safe_load(nodes.read_text())["nodes"]:
                cluster.request("DELETE", f"/api/v1/nodes/{node['name']}")
