"""The product's images for the test cluster: built by hub_config/images/build with buildah, on a base made here.

Everything is in the user's cache: the base, buildah's storage (its layers make the next build quick), and the images
in an OCI layout, so that a layer that did not change is neither written nor imported again. When the sources are those
of the last build nothing runs at all. buildah leaves a mount behind; in a mount namespace of its own, which takes it
along.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes import packages
from tests.kubernetes.build import Say, locked, need_space
from tests.kubernetes.images import Image, prune_layout, read_layout
from tests.kubernetes.instance import PROJECT, CannotRun, cache

PACKAGES = "openmpi-bin"  # in the job image, for journeys
SPACE = 5  # GB that their first build takes: a base, buildah's layers, and what is imported
PREFIX = "localhost/dlspawner"
EARLIER = "earlier"
# Upon zero-to-jupyterhub's own Hub, of which $BUILD_FLAGS has the name: for its chart alone (helm.py).
K8S_HUB = ("k8s-hub",) if "DLSPAWNER_Z2JH" in os.environ else ()
PROCESSES = ("hub", "gateway", *K8S_HUB)
BASE = "localhost/debian:bookworm-slim"
RECIPES = PROJECT / "hub_config" / "images"
SOURCES = ("setup.py", "pyproject.toml", "constraints.txt", "dlspawner", "ssh_gateway", "templates", "hub_config")
# What documentation of packages, in every language, would add to the base.
SLIM = ("path-exclude=/usr/share/doc/*", "path-exclude=/usr/share/man/*", "path-exclude=/usr/share/locale/*")


def tag() -> str:
    """The version of the next release: the manifests' images have it as their tag."""
    return str(tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools_scm"]["fallback_version"])


def names() -> list[str]:
    return sorted(path.parent.name for path in RECIPES.glob("*/Dockerfile"))


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the product: where it is, and which of its images are in which layout with which tag."""

    sources: Path
    tag: str
    images: tuple[str, ...]
    layout: Path

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((PREFIX, self.tag, self.images, os.environ.get("BUILD_FLAGS"))).encode())
        for path in _files(self.sources):
            digest.update(str(path.relative_to(self.sources)).encode() + path.read_bytes())
        return digest.hexdigest()[:16]


def images(say: Say) -> list[Image]:
    """The product's images, built where their sources changed."""
    return _made(Version(PROJECT, tag(), (*names(), *K8S_HUB), _layout("layout")), say)


def earlier(sources: Path, say: Say) -> list[Image]:
    """An earlier version's: those of its processes are built, the others are the present ones by another name."""
    made, present = _made(Version(sources, EARLIER, PROCESSES, _layout(EARLIER)), say), _layout("layout")
    digests = read_layout(present)
    return made + [_image(name, EARLIER, present, digests[name]) for name in names() if name not in PROCESSES]


def _layout(name: str) -> Path:
    return cache() / "images" / name


def _made(version: Version, say: Say) -> list[Image]:
    layout = version.layout
    folder, stamp = layout.parent, layout / "built.json"
    with locked(folder / "product.lock", say, "the product's images"):
        built = json.loads(stamp.read_text()) if stamp.exists() else {}
        fingerprint = version.fingerprint
        if built.get("sources") != fingerprint:
            if not stamp.exists():
                folder.mkdir(parents=True, exist_ok=True)
                need_space(folder, SPACE, "the product's images")
            packages.install("buildah=buildah", "mmdebstrap=mmdebstrap")
            written = _build(version, built.get("images", {}), say)
            prune_layout(layout)
            stamp.write_text(json.dumps({"sources": fingerprint, "images": written}))
        digests = read_layout(layout)
        return [_image(name, version.tag, layout, digests[name]) for name in version.images]


def _image(name: str, tag: str, layout: Path, digest: str) -> Image:
    """Also under the name that the manifests have, which then means a registry's image that is there already."""
    return Image((f"{PREFIX}/{name}:{tag}", f"docker.io/dlspawner/{name}:{tag}"), layout, digest)


def _files(sources: Path) -> Iterator[Path]:
    for source in SOURCES:
        path = sources / source
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (file for file in files if file.is_file() and "__pycache__" not in file.parts)


def _build(version: Version, written: dict[str, str], say: Say) -> dict[str, str]:
    """Build, and write what is not written yet; answers which image of buildah's every written one is."""
    layout, folder = version.layout, version.layout.parent
    _make_base(folder, say)
    say("Building the product's images (minutes at first; then what did not change is quick) …")
    flags = f"{os.environ.get('BUILD_FLAGS', '')} --build-arg PACKAGES={PACKAGES} {' '.join(_machine(folder))}".strip()
    settings = {"BUILDER": "buildah", "PREFIX": PREFIX, "TAG": version.tag, "BASE": BASE, "BUILD_FLAGS": flags}
    build = version.sources / RECIPES.relative_to(PROJECT) / "build"
    _run([build, *version.images], settings, log=(folder / "build.log", say))
    found, there = {}, read_layout(layout)
    for name in version.images:
        full = f"{PREFIX}/{name}:{version.tag}"
        found[name] = _run(["buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", full]).strip()
        if written.get(name) != found[name] or name not in there:
            _run(["buildah", "push", "--quiet", full, f"oci:{layout}:{name}"])
    return found


def _machine(folder: Path) -> list[str]:
    """This machine's package indexes and certificates hold for RUN too, and must be no part of an image: mounts."""
    bundle = Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=False, capture_output=True, text=True
    )
    indexes = re.findall(r"^(?:global|:env:)\.(index-url|extra-index-url|trusted-host)='(.*)'$", listed.stdout, re.M)
    registry = subprocess.run(["npm", "config", "get", "registry"], check=False, capture_output=True, text=True).stdout
    files = {
        "pip.conf": ["[global]", *(f"{name} = {value}" for name, value in indexes)],
        "npmrc": [f"registry={registry.strip()}"] if registry.startswith("http") else [],
    }
    mounts = []
    if bundle.exists():
        mounts.append(f"--volume {bundle}:/etc/ssl/machine.crt:ro")  # where no package of the image puts anything
        files["pip.conf"].append("cert = /etc/ssl/machine.crt")
        files["npmrc"].append("cafile=/etc/ssl/machine.crt")
    for name, there in {"pip.conf": "/etc/pip.conf", "npmrc": "/root/.npmrc"}.items():
        private(folder / name, "\n".join(files[name]) + "\n")
        mounts.append(f"--volume {folder / name}:{there}:ro")
    return mounts


