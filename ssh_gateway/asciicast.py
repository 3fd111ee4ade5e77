"""What a terminal showed, in asciinema's format (asciicast v2): a header, then one JSON array a line. Pure.

Rules:

* What is typed is never in it, only what is shown: passwords are typed where nothing is shown.
* What a job writes is bytes that somebody has cut into packets. A letter that two packets share is one letter; what is
  no UTF-8 is the replacement character. JSON escapes every control character, so a line of the file is always an event.
* Nothing in a file's name is anybody's text: names become slugs, which hold letters, digits and hyphens.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from dlspawner.core.naming import slug

LARGEST_SCREEN = 9999
USUAL_SCREEN = (80, 24)
LONGEST_TEXT = 300
TRUNCATED = "truncated: the recording has reached the size that the gateway allows"


class Kind(Enum):
    """What an event says; the values are asciicast's."""

    OUTPUT = "o"
    RESIZE = "r"
    MARKER = "m"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Whose terminal, in which server, and the connection's ``nth`` on its ``channel``; ``conn`` is the log's."""

    user: str
    server: str
    conn: str
    channel: int
    nth: int = 1


@dataclass(frozen=True, slots=True)
class Happening:
    """``content`` is what was shown, or a size as ``80x24``; ``seconds`` count from the beginning."""

    kind: Kind
    seconds: float
    content: bytes


@dataclass(slots=True)
class Writer:
    """Lines of events, in the order in which they happened; remembers the letter that is not whole yet."""

    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def line(self, happening: Happening) -> bytes:
        """One event; nothing while all of it is a part of a letter."""
        if happening.kind is not Kind.OUTPUT:
            return event(happening.kind, happening.seconds, happening.content.decode("ascii", "replace"))
        text = self._decoder.decode(happening.content)
        return event(Kind.OUTPUT, happening.seconds, text) if text else b""

    def last(self, seconds: float) -> bytes:
        """What a letter that never became whole leaves at the end."""
        text = self._decoder.decode(b"", final=True)
        return event(Kind.OUTPUT, seconds, text) if text else b""


def header(whose: Terminal, size: tuple[int, int], term: bytes, began: datetime) -> bytes:
    """The first line of a file."""
    columns, rows = shown(size)
    said = {
        "version": 2,
        "width": columns,
        "height": rows,
        "timestamp": int(began.timestamp()),
        "title": f"{whose.user}+{whose.server} {whose.conn}"[:LONGEST_TEXT],
        "env": {"TERM": term[:64].decode("ascii", "replace")},
    }
    return _line(said)


def event(kind: Kind, seconds: float, text: str) -> bytes:
    """One line."""
    return _line([round(seconds, 6), kind.value, text])


def size(columns_and_rows: tuple[int, int]) -> bytes:
    """A size as a RESIZE has it."""
    return "{}x{}".format(*shown(columns_and_rows)).encode("ascii")


def shown(size: tuple[int, int]) -> tuple[int, int]:
    """A size that players can show; clients may say 0 for what they do not know."""
    columns, rows = (min(one, LARGEST_SCREEN) or usual for one, usual in zip(size, USUAL_SCREEN, strict=True))
    return columns, rows


def name(whose: Terminal, began: datetime) -> str:
    """A file's name: date, user, server, connection, channel, and which of that channel's terminals it is."""
    server = slug(whose.server) if whose.server else "default"
    when = began.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{when}_{slug(whose.user)}_{server}_{slug(whose.conn)}_{whose.channel}_{whose.nth}.cast"


def _line(value: object) -> bytes:
    # Names that a Hub lets in may hold halves of letters, which UTF-8 has no bytes for.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
