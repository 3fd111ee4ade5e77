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
from pathlib import Path

ENVIRONMENT = "DLSPAWNER_TEST_CLUSTER"
GPU_LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}  # of nodes that have the GPUs
GPUS = 8  # that the node pretends to have
MOST = 60  # numbers, so that 96 + number is still a byte
HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


class CannotRun(Exception):
    """A sentence that names what is missing or wrong."""


def cache() -> Path:
    """The files that are built or downloaded once for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlspawner"


def in_url(address: str) -> str:
    """Returns the address as URLs have it: one of IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


class Instance:
    """One cluster: with a node (root), or a control plane alone (any user); of IPv4 or, with a node, of IPv6 alone."""

    def __init__(self, number: int, state: Path, *, node: bool = True, ipv6: bool = False) -> None:
        self.number, self.state, self.node, self.ipv6 = number, state, node, ipv6
        self.run = state / "run"
        self.name, self.node_name = f"dlspawner-{number}", f"dlspawner-{number}-node"
        self.link = f"dlspawner{number}"  # a network interface's name has at most 15 characters
        # The link's ends: pods reach servers of this machine that listen at its own, NodePorts answer at the other.
        if ipv6:
            link, pods, services = (f"fd00:{part}:{number}::" for part in (199, 244, 96))
            self.prefix, self.anywhere = 64, "::/0"
            self.pod_cidr, self.service_cidr, self.dns_ip = f"{pods}/64", f"{services}/112", f"{services}a"
        else:
            link, services = f"10.199.{number}.", f"10.{96 + number}.0."
            self.prefix, self.anywhere = 24, "0.0.0.0/0"
            self.pod_cidr, self.service_cidr, self.dns_ip = f"10.244.{number}.0/24", f"{services}0/16", f"{services}10"
        self.host_ip, self.node_ip, self.service_api_ip = f"{link}1", f"{link}2", f"{services}1"
        # With a node, an address that pods reach: the API server refuses to advertise a loopback address to them.
        self.api_ip = self.host_ip if node else "127.0.0.1"
        self.api_port = 21000 + 10 * number
        self.etcd_port, self.etcd_peer_port = self.api_port + 1, self.api_port + 2
        self.server = f"https://{in_url(self.api_ip)}:{self.api_port}"

    @classmethod
    def load(cls, state: Path) -> Instance:
        facts = json.loads((state / "cluster.json").read_text())
        return cls(facts["number"], Path(facts["state"]), node=facts["node"], ipv6=facts["ipv6"])

    def save(self) -> None:
        facts = {"number": self.number, "state": str(self.state), "node": self.node, "ipv6": self.ipv6}
        (self.state / "cluster.json").write_text(json.dumps(facts))

    def log(self, program: str) -> Path:
        return self.run / "log" / f"{program}.log"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.run / "kubeconfig" / user

    def certificate(self, name: str) -> Path:
        return self.run / "pki" / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.run / "pki" / f"{name}.key"