def private(path: Path, text: str) -> None:
    """An index's address may hold a password: no other user reads the file, at no moment."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _make_base(folder: Path, say: Say) -> None:
    """Debian's smallest, where there is none in buildah's storage."""
    if _have(BASE):
        return
    say("Making a base image of Debian's smallest (once, half a minute) …")
    folder.mkdir(parents=True, exist_ok=True)
    tar = folder / "base.tar"
    tar.unlink(missing_ok=True)
    options = ["--variant=minbase", "--include=ca-certificates", *(f"--dpkgopt={option}" for option in SLIM)]
    _run(["mmdebstrap", "--mode=root", *options, "bookworm", tar, *_debian_sources()])
    container = _run(["buildah", "from", "scratch"]).strip()
    _run(["buildah", "add", "--quiet", container, tar])
    _run(["buildah", "config", "--cmd", "bash", container])
    _run(["buildah", "commit", "--quiet", "--rm", container, BASE])
    tar.unlink()


def _debian_sources() -> list[Path]:
    """The Debian mirror of this machine, if it is a Debian; else mmdebstrap knows the usual mirror."""
    paths = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    return [path for path in paths if path.exists()][:1] if "bookworm" in packages.release() else []


def _have(image: str) -> bool:
    try:
        _run(["buildah", "inspect", "--type", "image", image])
    except CannotRun:
        return False
    return True


def progress(log: str) -> str:
    """Where a build is, by the last of its log's lines that say so."""
    begun = re.findall(r"^Building \S+/(\S+):\S+ with", log, re.M) or ["?"]
    steps = re.findall(r"^(?:\[\S+\] )?STEP (\S+: .*)", log.rpartition("\nBuilding ")[2], re.M) or ["begins"]
    return f"image {begun[-1]} ({len(begun)} of {len(names()) + len(K8S_HUB)}), {steps[-1][:70]}"


def _run(command: list[str | Path], settings: dict[str, str] | None = None, log: tuple[Path, Say] | None = None) -> str:
    env = os.environ | {"BUILDAH_ISOLATION": "chroot", "CONTAINERS_STORAGE_CONF": str(_storage())} | (settings or {})
    command = ["unshare", "--mount", *command]
    if log is None:
        done = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
        said = done.stderr
    else:
        done = _logged(command, env, *log)
        said = log[0].read_text(errors="replace")
    if done.returncode:
        what = " ".join(map(str, command[2:4]))
        raise CannotRun(f"{what} failed{f' (all of it: {log[0]})' if log else ''}:\n{said.strip()[-2000:]}")
    return done.stdout or ""


def _logged(command: list[str | Path], env: dict[str, str], log: Path, say: Say) -> subprocess.CompletedProcess[str]:
    """Says every half minute how far it is."""
    start = time.monotonic()
    with log.open("w") as file, subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT) as process:
        while True:
            try:
                return subprocess.CompletedProcess(command, process.wait(30), "")
            except subprocess.TimeoutExpired:
                say(f"  … {progress(log.read_text(errors='replace'))}, {time.monotonic() - start:.0f} s")


def _storage() -> Path:
    """buildah's storage in our cache, apart from other users'."""
    path = cache() / "buildah" / "storage.conf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        roots = {"graphroot": path.parent / "storage", "runroot": path.parent / "run"}
        lines = ["[storage]", 'driver = "overlay"', *(f'{name} = "{root}"' for name, root in roots.items())]
        path.write_text("\n".join(lines) + "\n")
    return path
