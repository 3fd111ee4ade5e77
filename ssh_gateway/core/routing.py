"""Routing of login names to jobs: pure functions over names and a user's jobs.

A login is ``user+server``, split at the *last* ``+`` (the one separator that ssh, scp, sftp, rsync, git and ``-J`` all
leave alone); ``user+`` is the default server, and so is ``user`` alone, which also serves as ``ssh -J user@gateway``.

Rules: the sentences are for users with a proven credential, never for strangers, and name only the user's own jobs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

LONGEST_NAME = 255
DOMAIN = ".dl"  # of the names in users' own configuration (``dlspawner ssh-config``)
LISTED = 8
SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class LoginName:
    user: str
    server: str | None


class JobCondition(Enum):
    """The condition of a job's sshd."""

    READY = "ready"
    STARTING = "starting"
    STOPPING = "stopping"
    WITHOUT_SSH = "without-ssh"


@dataclass(frozen=True, slots=True)
class JobEndpoint:
    """The sshd of a job's pod on a server of the Hub; ``pod`` is the pod's name within a job of several."""

    server: str
    condition: JobCondition
    created: str = ""
    pod: str = ""

    @property
    def name(self) -> str:
        """The name for SSH: the server's, ``train``, or ``train.worker-1``."""
        return f"{self.server}.{self.pod}" if self.pod else self.server


def parse_logins(typed: str, folded: str) -> tuple[LoginName, ...]:
    """Returns what a login name can mean: as typed first, then with the user's name folded; none if impossible.

    ``folded`` is the name after SASLprep. JupyterHub keeps user names in lower case, unless its authenticator
    normalises them in another way.
    """
    found = [_parse_login(typed), _parse_login(folded)]
    if found[1] is not None:
        found[1] = LoginName(found[1].user.lower(), found[1].server)
    return tuple(dict.fromkeys(login for login in found if login is not None))


def _parse_login(text: str) -> LoginName | None:
    user, plus, server = text.rpartition("+")
    if not plus:
        user, server = text, ""
    if not _is_name(user) or (server and not _is_name(server)):
        return None
    return LoginName(user, server if plus else None)


def find_job(server: str, jobs: Iterable[JobEndpoint]) -> JobEndpoint | None:
    """Returns the sshd with this name for SSH: the exact name first, then the name in lower case.

    Of several the oldest that is not being stopped: the Hub makes no second pod for a server, so the younger ones are
    not the Hub's.
    """
    jobs = list(jobs)
    for name in dict.fromkeys((server, server.lower())):
        found = [job for job in jobs if job.name == name]
        if found:
            return min(found, key=lambda job: (job.condition is JobCondition.STOPPING, job.created))
    return None


def known_as(server: str, names: Iterable[str]) -> str:
    """Returns a server's name as spelled in ``names``, or as typed."""
    names = set(names)
    return next((name for name in (server, server.lower()) if name in names), server)


def refusal(user: str, server: str, jobs: Sequence[JobEndpoint], servers: Iterable[str], url: str) -> str | None:
    """Returns the reason why the user cannot enter this server, as a sentence for the user; ``None`` if the user can.

    ``servers`` are all of the user's servers that the Hub knows, read if no job matches; ``url`` is the Hub's, for
    links.
    """
    job = find_job(server, jobs)
    name = server or "your default server"
    match job.condition if job else None:
        case JobCondition.READY:
            return None
        case JobCondition.STARTING:
            return f"{name} is starting: try again in a moment"
        case JobCondition.STOPPING:
            return f"{name} is stopping: wait until it is gone, then start it again at {_spawn_url(url, user, server)}"
        case JobCondition.WITHOUT_SSH:
            return f"{name} offers no SSH: its template has no ssh endpoint"
        case None:
            return _missing(user, server, jobs, set(servers), url)


def _missing(user: str, server: str, jobs: Sequence[JobEndpoint], servers: set[str], url: str) -> str:
    yours = _listing(server, jobs)
    if not server or {server, server.lower()} & servers:
        name = server or "your default server"
        also = f"; yours: {yours}" if yours else ""
        return f"{name} is not running: start it at {_spawn_url(url, user, server)}{also}"
    if not yours:
        return f"no job {printable(server)}; you have none that runs: start one at {url.rstrip('/')}/hub/home"
    return f"no job {printable(server)}; yours: {yours}"


def _listing(server: str, jobs: Sequence[JobEndpoint]) -> str:
    """Returns the names of the jobs that the user could mean, likeliest first."""
    names = {job.name for job in jobs if job.condition in {JobCondition.READY, JobCondition.STARTING}}
    close = difflib.get_close_matches(server, names, n=len(names) or 1, cutoff=0.4)
    ordered = [*close, *sorted(names.difference(close))]
    shown = [name or "the default server" for name in ordered[:LISTED]]
    more = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def is_jump(host: str, port: int) -> bool:
    """True if a requested stream is ``ssh -J`` to a job, and not a forward into their default server."""
    return port == SSH_PORT and host not in {"localhost", "127.0.0.1", "::1", ""}


def jump_server(host: str, user: str) -> str | None:
    """Returns the server of ``ssh -J user@gateway HOST``: its name, ``name.dl`` or ``user+name``; else ``None``."""
    host = host.removesuffix(DOMAIN)
    if "+" not in host:
        return host if _is_name(host) else None
    login = _parse_login(host)  # OpenSSH writes hosts in lower case
    return login.server if login is not None and login.user in {user, user.lower()} else None


def printable(text: str) -> str:
    """Makes received text fit for a terminal: nothing but short visible ASCII."""
    shown = "".join(char if " " <= char <= "~" else "?" for char in text[:64])
    return shown + ("…" if len(text) > 64 else "")


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and text.isprintable() and "/" not in text and not text.isspace()


def _spawn_url(url: str, user: str, server: str) -> str:
    return f"{url.rstrip('/')}/hub/spawn/{user}/{server}" if server else f"{url.rstrip('/')}/hub/spawn"
