"""Images as people bring them, for tests: nothing in them was made for us.

    test-debian        Debian's smallest, of the release that our own images stand on
    test-old-debian    the same of the release before, with an older libc than the one that our sshd was built with
    test-busybox       one static program under a few names: no libc, no bash, no passwd

Each is one layer that mmdebstrap made from Debian's usual mirror, in the user's cache.
"""

from __future__ import annotations

import hashlib
import subprocess

from tests.kubernetes import packages, product
from tests.kubernetes.build import Say, locked
from tests.kubernetes.images import Image, of_layer
from tests.kubernetes.instance import CannotRun, cache

_APPLETS = "sh sleep cat ls echo id tty stty dd cmp printf"
_HOOK = f'mkdir -p "$1/tmp"; chmod 1777 "$1/tmp"; for name in {_APPLETS}; do ln -s busybox "$1/bin/$name"; done'
RECIPES: dict[str, list[str]] = {
    "test-debian": ["--variant=minbase", "bookworm"],
    "test-old-debian": ["--variant=minbase", "bullseye"],
    "test-busybox": ["--variant=extract", "--include=busybox-static", f"--extract-hook={_HOOK}", "bookworm"],
}


def images(say: Say) -> list[Image]:
    """The images, made where there are none yet."""
    return [_image(name, recipe, say) for name, recipe in RECIPES.items()]


def _image(name: str, recipe: list[str], say: Say) -> Image:
    full = f"{product.PREFIX}/{name}:{product.tag()}"
    made_by = hashlib.sha256(repr((full, recipe)).encode()).hexdigest()[:16]
    layout = cache() / "images" / f"{name}-{made_by}"
    layout.mkdir(parents=True, exist_ok=True)
    stamp = layout / "manifest"
    with locked(layout / "lock", say, name):
        if not stamp.exists():
            stamp.write_text(of_layer(full, layout, _layer(name, recipe, say), {}).digest)
        return Image((full,), layout, stamp.read_text())


def _layer(name: str, recipe: list[str], say: Say) -> bytes:
    packages.install("mmdebstrap=mmdebstrap")
    say(f"Making the image {name} (once, half a minute) …")
    options = [f"--dpkgopt={option}" for option in product.SLIM]
    # The suite is followed by where the tar goes.
    command = ["mmdebstrap", "--mode=root", "--quiet", "--format=tar", *options, *recipe, "-"]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode:
        raise CannotRun(f"mmdebstrap failed:\n{done.stderr.decode(errors='replace').strip()[-2000:]}")
    return done.stdout
