"""The folder of recordings: files that appear 0600 under a new name, and are written by one thread beside the loop.

Rules:

* What was shown is on the disk within `FLUSH_SECONDS`: a gateway that is killed leaves all lines but the last seconds'.
* Memory is bounded. Whoever produces more than the disk takes is held back by `Recording.behind`; whoever may not be
  (a key exchange goes on) loses the recording rather than the gateway its memory.
* A file never holds half a line: what could not be written whole is cut off again.
* The folder may hang, as network drives do: nothing but recorded terminals waits for it, and who asks for a new one no
  longer than `ANSWER_SECONDS`; while it still hangs after that, the next are told at once. The gateway begins and ends
  without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ssh_gateway import asciicast
from ssh_gateway.asciicast import Happening, Kind, Terminal, Writer
from ssh_gateway.hand import Hand
from ssh_gateway.logs import log, say

FLUSH_SECONDS = 1.0
FLUSH_BYTES = 64 * 1024
BEHIND = 512 * 1024
MOST_PENDING = 16 * 2**20
EVENT = 200  # bytes of memory that an event takes beside what was shown
END = 200  # bytes of a file that are left for its last lines
ANSWER_SECONDS = 5.0
CLOSE_SECONDS = 5.0
MOST_BYTES = 256 * 2**20

Answer = TypeVar("Answer")


class CannotRecord(Exception):
    """No recording can begin; the message is for the log, ``told`` for whoever wants a terminal."""

    told: ClassVar[str] = "tell your administrator"


class NoAnswer(CannotRecord):
    """The folder hangs."""

    told = "the folder for recordings does not answer; try again later, or tell your administrator"

    def __init__(self) -> None:
        super().__init__("Gateway.recordings_dir: no answer")


class File:
    """One recording's file; its methods are called in the folder's thread, one at a time."""

    def __init__(self, path: Path, header: bytes, most: int) -> None:
        """OSError when it cannot be made."""
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o600)
        self._most = most
        self._writer = Writer()
        self.size = 0
        try:
            self._write(header)
        except OSError:
            self.close()
            raise

    def add(self, happenings: Sequence[Happening]) -> bool:
        """Write what happened; whether all of it fitted. A file that is full ends with a marker that says so."""
        lines: list[bytes] = []
        free = self._most - self.size - END
        for happening in happenings:
            line = self._writer.line(happening)
            free -= len(line)
            if free < 0:
                lines.append(asciicast.event(Kind.MARKER, happening.seconds, asciicast.TRUNCATED))
                break
            lines.append(line)
        self._write(b"".join(lines))
        return free >= 0

    def finish(self, seconds: float) -> None:
        """The last line, if there is one to write."""
        self._write(self._writer.last(seconds))

    def close(self) -> None:
        os.close(self.descriptor)

    def discard(self) -> None:
        """Nobody waited for it."""
        with contextlib.suppress(OSError):
            self.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(content)


@dataclass(slots=True)
class Recording:
    """A terminal that is being recorded; `run` is the one task that writes."""

    path: Path
    file: File
    hand: Hand
    over: Callable[[str], None]  # told why, when the recording ends before its terminal
    eased: Callable[[], None]  # called when what was pending has been written
    result: str = "failed"  # until its file is closed
    why: str | None = "the gateway ended"
    _since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    _pending: list[Happening] = field(default_factory=list)
    _size: int = 0
    _ended: bool = False
    _stopped: bool = False
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None

    @property
    def behind(self) -> bool:
        """The disk is slower than the terminal."""
        return self._size > BEHIND

    def show(self, content: bytes) -> None:
        """This was sent to the terminal."""
        self._add(Kind.OUTPUT, content)

    def resize(self, size: tuple[int, int]) -> None:
        """The terminal has another size."""
        self._add(Kind.RESIZE, asciicast.size(size))

    def end(self) -> None:
        """The terminal is gone; what is pending is still written."""
        self._ended = True
        self._due.set()

    def _add(self, kind: Kind, content: bytes) -> None:
        if self._ended:
            return
        self._pending.append(Happening(kind, self._seconds(), content))
        self._size += len(content) + EVENT
        if self._size >= FLUSH_BYTES:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._due.set)
        if self._size > MOST_PENDING:
            self._stop("failed", "the disk is too slow")

    async def run(self) -> None:
        """Write until the terminal is gone, or the file is full, or cannot be written."""
        whole = False
        try:
            while not (self._ended and not self._pending):
                await self._due.wait()
                await self._flush()
            await self._in_thread(partial(self.file.finish, self._seconds()))
            whole = not self._stopped
        except OSError as error:
            self._stop("failed", error.strerror or str(error))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._close(whole=whole)

    async def _close(self, *, whole: bool) -> None:
        try:
            await self._in_thread(self.file.close)
        except OSError as error:  # a network's disk may say only now that it is full
            self._stop("failed", error.strerror or str(error))
        else:
            if whole:
                self.result, self.why = "complete", None

    async def _flush(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending, self._size = self._pending, [], 0
        fits = not pending or await self._in_thread(partial(self.file.add, pending))
        if not fits:
            self._stop("truncated", "it has reached the size that the gateway allows")
        self.eased()

    def _stop(self, result: str, why: str) -> None:
        """Nothing more is written; who is at the terminal is told if it is there still."""
        self._pending, self._size = [], 0
        self._stopped, self.result, self.why = True, result, why
        if not self._ended:
            self.end()
            self.over(why)
        self.eased()

    async def _in_thread(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.wrap_future(self.hand.submit(work))

    def _seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._since


class Recordings:
    """What all recordings of a gateway share; ``folder`` None: nothing can be recorded."""

    def __init__(
        self,
        folder: Path | None = None,
        most_bytes: int = MOST_BYTES,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.folder = folder
        self._most = most_bytes
        self._now = now
        self._hand = Hand("recordings")
        self._late: Future[Any] | None = None  # what the folder has not answered within its time
        self._tasks: dict[asyncio.Task[None], Recording] = {}

    @property
    def going_on(self) -> list[Recording]:
        """Whose files are not closed yet."""
        return list(self._tasks.values())

    def check(self) -> None:
        """Make the folder; OSError when no file could be made in it. One that hangs is for the log only."""
        if self.folder is None:
            return
        work = self._hand.submit(partial(_make_folder, self.folder))
        try:
            work.result(ANSWER_SECONDS)
        except TimeoutError:
            self._late = work
            say("recordings", level=logging.WARNING, result="no-answer", path=self.folder)

    def _hangs(self) -> bool:
        return self._late is not None and not self._late.done()

    async def begin(  # noqa: PLR0913, PLR0917  (whose terminal, what it is like, who wants to know)
        self,
        whose: Terminal,
        size: tuple[int, int],
        term: bytes,
        over: Callable[[str], None],
        eased: Callable[[], None],
        note: Callable[[Recording], None],
    ) -> Recording:
        """A recording that goes on until its `Recording.end`; ``note`` is called when its file is closed."""
        if self.folder is None:
            raise CannotRecord("there is no folder for recordings (setting Gateway.recordings_dir)")
        if self._hangs():
            raise NoAnswer
        began = self._now()
        path = self.folder / asciicast.name(whose, began)
        make = partial(File, path, asciicast.header(whose, size, term, began), self._most)
        try:
            file = await self._soon(make)
        except OSError as error:
            raise CannotRecord(f"Gateway.recordings_dir: {error}") from error
        recording = Recording(path, file, self._hand, over, eased)
        task = asyncio.create_task(recording.run(), name=f"record {path.name}")
        self._tasks[task] = recording
        task.add_done_callback(partial(self._done, note))
        return recording

    async def _soon(self, make: Callable[[], File]) -> File:
        """The file within its time; NoAnswer, and it is gone again if it is made after all, or nobody waits for it."""
        work = self._hand.submit(make)
        made = asyncio.wrap_future(work)
        try:
            await asyncio.wait({made}, timeout=ANSWER_SECONDS)
        except asyncio.CancelledError:
            made.add_done_callback(_ignore)
            work.add_done_callback(_discard)
            raise
        if made.done():
            return made.result()
        self._late = work
        made.add_done_callback(_ignore)
        work.add_done_callback(_discard)
        raise NoAnswer

    def _done(self, note: Callable[[Recording], None], task: asyncio.Task[None]) -> None:
        recording = self._tasks.pop(task)
        note(recording)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("recording %s ended by an error", recording.path.name, exc_info=problem)

    async def aclose(self) -> None:
        """Write what is pending, within a deadline."""
        for recording in self._tasks.values():
            recording.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        self._hand.stop()
        late = list(self._tasks)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)  # at once: the hand does nothing more
        if late:
            say("recordings", level=logging.WARNING, result="not-written", recordings=len(late))


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"no files can be made in {folder}")


def _discard(work: Future[File]) -> None:
    """Called in the thread that made it."""
    if not work.cancelled() and work.exception() is None:
        work.result().discard()


def _ignore(made: asyncio.Future[File]) -> None:
    """What came of it, nobody wants to know."""
    if not made.cancelled():
        made.exception()
