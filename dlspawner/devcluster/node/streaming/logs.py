"""Container logs: written as CRI files, bounded, read with everything `kubectl logs` may ask.

A line is ``TIME STREAM TAG MESSAGE``; tag P marks a line that was cut at 16 KiB, as container runtimes do. A file
is rotated at 10 MiB and three are kept, so a chatty container cannot fill the disk.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROTATE_BYTES = 10 * 2**20
KEPT_FILES = 3
CUT = 16 * 1024


@dataclass(frozen=True, slots=True)
class Query:
    """`kubectl logs`' options; None is "all"."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None


class LogFile:
    """The log of one run of one container."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._pending = {"stdout": b"", "stderr": b""}
        self._waiting: set[asyncio.Future[None]] = set()
        self.rotations = 0
        self.closed = False

    def write(self, stream: str, data: bytes) -> None:
        """Append what a container printed; the last incomplete line waits for its end."""
        *lines, rest = (self._pending[stream] + data).split(b"\n")
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode() + b" " + stream.encode()
        parts: list[bytes] = []
        for line in lines:
            _cut(parts, line, stamp)
        while len(rest) >= CUT:
            parts.append(stamp + b" P " + rest[:CUT] + b"\n")
            rest = rest[CUT:]
        self._pending[stream] = rest
        self._append(b"".join(parts))

    def close(self) -> None:
        """The container has ended: what it printed last is a line too."""
        for stream, rest in self._pending.items():
            if rest:
                self.write(stream, b"\n")
        if not self.closed:
            self.closed = True
            os.close(self._fd)
        self._wake()

    async def changed(self) -> None:
        """Until something was written or the log was closed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _append(self, data: bytes) -> None:
        if not data or self.closed:
            return
        if self._size + len(data) > ROTATE_BYTES:
            self._rotate()
        os.write(self._fd, data)
        self._size += len(data)
        self._wake()

    def _rotate(self) -> None:
        for number in range(KEPT_FILES - 2, 0, -1):
            older = _numbered(self.path, number)
            if older.exists():
                older.rename(_numbered(self.path, number + 1))
        self.path.rename(_numbered(self.path, 1))
        os.close(self._fd)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = 0
        self.rotations += 1

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


def pump(fd: int, sink: Callable[[bytes], None]) -> asyncio.Future[None]:
    """Hand everything that comes out of a pipe to ``sink``; the future is done, and ``fd`` closed, at its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    os.set_blocking(fd, False)

    def readable() -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        except OSError:  # EIO: the other end of a terminal was closed
            data = b""
        if data:
            sink(data)
            return
        loop.remove_reader(fd)
        os.close(fd)
        if not done.done():
            done.set_result(None)

    loop.add_reader(fd, readable)
    return done


async def read(path: Path, live: LogFile | None, query: Query) -> AsyncIterator[bytes]:
    """The log's text in chunks; with ``follow`` until the live log closes."""
    left = query.limit_bytes
    rotations = live.rotations if live else 0
    chunks, offset = await asyncio.to_thread(_existing, path, query)
    while True:
        for chunk in chunks:
            part = chunk if left is None else chunk[:left]
            if part:
                yield part
            if left is not None:
                left -= len(part)
                if left <= 0:
                    return
        if not query.follow or live is None:
            return
        if live.rotations != rotations:
            # Lines that were rotated away between two reads are in the file before.
            before = _numbered(path, 1) if live.rotations == rotations + 1 else path
            chunks, _ = _from(before, offset if before != path else 0, query)
            rotations, offset = live.rotations, 0
            continue
        chunks, moved = _from(path, offset, query)
        if moved == offset:
            if live.closed:
                return
            await live.changed()
        offset = moved


def tail(path: Path, *, lines: int, size: int) -> str:
    """The end of a log, for a termination message."""
    chunks, _ = _existing(path, Query(tail=lines))
    return b"".join(chunks)[-size:].decode(errors="replace")


def _cut(parts: list[bytes], line: bytes, stamp: bytes) -> None:
    while len(line) > CUT:
        parts.append(stamp + b" P " + line[:CUT] + b"\n")
        line = line[CUT:]
    parts.append(stamp + b" F " + line + b"\n")


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _existing(path: Path, query: Query) -> tuple[list[bytes], int]:
    selected: deque[bytes] | list[bytes] = [] if query.tail is None else deque(maxlen=query.tail)
    offset = 0
    for file in [*(_numbered(path, number) for number in range(KEPT_FILES - 1, 0, -1)), path]:
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            continue
        selected.extend(_render(data, query))
        offset = len(data)
    return list(selected), offset


def _from(path: Path, offset: int, query: Query) -> tuple[list[bytes], int]:
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(2**20)
    data = data[: data.rfind(b"\n") + 1]
    text = b"".join(_render(data, query))
    return [text] if text else [], offset + len(data)


def _render(data: bytes, query: Query) -> Iterator[bytes]:
    since = query.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").encode() if query.since else b""
    whole = True
    for line in io.BytesIO(data):  # by line feeds alone: splitlines() breaks at a progress bar's carriage returns, too
        stamp, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, message = rest.partition(b" ")
        if stamp < since:
            continue
        prefix = stamp + b" " if query.timestamps and whole else b""
        whole = tag == b"F"
        yield prefix + (message if whole else message[:-1])
