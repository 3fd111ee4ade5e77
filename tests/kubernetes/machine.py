"""Whether this machine can run a cluster: every problem is one sentence that names what is missing or taken."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

from tests.kubernetes.instance import CannotRun, Instance

SPACE = 3  # GB that a running cluster and its images take
ROOT = "A node needs root: containers, network namespaces and mounts. Run this as root (sudo)."
TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}


def need_root() -> None:
    """The checks before images are built, which takes minutes and root."""
    if os.geteuid() != 0:
        raise CannotRun(ROOT)


def check(instance: Instance) -> None:
    """Raises CannotRun with everything that stands in the way."""
    instance.state.mkdir(parents=True, exist_ok=True)
    if found := list(_problems(instance)):
        raise CannotRun("\n".join(found))


def free(instance: Instance) -> bool:
    """Checks that its ports and networks are free."""
    taken = [*_ports(instance), *(_addresses(instance) if instance.node and shutil.which("ip") else ())]
    return not taken


def _problems(instance: Instance) -> Iterator[str]:
    free = shutil.disk_usage(instance.state).free / 1e9
    if free < SPACE:
        yield f"A cluster needs {SPACE} GB of disk at {instance.state}; {free:.1f} GB are free."
    yield from _ports(instance)
    if not instance.node:
        return
    if os.geteuid() != 0:
        yield ROOT
        return
    missing = [f"{tool} (package {package})" for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        yield f"A node needs programs that are missing: {', '.join(missing)}."
        return
    if instance.state.is_relative_to("/var") or instance.state.is_relative_to("/run"):
        yield f"The node has a /var and a /run of its own, so its state cannot be below them: {instance.state}."
    yield from _addresses(instance)


def _ports(instance: Instance) -> Iterator[str]:
    for port in (instance.api_port, instance.etcd_port, instance.etcd_peer_port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                yield f"Port {port} of 127.0.0.1 cannot be used ({error.strerror}): choose another --instance."


def _addresses(instance: Instance) -> Iterator[str]:
    """Networks that this machine has a route to already."""
    wanted = [f"{instance.host_ip}/{instance.prefix}", instance.pod_cidr, instance.service_cidr]
    command = ["ip", "-json", "-6" if instance.ipv6 else "-4", "route"]
    routes = json.loads(subprocess.run(command, check=True, capture_output=True).stdout or b"[]")
    for route in routes:
        if route["dst"] == "default":
            continue
        taken = ipaddress.ip_network(route["dst"], strict=False)
        for network in wanted:
            if taken.overlaps(ipaddress.ip_network(network, strict=False)):
                where = f"{route['dst']} by {route.get('dev', 'a route')}"
                yield f"The network {network} is taken on this machine ({where}): choose another --instance."
