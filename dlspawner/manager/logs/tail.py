"""The end of a log, in bounded memory, and how a log that is read again goes on where the last reading ended. PURE.

Kubernetes gives a log from a time on, to the second; with time stamps, one at the beginning of each line, what is known
already can be told from what is new. Several lines may have one stamp, so those of the last one are counted. A line
whose end has not been printed is nobody's yet: it is read again, whole, unless its container has ended. So is a private
key, from its first line on: whoever began in the middle of it would not know that it is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from dlspawner.manager.logs.text import Redactor

LINES = 50_000  # of one reading; what is kept of a log has seldom as many
_LONGEST_HELD = 64 * 1024
_LONGEST_STAMP = 40


@dataclass(frozen=True, slots=True)
class LogMark:
    """Up to where a log is known: the stamp of the last line, and how many lines with it."""

    stamp: str = ""
    lines: int = 0


class TailBuffer:
    """The last bytes of what is put in; `lost` says that there was more."""

    def __init__(self, most: int) -> None:
        self._most, self._parts, self._size = most, deque[bytes](), 0
        self.lost = False

    def put(self, data: bytes) -> None:
        if not data:
            return
        self._parts.append(data)
        self._size += len(data)
        while self._size - len(self._parts[0]) >= self._most:
            self._size -= len(self._parts.popleft())
            self.lost = True

    def take(self) -> bytes:
        """All of it; where something before it is lost it begins with a line, if one begins in its first half."""
        text = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        self.lost = self.lost or len(text) > self._most
        if not self.lost:
            return text
        text = text[-self._most :]
        at = text.find(b"\n") + 1
        return text[at:] if at <= len(text) // 2 else text


class StampedLog:
    """Takes a log with time stamps, piece by piece; what is new of it, without stamps and secrets, is in `take`.

    ``tail`` is how many of its last lines were asked for; 0 for what goes on where `known` ends, line by line.
    """

    def __init__(self, known: LogMark, secrets: Iterable[bytes], most: int, tail: int = LINES) -> None:
        self._known, self._mark, self._repeated = known, known, 0
        self._masker, self._lines, self._line = Redactor(secrets, middle=tail > 0), TailBuffer(most), TailBuffer(most)
        self._tail, self._read, self._follows = tail, 0, False
        self._rest = b""
        self._inside = self._skips = False
        self._pending = known  # the mark when the line that is being read has ended

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._put(line + b"\n")
            self._end_line()
        self._rest = rest
        if len(rest) > _LONGEST_HELD:
            self._put(rest)
            self._rest = b""

    def news(self) -> bytes:
        """What has come since this was last asked, as far as it may be shown by now."""
        return self._lines.take()

    def take(self, *, ended: bool) -> tuple[bytes, LogMark, bool]:
        """What is new, up to where the log is known by now, and whether more was printed than was kept."""
        if ended and (self._rest or self._inside):
            self._put(self._rest)
            self._end_line()
        if ended or not self._masker.inside:
            self._mark = self._pending if ended else self._mark
            self._lines.put(self._masker.end(cut=self._cut))
        return self._lines.take(), self._mark, self._lines.lost

    @property
    def _cut(self) -> bool:
        """Whether lines may be missing before the first new one: too many, or those that a node has thrown away."""
        return not self._follows and (bool(self._known.stamp) or self._read >= self._tail)

    def _put(self, part: bytes) -> None:
        if not self._inside:
            self._inside = True
            stamp, _, part = part.partition(b" ")
            self._skips = self._knows(in_utc(stamp[:_LONGEST_STAMP].decode("ascii", "replace").strip()))
        if not self._skips:
            self._line.put(part)

    def _knows(self, stamp: str) -> bool:
        again = stamp == self._known.stamp and self._repeated < self._known.lines
        self._repeated += again
        if again or stamp < self._known.stamp:
            self._follows = True
            return True
        same = stamp == self._pending.stamp
        self._pending = LogMark(stamp, self._pending.lines + 1 if same else 1)
        return False

    def _end_line(self) -> None:
        self._read += 1
        if not self._skips:
            lost = self._line.lost
            self._lines.put(self._masker.feed(self._line.take()))
            if not self._masker.inside:
                self._mark = self._pending
            self._lines.lost |= lost or self._line.lost
            self._line.lost = False
        self._inside = False


def in_utc(stamp: str) -> str:
    """A stamp in a form that sorts by time; nodes may have any time zone."""
    if stamp.endswith("Z"):
        whole, _, part = stamp[:-1].partition(".")
        return f"{whole}.{part:0<9}Z"
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
    except (ValueError, OverflowError):
        return stamp
