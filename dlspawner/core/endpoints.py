"""Commands and addresses for the endpoints of a job, on the Hub's pages, the Manager's and in REST. PURE."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from dlspawner.core.template import Endpoint, EndpointProtocol

Target = tuple[str, int]  # the gateway's host and port as people type them


def read_target(address: str) -> Target | None:
    """Reads ``host``, ``[address]``, ``host:port`` or ``[address]:port``; ``None`` where there is no gateway."""
    if not address:
        return None
    host, separator, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if separator and port.isdecimal() else (address.strip("[]"), 22)


def ssh_login(user: str, server: str) -> str:
    """Returns the gateway's login name, which is split at the last ``+``: a user name with a ``+`` gets another one."""
    return f"{user}+{server}" if server or "+" in user else user


@dataclass(frozen=True, slots=True)
class Forward:
    """A port of a job on a person's own machine: what to type for it, and where it is while that runs."""

    command: str
    address: str


def forward(user: str, server: str, target: Target, endpoint: Endpoint) -> Forward:
    """An endpoint that is no SSH, through the job's sshd; on one's own machine only root listens below 1024."""
    port = endpoint.port if endpoint.port >= 1024 else 8000 + endpoint.port
    command = ssh_command(user, server, target, f"-L {port}:localhost:{endpoint.port}")
    return Forward(
        command, f"http://localhost:{port}/" if endpoint.protocol is EndpointProtocol.HTTP else f"localhost:{port}"
    )


def ssh_command(user: str, server: str, target: Target, options: str = "") -> str:
    """Returns the command that reaches a server of this user through the gateway."""
    host, port = target
    login = f"{ssh_login(user, server)}@{host}"
    login = f"{'-- ' if login.startswith('-') else ''}{shlex.quote(login)}"  # no user name is an option of ssh
    return " ".join(word for word in ("ssh", f"-p {port}" if port != 22 else "", options, login) if word)
