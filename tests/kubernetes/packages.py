"""What the node runs from Debian's packages, unpacked in the user's cache and not installed, and the base image.

containerd, runc, the CNI plugins, iptables and conntrack run in place: Programs.environment() tells them where their
libraries are. Nothing of it touches the machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.build import Say, made_once, run
from tests.kubernetes.instance import PROJECT, CannotRun, cache

PACKAGES = (
    *("containerd", "runc", "containernetworking-plugins", "conntrack", "iptables"),
    *("libip4tc2", "libip6tc2", "libxtables12", "libnftnl11", "libnfnetlink0", "libnetfilter-conntrack3", "libmnl0"),
    "libseccomp2",
)
IPTABLES = ("iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore")


@dataclass(frozen=True, slots=True)
class Programs:
    """The folder that holds the unpacked packages."""

    folder: Path

    def path(self, program: str) -> Path:
        return next(path for folder in self._paths() if (path := folder / program).exists())

    @property
    def cni(self) -> Path:
        return self.folder / "usr" / "lib" / "cni"

    def _paths(self) -> list[Path]:
        return [self.folder / name for name in ("usr/local/bin", "usr/bin", "usr/sbin", "sbin")]

    def environment(self) -> dict[str, str]:
        libraries = next((self.folder / "usr" / "lib").glob("*-linux-gnu"))
        path = [*map(str, self._paths()), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
        return {
            "PATH": ":".join(path),
            "LD_LIBRARY_PATH": str(libraries),
            "XTABLES_LIBDIR": str(libraries / "xtables"),
        }


def programs(say: Say) -> Programs:
    """The node's programs, downloaded where that was not done before."""
    fingerprint = hashlib.sha256(repr((release(), PACKAGES)).encode()).hexdigest()[:12]
    folder = cache() / f"debian-{fingerprint}"
    with made_once(folder, say, "containerd and runc") as partial:
        if partial:
            if not shutil.which("apt-get"):
                raise CannotRun("containerd, runc and iptables come from Debian's packages: apt-get is missing.")
            say("Unpacking containerd, runc, CNI plugins and iptables from the distribution (once) …")
            install("--unpack", str(partial), *PACKAGES)
            _link_iptables(partial)
    return Programs(folder)


def release() -> str:
    path = Path("/etc/os-release")
    return path.read_text() if path.exists() else ""


def install(*arguments: str) -> None:
    """Packages unpacked, or programs that build images where they are missing: install("buildah=buildah")."""
    run([PROJECT / ".ci" / "packages", *arguments], "Packages of the distribution could not be had")


def _link_iptables(folder: Path) -> None:
    """Debian chooses between two iptables when the package is installed; ours is the one that needs fewer modules."""
    links = folder / "usr" / "local" / "bin"
    links.mkdir(parents=True)
    for name in IPTABLES:
        (links / name).symlink_to("../../sbin/xtables-legacy-multi")
