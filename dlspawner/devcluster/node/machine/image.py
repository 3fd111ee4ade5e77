"""The one image there is: the machine's own file system, seen from a container.

What a real image would bring (environment, user, entry point) is decided here. Programs come from this interpreter's
environment first, then from the directories in ``$DEVCLUSTER_PATH``, then from where Debian puts them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlspawner.devcluster.node.env import ConfigError, command_line
from dlspawner.devcluster.node.runner import Command, Mount, Root

USER = 1000
PATH_SETTING = "DEVCLUSTER_PATH"
PYTHON = Path(sys.prefix) / "python"  # people's Python, apart from the server's, as in the job image; made by `make`
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TEMPORARY = Path("/tmp")  # noqa: S108  (containers have their own: what we need of the machine's is bound into it)


def environment(gpus: Sequence[str], hostname: str) -> dict[str, str]:
    """The variables of image and device plugin; the pod's own win over them."""
    extra = [entry for entry in os.environ.get(PATH_SETTING, "").split(":") if entry]
    path = ":".join([str(Path(sys.executable).parent), *extra, _SYSTEM])
    result = {"PATH": path, "HOME": "/", "LANG": "C.UTF-8", "HOSTNAME": hostname}
    if PYTHON.is_dir():
        result["DLSPAWNER_PYTHON"] = str(PYTHON)
    if gpus:
        result["NVIDIA_VISIBLE_DEVICES"] = ",".join(gpus)
    return result


def command(  # noqa: PLR0913  (the parts of a container, by name)
    container: Mapping[str, Any],
    *,
    pod: Mapping[str, Any],
    ip: str,
    variables: Mapping[str, str],
    gpus: Sequence[str],
    directory: Path,
    shared: Path,
    mounts: tuple[Mount, ...],
    hidden: tuple[str, ...],
) -> Command:
    """A container of the manifest as something to execute; makes the few files that are its own.

    ``shared``: where the files of several pods are.
    """
    hostname = str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]
    context = (pod["spec"].get("securityContext") or {}) | (container.get("securityContext") or {})
    uid = int(context.get("runAsUser", USER))
    if context.get("runAsNonRoot") and uid == 0:
        who = f"{pod['metadata']['name']}_{pod['metadata']['namespace']}({pod['metadata']['uid']})"
        raise ConfigError(
            f'container\'s runAsUser breaks non-root policy (pod: "{who}", container: {container["name"]})'
        )
    own = tuple(_own_files(container, directory, _hosts(pod, ip, hostname, directory, shared)))
    (directory / "root").mkdir()
    (directory / "tmp").mkdir()
    root = Root(
        base=str(directory / "root"),
        tmp=str(directory / "tmp"),
        hostname=hostname,
        uid=uid,
        gid=int(context.get("runAsGroup", context.get("fsGroup", USER))),
        mounts=own + mounts,
        hide=hidden,
        visible=_visible(),
    )
    return Command(
        args=command_line(container, variables),
        env=environment(gpus, hostname) | dict(variables),
        cwd=container.get("workingDir") or "/",
        no_new_privileges=context.get("allowPrivilegeEscalation") is False,
        root=root,
    )


def _own_files(container: Mapping[str, Any], directory: Path, hosts: Path) -> Iterator[Mount]:
    message = directory / "termination-log"
    message.touch()
    yield Mount(str(message), container.get("terminationMessagePath") or "/dev/termination-log")
    yield Mount(str(hosts), "/etc/hosts")


def _hosts(pod: Mapping[str, Any], ip: str, hostname: str, directory: Path, shared: Path) -> Path:
    """The file /etc/hosts. In place of DNS, the pods of one headless Service share one, where each writes its name."""
    spec, lines = pod["spec"], ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost"]
    file = directory / "hosts"
    if spec.get("subdomain") and spec.get("hostname"):
        file = shared / f"{pod['metadata']['namespace']}_{spec['subdomain']}"
        shared.mkdir(exist_ok=True)
        if file.exists():
            lines = [one for one in file.read_text(encoding="utf-8").splitlines() if one.split()[1] != hostname]
    file.write_text("".join(f"{line}\n" for line in (*lines, f"{ip}\t{hostname}")), encoding="utf-8")
    return file


def _visible() -> tuple[str, ...]:
    """Returns the parts of the interpreter and the extra programs in the machine's temporary directory."""
    needed = [sys.prefix, sys.base_prefix, *os.environ.get(PATH_SETTING, "").split(":")]
    paths = {Path(entry).absolute() for entry in needed if entry}
    below = {_TEMPORARY / path.relative_to(_TEMPORARY).parts[0] for path in paths if _TEMPORARY in path.parents}
    return tuple(sorted(str(path) for path in below))
