"""Which sources the built module for JupyterLab was made of: `make labextension` notes it, and a test compares."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "jupyter_extension"
NOTE = FOLDER / "labextension" / "sources.sha256"


def digest() -> str:
    files = [*sorted((FOLDER / "src").iterdir()), *(FOLDER / name for name in ("package.json", "package-lock.json"))]
    content = b"".join(file.name.encode() + b"\0" + file.read_bytes() for file in [*files, FOLDER / "tsconfig.json"])
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    NOTE.write_text(digest() + "\n", encoding="utf-8")
