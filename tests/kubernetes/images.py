"""Images as files (OCI layouts in the user's cache), and their import into the node.

A layout holds every layer once, and what is streamed into containerd leaves out what it has already: after a change to
the product that is one small layer, where a docker-archive would be half a gigabyte.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.build import Binaries, Say
from tests.kubernetes.instance import CannotRun, cache
from tests.kubernetes.node import PAUSE, Node

COREDNS = "localhost/coredns:1"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
IMPORTED = "localhost/imported:1"


@dataclass(frozen=True, slots=True)
class Image:
    """One image in a layout, under one or more names."""

    names: tuple[str, ...]
    layout: Path
    digest: str  # of its manifest

    def blob(self, digest: str) -> Path:
        return self.layout / "blobs" / digest.replace(":", "/")

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads(self.blob(self.digest).read_text()))

    @property
    def digests(self) -> list[str]:
        """Every blob of it."""
        manifest = self.manifest
        return [self.digest, manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]


def of_programs(binaries: Binaries) -> list[Image]:
    """The images of one program each that a node needs to run any pod."""
    return [_of_program(name, binaries.path(name.rpartition("/")[2].partition(":")[0])) for name in (PAUSE, COREDNS)]


def _of_program(name: str, program: Path) -> Image:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, program.name, program.read_bytes(), 0o755)
    layout = cache() / "images" / program.parent.name
    return of_layer(name, layout, buffer.getvalue(), {"Entrypoint": [f"/{program.name}"]})


def of_layer(name: str, layout: Path, content: bytes, runs: dict[str, Any]) -> Image:
    """An image of one layer, a tar, written into a layout."""
    layer = _put(layout, content, LAYER)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": runs,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    parts = {"config": _put(layout, json.dumps(config).encode(), CONFIG), "layers": [layer]}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, **parts}
    return Image((name,), layout, _put(layout, json.dumps(manifest).encode(), MANIFEST)["digest"])


def _put(layout: Path, content: bytes, kind: str) -> dict[str, Any]:
    """Write a blob where it is missing, and describe it."""
    named = hashlib.sha256(content).hexdigest()
    path = layout / "blobs" / "sha256" / named
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(content)
        partial.rename(path)
    return {"mediaType": kind, "digest": f"sha256:{named}", "size": len(content)}


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))


def load(node: Node, images: Iterable[Image], say: Say) -> None:
    """Import what the node has not got; containerd keeps images between runs."""
    has = {line.split()[0]: line.split()[2] for line in node.ctr("images", "ls").splitlines()[1:]}
    for image in images:
        if any(has.get(name) != image.digest for name in image.names):
            say(f"  importing {image.names[0]}")
            known = set(node.ctr("content", "ls", "--quiet").split())
            _import(node, image, [digest for digest in image.digests if digest not in known])
            for name in image.names:
                node.ctr("images", "tag", "--force", IMPORTED, name)
            node.ctr("images", "rm", IMPORTED)


def _import(node: Node, image: Image, digests: list[str]) -> None:
    """Import it as IMPORTED. Until it is whole, the image that it replaces keeps the layers that both have.

    Where that one has lost its name already, containerd's collector takes a layer that the import has found and builds
    on: "parent snapshot does not exist" (containerd#10835).
    """
    described = {"mediaType": MANIFEST, "digest": image.digest, "size": image.blob(image.digest).stat().st_size}
    index = [described | {"annotations": {"io.containerd.image.name": IMPORTED}}]
    files = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps({"schemaVersion": 2, "manifests": index}).encode(),
    }
    with subprocess.Popen(
        node.ctr_command("images", "import", "-"),
        env=node.programs.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stderr
        try:
            with tarfile.open(fileobj=process.stdin, mode="w|") as tar:
                for name, content in files.items():
                    _add(tar, name, content)
                for digest in digests:
                    tar.add(image.blob(digest), f"blobs/{digest.replace(':', '/')}")
            process.stdin.close()
        except BrokenPipeError:
            pass  # what it says below is why
        said = process.stderr.read().decode()
    if process.returncode:
        raise CannotRun(f"The image {image.names[0]} cannot be imported: {said.strip()}")


def read_layout(layout: Path) -> dict[str, str]:
    """The name of every image that buildah put into a layout, and its manifest's digest."""
    path = layout / "index.json"
    manifests = json.loads(path.read_text())["manifests"] if path.exists() else []
    # what an image of the same name took the place of is still listed, without its name
    named = [manifest for manifest in manifests if "annotations" in manifest]
    return {manifest["annotations"]["org.opencontainers.image.ref.name"]: manifest["digest"] for manifest in named}


def prune_layout(layout: Path) -> None:
    """Forget what belongs to earlier builds only, but for the last one: another run may be about to import it."""
    path = layout / "index.json"
    index = json.loads(path.read_text())
    used = {digest for manifest in index["manifests"] for digest in Image((), layout, manifest["digest"]).digests}
    index["manifests"] = [manifest for manifest in index["manifests"] if "annotations" in manifest]
    path.write_text(json.dumps(index))
    for blob in (layout / "blobs" / "sha256").iterdir():
        if f"sha256:{blob.name}" not in used:
            blob.unlink()
