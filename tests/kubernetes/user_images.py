"""Images as people bring them, for tests: nothing in them was made for us.

    test-debian        Debian's smallest, of the release that our own images stand on
    test-old-debian    the same of the release before, whose libc is older than the one that our sshd was built with
    test-busybox       one static program under a few names: no libc, no bash, no passwd

Each is one layer that mmdebstrap made from Debian's usual mirror, in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from tests.kubernetes import packages, product
from tests.kubernetes.build import Say, locked
from tests.kubernetes..py import ImageFile
from tests.kubernetes.instance import CannotRun, cache

_APPLETS = "sh sleep cat ls echo id tty stty dd cmp printf"
_HOOK = f'mkdir -p "$1/tmp"; chmod 1777 "$1/tmp"; for name in {_APPLETS}; do ln -s busybox "$1/bin/$name"; done'
RECIPES: dict[str, list[str]] = {
    "test-debian": ["--variant=minbase", "bookworm"],
    "test-old-debian": ["--variant=minbase", "bullseye"],
    "test-busybox": ["--variant=extract", "--include=busybox-static", f"--extract-hook={_HOOK}", "bookworm"],
}


def images(say: Say) -> list[ImageFile]:
    """The images as files, made where there are none yet."""
    packages.install("mmdebstrap=mmdebstrap")
    return [_image(name, recipe, say) for name, recipe in RECIPES.items()]


def _image(name: str, recipe: list[str], say: Say) -> ImageFile:
    full = f"{product.PREFIX}/{name}:{product.tag()}"
    made_by = hashlib.sha256(repr((full, recipe)).encode()).hexdigest()[:16]
    path = cache() / "images" / f"{name}-{made_by}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), say, name):
        if not path.exists():
            say(f"Making the image {name} (once, half a minute) …")
            layer = path.with_suffix(".layer.tar")
            options = [f"--dpkgopt={option}" for option in product.SLIM]
            command = ["mmdebstrap", "--mode=root", "--quiet", *options, *recipe[:-1], recipe[-1], str(layer)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise CannotRun(f"mmdebstrap failed:\n{done.stderr.strip()[-2000:]}")
            partial = path.with_suffix(".partial")
            _write(full, layer, partial)
            layer.unlink()
            partial.rename(path)
    return ImageFile(full, path)


def _write(name: str, layer: Path, to: Path) -> None:
    """A docker-archive of one layer."""
    with layer.open("rb") as file:
        difference = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    root = {"type": "layers", "diff_ids": [difference]}
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": root}
    written = json.dumps(config).encode()
    named = f"{hashlib.sha256(written).hexdigest()}.json"
    manifest = json.dumps([{"Config": named, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(to, mode="w") as tar:
        for member, content in ((named, written), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))
        tar.add(layer, "layer.tar")
