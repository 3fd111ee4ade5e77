"""A file that an administrator may change at any time: read again when it is another one than before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import asyncssh

from ssh_gateway.keys import KeysUnusable

Content = TypeVar("Content")


@dataclass(slots=True)
class Watched(Generic[Content]):
    """``latest`` is what the file said when it could be read last; ``path`` None: what it is made with, for ever."""

    path: Path | None
    setting: str
    parse: Callable[[str], Content]  # ValueError or KeyImportError for what is no such file
    latest: Content
    _version: tuple[int, int, int] | None = field(default=None)

    def load(self) -> None:
        """Read the file if it has changed; KeysUnusable says what is wrong with it."""
        if self.path is None:
            return
        try:
            found = self.path.stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if version != self._version:
                self.latest = self.parse(self.path.read_text("utf-8"))
                self._version = version
        except (OSError, UnicodeDecodeError, asyncssh.KeyImportError, ValueError) as error:
            raise KeysUnusable(f"{self.path}: {error} (setting {self.setting})") from error


def lines(text: str) -> list[str]:
    """What is written in it, without comments and empty lines."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
