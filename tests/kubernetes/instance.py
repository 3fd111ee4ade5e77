"""Where one cluster lives and what it is called: everything follows from a number and a directory.

Two instances can run beside each other: names, addresses and ports contain the instance's number. Everything is written
below its state directory:

    containerd/        images; kept, because importing them is what takes long
    run/               certificates, etcd's data, volumes, logs; goes with the cluster unless it is to be kept
    cluster.json       number and directory, for tests that stop and start the node ($DLSPAWNER_TEST_CLUSTER)

What was made outside of it (processes, a network link, cgroups, kernel settings) is in the record (record.py).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = "DLSPAWNER_TEST_CLUSTER"
GPU_LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}  # of nodes that have the GPUs
MOST = 60  # numbers, so that 96 + number is still a byte
HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


class CannotRun(Exception):
    """A sentence that names what is missing or wrong."""


def cache() -> Path:
    """The files that are built or downloaded once for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlspawner"


@dataclass(frozen=True, slots=True)
class Instance:
    """One cluster: with a node (root), or a control plane alone (any user)."""

    number: int
    state: Path
    node: bool = True
    gpus: int = 8

    @classmethod
    def load(cls, state: Path) -> Instance:
        facts = json.loads((state / "cluster.json").read_text())
        return cls(facts["number"], Path(facts["state"]), facts["node"], facts["gpus"])

    def save(self) -> None:
        facts = {"number": self.number, "state": str(self.state), "node": self.node, "gpus": self.gpus}
        (self.state / "cluster.json").write_text(json.dumps(facts))

    @property
    def name(self) -> str:
        return f"dlspawner-{self.number}"

    @property
    def node_name(self) -> str:
        return f"{self.name}-node"

    @property
    def link(self) -> str:
        return f"dlspawner{self.number}"  # a network interface's name has at most 15 characters

    @property
    def run(self) -> Path:
        return self.state / "run"

    @property
    def host_ip(self) -> str:
        """This machine's end of the link to the node. Pods reach servers of this machine that listen here."""
        return f"10.199.{self.number}.1"

    @property
    def node_ip(self) -> str:
        """The node: NodePorts answer here."""
        return f"10.199.{self.number}.2"

    @property
    def pod_cidr(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def service_cidr(self) -> str:
        return f"10.{96 + self.number}.0.0/16"

    @property
    def service_api_ip(self) -> str:
        return f"10.{96 + self.number}.0.1"

    @property
    def dns_ip(self) -> str:
        return f"10.{96 + self.number}.0.10"

    @property
    def api_ip(self) -> str:
        """With a node, an address that pods reach; the API server refuses to advertise a loopback address to them."""
        return self.host_ip if self.node else "127.0.0.1"

    @property
    def api_port(self) -> int:
        return 21000 + 10 * self.number

    @property
    def etcd_port(self) -> int:
        return self.api_port + 1

    @property
    def etcd_peer_port(self) -> int:
        return self.api_port + 2

    @property
    def server(self) -> str:
        return f"https://{self.api_ip}:{self.api_port}"

    def log(self, program: str) -> Path:
        return self.run / "log" / f"{program}.log"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.run / "kubeconfig" / user

    def certificate(self, name: str) -> Path:
        return self.run / "pki" / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.run / "pki" / f"{name}.key"
