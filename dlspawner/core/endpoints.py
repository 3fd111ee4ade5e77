"""The ways into a job, as people use them. PURE: the Hub's pages, the Manager's and its REST resources say the same."""

from __future__ import annotations

import shlex

Target = tuple[str, int]  # the gateway's host and port as people type them


def read_target(address: str) -> Target | None:
    """The gateway's ``host``, ``host:port`` or ``[address]:port``; ``None`` where there is no gateway."""
    if not address:
        return None
    host, separator, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if separator and port.isdecimal() else (address, 22)


def ssh_login(user: str, server: str) -> str:
    """The gateway's login name; it splits at the last ``+``, so a user name that has one says so with another."""
    return f"{user}+{server}" if server or "+" in user else user


def ssh_command(user: str, server: str, target: Target) -> str:
    """What to type to reach a server of this person through the gateway."""
    host, port = target
    login = f"{ssh_login(user, server)}@{host}"
    login = f"{'-- ' if login.startswith('-') else ''}{shlex.quote(login)}"  # nobody's name is an option of ssh
    return f"ssh {login}" if port == 22 else f"ssh -p {port} {login}"
