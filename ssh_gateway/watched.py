"""A file that an administrator may change at any time: read again when it is another one than before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from ssh_gateway.keys import KeysUnusable

Content = TypeVar("Content")
Read = TypeVar("Read")
_KRL = b"SSHKRL\n\0"  # OpenSSH's PROTOCOL.krl


@dataclass(slots=True)
class WatchedFile(Generic[Content]):
    """``latest`` is what the file said when it could be read last; ``path`` None: what it is made with, for ever."""

    path: Path | None
    setting: str
    parse: Callable[[str], Content]  # ValueError for what is no such file
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
                self.latest = self.parse(_text(self.path.read_bytes()))
                self._version = version
        except (OSError, ValueError) as error:
            raise KeysUnusable(f"{self.path}: {error} (setting {self.setting})") from error


def _text(content: bytes) -> str:
    if content.startswith(_KRL):
        raise ValueError("this is a binary KRL: give the text from which ssh-keygen -k makes one")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("this is no text") from error


def each_line(text: str, read: Callable[[str], Read]) -> list[Read]:
    """What every line says, without comments and empty ones; ValueError with the number of one that says nothing."""
    found = list[Read]()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        try:
            found.append(read(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return found
