"""A person's OpenSSH client configuration for the gateway, and the links that use its names. PURE.

``train.dl`` is the job on the server ``train``, ``dl`` the default server. Every server has a block of its own, because
editors list what stands there and a login names its server (``alice+train``). Any other name below ``.dl`` goes through
``dl`` as a jump host, so a server that is newer than the file is reached as well, with two handshakes instead of one.

The same text is made by the Manager, for a download, and by the command line, from the Manager's data: a file that
OpenSSH runs programs from is put together on the person's machine, out of values that can name none.

The user chooses the keys of the login. The gateway's host key is pinned in a separate file, under the name by which
OpenSSH looks it up, so that ``ssh -p 2222 alice+train@gateway`` may use that file, too. ``UpdateHostKeys`` lets OpenSSH
learn the next host key from the gateway; its default is off where ``UserKnownHostsFile`` is set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

JUMP = "dl"
DOMAIN = f".{JUMP}"
CONFIG_FILE = "dlspawner_config"
KNOWN_HOSTS_FILE = "dlspawner_known_hosts"
INCLUDE = f"Include {CONFIG_FILE}"

_SERVER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_USER = re.compile(r"[\w.](?:[\w.+@=,:~ -]*[\w.+@=,:~-])?")
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*")
_KEY = re.compile(r"([a-z0-9@.-]+) (AAAA[A-Za-z0-9+/]+={0,2})(?: .*)?")


class Unwritable(ValueError):
    """The message says what cannot be written into such a file."""


@dataclass(frozen=True, slots=True)
class SshAccessConfig:
    """A user, the gateway's address and the user's servers; ``host_keys``: its public keys, as ``type base64``."""

    user: str
    host: str
    port: int
    servers: tuple[str, ...] = ()
    host_keys: tuple[str, ...] = ()


def alias(server: str) -> str | None:
    """The host's name of a server; ``None`` for a name that is a pattern to OpenSSH, or no name at all."""
    if not server:
        return JUMP
    return f"{server}{DOMAIN}" if _SERVER.fullmatch(server) else None


def is_place(login: str) -> bool:
    """True for a ``USER@HOST`` that a configuration can hold: neither part is an option, or runs a program."""
    user, _, host = login.rpartition("@")
    return bool(_USER.fullmatch(user) and _HOST.fullmatch(host))


def editor_links(server: str) -> tuple[tuple[str, str], ...]:
    """Names and addresses of editors that open a window in a job, where this configuration is installed."""
    host = quote(alias(server) or "")
    if not host:
        return ()
    forks = (("VS Code", "vscode"), ("Cursor", "cursor"), ("Windsurf", "windsurf"))
    links = [(name, f"{scheme}://vscode-remote/ssh-remote+{host}?windowId=_blank") for name, scheme in forks]
    # The last is JetBrains Toolbox, which asks for IDE and folder.
    return (*links, ("Zed", f"zed://ssh/{host}/~"), ("JetBrains", f"jetbrains://gateway/ssh/environment?h={host}"))


def config(access: SshAccessConfig) -> str:
    """The file, or Unwritable."""
    user, host = _checked(access)
    # The part behind the last plus names the server: a name with a plus of its own cannot leave that open.
    jumps = "+" not in access.user
    blocks = [_block(JUMP, host, access.port, user if jumps else f"{user}+")]
    named = sorted({server for server in access.servers if server and alias(server)})
    blocks += [_block(f"{server}{DOMAIN}", host, access.port, f"{user}+{server}") for server in named]
    if jumps:
        others = f"Host *{DOMAIN}\n    User {_word(user)}\n    ProxyJump {JUMP}\n"
        blocks.append(f"# Any other job, by the name of its server.\n{others}")
    files = f"~/.ssh/{KNOWN_HOSTS_FILE} ~/.ssh/known_hosts"
    pins = (f"HostKeyAlias {_place(access)}", f"UserKnownHostsFile {files}", "UpdateHostKeys yes")
    known = "\n    ".join((f"Host {JUMP} *{DOMAIN}", *pins)) + "\n"
    return "\n".join(
        (f"# Jobs of {user}, through the SSH gateway. Made by dlspawner; change the file beside it.", *blocks, known)
    )


def known_hosts(access: SshAccessConfig) -> str:
    """The gateway's host keys, one a line; empty if they are unknown."""
    _checked(access)
    read = [_KEY.fullmatch(key.strip()) for key in access.host_keys]
    return "".join(f"{_place(access)} {key[1]} {key[2]}\n" for key in read if key)


def _block(name: str, host: str, port: int, user: str) -> str:
    lines = (f"HostName {host}", f"Port {port}", f"User {_word(user)}", "ProxyJump none")
    return "\n    ".join((f"Host {name}", *lines)) + "\n"


def _word(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _place(access: SshAccessConfig) -> str:
    """Returns the gateway's name in OpenSSH's files of known hosts."""
    return access.host if access.port == 22 else f"[{access.host}]:{access.port}"


def _checked(access: SshAccessConfig) -> tuple[str, str]:
    if not _USER.fullmatch(access.user):
        raise Unwritable("Your user name has characters that a configuration of OpenSSH cannot hold.")
    if not _HOST.fullmatch(access.host) or not 0 < access.port < 65536:
        raise Unwritable("The gateway's address is not one that a configuration of OpenSSH can hold.")
    return access.user, access.host
