"""Images as files, and their import into the node.

pause and CoreDNS are one program each; the base is Debian's smallest, made by mmdebstrap.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.build import Binaries, Say, locked
from tests.kubernetes.instance import cache
from tests.kubernetes.node import PAUSE, Node

COREDNS = "localhost/coredns:1"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A docker-archive, which its name identifies: another content has another name."""

    name: str
    path: Path
    also: str = ""  # another name for it


def of_programs(binaries: Binaries, say: Say) -> list[ImageFile]:
    """The images of one program each that a node needs to run any pod."""
    found = []
    for name in (PAUSE, COREDNS):
        program = binaries.path(name.rpartition("/")[2].partition(":")[0])
        path = cache() / "images" / f"{program.name}-{program.parent.name}.tar"
        with locked(path.with_suffix(".lock"), say, name):
            if not path.exists():
                partial = path.with_suffix(".partial")
                partial.write_bytes(archive(name, program))
                partial.rename(path)
        found.append(ImageFile(name, path))
    return found


def archive(name: str, program: Path) -> bytes:
    """A docker-archive of one layer that holds one static program and /tmp."""
    layer = _tar({program.name: program.read_bytes()}, mode=0o755)
    difference = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [difference]},
    }
    written = json.dumps(config).encode()
    named = f"{hashlib.sha256(written).hexdigest()}.json"
    manifest = [{"Config": named, "RepoTags": [name], "Layers": ["layer.tar"]}]
    return _tar({named: written, "manifest.json": json.dumps(manifest).encode(), "layer.tar": layer})


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def load(node: Node, images: Iterable[ImageFile], say: Say) -> None:
    """Import what the node has not got; containerd keeps images between runs, and so does our list of them."""
    stamps = node.instance.state / "containerd" / "imported.json"
    imported = json.loads(stamps.read_text()) if stamps.exists() else {}
    for image in images:
        if imported.get(image.name) != str(image.path):
            say(f"  importing {image.name}")
            node.ctr("images", "import", image.path)
            if image.also:
                node.ctr("images", "tag", "--force", image.name, image.also)
            imported[image.name] = str(image.path)
            stamps.write_text(json.dumps(imported))
