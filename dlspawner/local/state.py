"""The persistent state of the launcher: options, ports, passwords, and the lock.

One launcher at a time holds the state directory, by a lock that the kernel releases however the launcher dies.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import random
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import yaml

from dlspawner import ROOT

_KUBECONFIG_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class CannotRun(Exception):
    """The product cannot start here; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Options:
    state: Path
    port: int
    ssh_port: int
    config: Path
    templates: Path
    kubeconfig: Path | None = None  # of an existing cluster; None: an embedded one is started
    nodes: Path | None = None

    @property
    def cluster_config(self) -> Path:
        """The kubeconfig of the product: the embedded cluster's own file, or a copy of the given one."""
        return self.state / "cluster" / "kubeconfig"


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports between the product's processes. `hub` is known to the pods of running jobs and never changes."""

    hub: int
    proxy_api: int
    manager: int
    api: int
    prometheus: int


@dataclass(frozen=True, slots=True)
class Secrets:
    """Made at the first start, readable by their owner only."""

    password: str
    admin_password: str
    manager_token: str
    gateway_token: str
    proxy_token: str
    launcher_token: str


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="dlspawner local", description="Run the whole product on this machine.")
    parser.add_argument("--state", type=Path, default=Path("var"), help="directory for everything that must survive")
    parser.add_argument("--port", type=_port, default=8000, help="port of the Hub's web pages (make run PORT=…)")
    parser.add_argument("--ssh-port", type=_port, default=2222, help="port of the SSH gateway (make run SSH_PORT=…)")
    parser.add_argument(
        "--config", type=Path, default=ROOT / "hub_config", help="directory with the Hub's configuration"
    )
    parser.add_argument("--templates", type=Path, default=ROOT / "templates", help="directory with jobs/ and hub/")
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="join a Kubernetes API server that runs on this machine, instead of starting the embedded one",
    )
    parser.add_argument("--nodes", type=Path, help="file that describes the simulated nodes")
    given = parser.parse_args(arguments)
    return Options(
        given.state.resolve(),
        given.port,
        given.ssh_port,
        given.config.resolve(),
        given.templates.resolve(),
        given.kubeconfig and given.kubeconfig.resolve(),
        given.nodes and given.nodes.resolve(),
    )


def _port(written: str) -> int:
    number = int(written)
    if not 0 < number < 2**16:
        raise argparse.ArgumentTypeError(f"{number} is no port: 1 to 65535")
    return number


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def check_ports(options: Options) -> None:
    """Raises CannotRun if a port for users is taken."""
    for port, flag, variable in (
        (options.port, "--port", "PORT"),
        (options.ssh_port, "--ssh-port", "SSH_PORT"),
    ):
        if not is_free(port):
            raise CannotRun(
                f"Port {port} is taken by another program. Choose another one with {flag}, "
                f"for instance: make run {variable}={port + 10}"
            )


def keep_ports(path: Path) -> Ports:
    """Returns the ports of the last start; a taken port is replaced, except for the Hub's, which running jobs use."""
    kept: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    if "hub" in kept and not is_free(kept["hub"]):
        raise CannotRun(
            f"Port {kept['hub']}, at which the running jobs expect the Hub, is taken by another program. "
            f"Stop that program, or delete {path} and start the jobs anew."
        )
    chosen: dict[str, int] = {}
    for name in Ports.__dataclass_fields__:
        port = kept.get(name, 0)
        while not port or not is_free(port) or port in chosen.values():
            port = random.randrange(20000, 30000)  # noqa: S311 - below the ephemeral and NodePort ranges, not a secret
        chosen[name] = port
    write_private(path, json.dumps(chosen))
    return Ports(**chosen)


def keep_secrets(path: Path) -> Secrets:
    """Returns the secrets of the last start; makes those that a newer version adds."""
    kept: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    made = {name: secrets.token_urlsafe(24) for name in Secrets.__dataclass_fields__}
    made["password"] = secrets.token_urlsafe(9)
    if kept.keys() != made.keys():
        kept = {name: kept.get(name, value) for name, value in made.items()}
        write_private(path, json.dumps(kept, indent=1))
    return Secrets(**kept)


def write_private(path: Path, text: str) -> None:
    """Replaces a file in one step; at no moment is it readable for other users."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def keep_kubeconfig(given: Path, kept: Path, namespace: str) -> None:
    """Copies a kubeconfig with absolute paths, and with our namespace in its context."""
    try:
        document = yaml.safe_load(given.read_text(encoding="utf-8"))
        context = next(entry for entry in document["contexts"] if entry["name"] == document["current-context"])
        context["context"]["namespace"] = namespace
        holders = [entry[kind] for kind in ("cluster", "user") for entry in document[f"{kind}s"]]
        for holder, name in itertools.product(holders, _KUBECONFIG_PATHS):
            if name in holder:
                holder[name] = str(given.parent / holder[name])
    except (OSError, yaml.YAMLError, KeyError, TypeError, StopIteration) as error:
        raise CannotRun(f"{given} cannot be read as a kubeconfig: {error!r}") from error
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(kept, yaml.safe_dump(document))


def lock(state: Path) -> int:
    """Locks the state directory for this process; the returned descriptor is the lock, and there is no lock file."""
    descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotRun(f"Another launcher already runs with {state}. Stop it, or choose another --state.") from None
    return descriptor
