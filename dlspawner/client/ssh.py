"""This machine's own OpenSSH: started for a job, or configured for the user's jobs (``dlspawner ssh-config``).

Commands and written files consist of checked names and numbers only: OpenSSH's options and configuration can run
programs, so no text from the Hub gets into them.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlspawner import ssh_config
from dlspawner.client.login import replace
from dlspawner.client.service import ClientProblem, Service, Unreachable
from dlspawner.ssh_config import SshAccessConfig, Unwritable

# OpenSSH's option for the host keys known to all users of a machine, and its default files (ssh_config(5)).
GLOBAL = "GlobalKnownHostsFile"
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_INCLUDED = "# Written by dlspawner ssh-config: has to stand before the first Host or Match.\n" + ssh_config.INCLUDE


def login_words(command: str) -> list[str]:
    """Returns port and login of the Hub's ``ssh`` command, as words; ClientProblem for anything else."""
    try:
        name, *words = shlex.split(command)
    except ValueError:
        name, words = "", []
    *options, place = words or [""]
    rest = options[2:] if options[:1] == ["-p"] and options[1:2] and _is_port(options[1]) else options
    if name == "ssh" and rest in ([], ["--"]) and ssh_config.is_place(place.lstrip("-") if rest else place):
        return words
    raise ClientProblem(f"The Hub's way in is more than a login, and is not run for you. It says: {command}", 1)


def pins(service: Service, folder: Path, words: Sequence[str]) -> list[str]:
    """Returns the options with which ``ssh`` knows the gateway's host keys from the Hub; none if the Hub names none.

    The keys are in a file for this gateway in ``folder``, read beside the user's own known hosts and in place of the
    files that `GLOBAL` names in a configuration. A `GLOBAL` in ``words`` takes precedence.
    """
    if any(GLOBAL.lower() in word.lower() for word in words) or '"' in str(folder):
        return []
    try:
        access = _read(service.get("ssh-config"))
        known = ssh_config.known_hosts(access)
    except (ClientProblem, Unwritable):
        return []
    file = folder / f"known_hosts-{access.host}-{access.port}"
    if not known:
        return []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(file, known)
    except OSError:
        return []
    return ["-o", f'{GLOBAL}="{file}" {SYSTEM_KNOWN_HOSTS}']


def _is_port(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 6


def print_config(given: argparse.Namespace, service: Service) -> int:
    answer = service.get("ssh-config")
    if given.json:
        print(json.dumps(answer, indent=2))
        return 0
    try:
        access = _read(answer)
        config, known_hosts = ssh_config.config(access), ssh_config.known_hosts(access)
    except Unwritable as problem:
        raise ClientProblem(str(problem), 1) from None
    if given.write:
        _write(config, known_hosts)
    else:
        print(known_hosts if given.known_hosts else config, end="")
    return 0


def _read(answer: Any) -> SshAccessConfig:
    try:
        lists = [answer["servers"], answer["host_keys"]]
        if not all(isinstance(one, list) and all(isinstance(word, str) for word in one) for one in lists):
            raise TypeError("lists of text expected")
        user, host, port = answer["user"], answer["host"], answer["port"]
        if [type(one) for one in (user, host, port)] != [str, str, int]:
            raise TypeError("a user, a host and a port expected")
    except (KeyError, TypeError):
        raise Unreachable("The Hub's answer about SSH is not one that this program knows.") from None
    return SshAccessConfig(user, host, port, *map(tuple, lists))


def _write(config: str, known_hosts: str) -> None:
    """Writes both files and the line that includes them; the rest of ~/.ssh/config stays unchanged."""
    folder = Path.home() / ".ssh"
    main = folder / "config"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        replace(folder / ssh_config.CONFIG_FILE, config)
        if known_hosts:  # else the file may hold keys that the user has accepted
            replace(folder / ssh_config.KNOWN_HOSTS_FILE, known_hosts)
        written = main.read_text(encoding="utf-8") if main.exists() else ""
        if ssh_config.INCLUDE not in (line.strip() for line in written.splitlines()):
            replace(main.resolve(), f"{_INCLUDED}\n\n{written}" if written else f"{_INCLUDED}\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise ClientProblem(
            f"{folder} cannot be written: {getattr(problem, 'strerror', None) or problem}.", 1
        ) from None
    hosts = [line.split()[1] for line in config.splitlines() if line.startswith("Host ") and "*" not in line]
    print(f"Written to {folder}. Try: ssh {hosts[-1]}")
    if not known_hosts:
        print("The gateway's host key is not known here: ssh asks for it at the first connection.")
