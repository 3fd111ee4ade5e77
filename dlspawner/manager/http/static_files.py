"""The files below static/: those of JupyterHub that its pages load, and our own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jupyterhub._data import DATA_FILES_PATH

_ICONS = "components/@fortawesome/fontawesome-free"
_PATHS = (
    "css/style.min.css",
    f"{_ICONS}/css/fontawesome.css",  # which the style sheet imports
    f"{_ICONS}/css/solid.css",
    f"{_ICONS}/webfonts/fa-solid-900.woff2",
    "components/bootstrap/dist/js/bootstrap.bundle.min.js",
    "components/requirejs/require.js",
    "js/darkmode.js",
)
# uPlot, as its npm package has it: hub_config/images/proxy/package.json pins it.
_OWN = Path(__file__).with_name("static")
_KINDS = {".css": "text/css", ".js": "text/javascript", ".woff2": "font/woff2"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """``version`` is another one whenever the content is."""

    kind: str
    content: bytes
    version: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Returns the files by their path below the Hub's static folder, or their own name; less than a MiB.

    Files that this version of JupyterHub lacks are left out.
    """
    folder = Path(DATA_FILES_PATH) / "static"
    own = {path.name: _read(path) for path in _OWN.iterdir() if path.suffix in _KINDS}
    return own | {path: _read(folder / path) for path in _PATHS if (folder / path).is_file()}


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(_KINDS[path.suffix], content, hashlib.sha256(content).hexdigest()[:16])
