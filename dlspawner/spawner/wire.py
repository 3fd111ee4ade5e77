"""What an API server sends about many objects: pages of a list, and the lines of a watch.

What cannot be understood is ``ListAgain``, which says what was wrong and never what was there: that may be a token.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import NamedTuple

from dlspawner.spawner.packed import CompactObject, Object, key_of, number, pack

LONGEST_LINE = 4 * 1024 * 1024  # bytes; Kubernetes keeps no object of more than 1.5 MiB

_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_ITEMS = re.compile(r'"items"\s*:\s*\[')  # nothing before it in a list can hold these letters
_decoder = json.JSONDecoder()


class ListAgain(Exception):
    """Only a list can tell what there is now."""


class WatchLine(NamedTuple):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK; a watch resumes after its version."""

    kind: str
    version: str
    found: Object


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The whole lines of a stream, without their ends. What follows the last of them was cut off: it comes again."""
    kept = bytearray()
    async for chunk in chunks:
        kept += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(kept).split(b"\n")
            kept = bytearray(rest)
            for line in whole:
                if line.strip():
                    yield line
        if len(kept) > LONGEST_LINE:
            raise ListAgain("a line of the watch is too long")


def read_change(line: bytes) -> WatchLine:
    try:
        event = json.loads(line)
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            raise ListAgain(f"the watch was ended with status {number(str(found.get('code')))}")
        version = found["metadata"]["resourceVersion"]
        if kind != "BOOKMARK":
            key_of(found)
    except _NOT_UNDERSTOOD:
        raise ListAgain("a line of the watch cannot be understood") from None
    if not isinstance(version, str) or not version:
        raise ListAgain("a line of the watch has no version")
    return WatchLine(kind, version, found)


class ListPage:
    """A page of a list, whose objects are parsed one after the other; then come the list's version and next token."""

    def __init__(self, body: bytes) -> None:
        self._text = body.decode("utf-8", "surrogatepass")
        start = _ITEMS.search(self._text)
        self._start = self._at = start.end() if start else 0
        self.version = self.following = ""

    def read(self, objects: dict[str, CompactObject]) -> bool:
        """Add the next object; false, and the rest is known, when there is none."""
        try:
            with uncollected():
                return self._read(objects)
        except _NOT_UNDERSTOOD:
            raise ListAgain("a list cannot be understood") from None

    def _read(self, objects: dict[str, CompactObject]) -> bool:
        self._skip(",")
        if self._start and self._text[self._at] != "]":
            found, self._at = _decoder.raw_decode(self._text, self._at)
            objects[key_of(found)] = pack(found)
            del found
            return True
        rest = json.loads(self._text[: self._start] + self._text[self._at :])
        if rest["items"]:
            raise ValueError
        metadata = rest["metadata"]
        self.version, self.following = metadata["resourceVersion"], metadata.get("continue") or ""
        if not isinstance(self.version, str) or not isinstance(self.following, str):
            raise ValueError  # noqa: TRY004 - what is wrong with it is nobody's concern
        return False

    def _skip(self, what: str) -> None:
        while self._text[self._at : self._at + 1] in (what, " ", "\n", "\r", "\t"):
            self._at += 1


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection in here, where nothing may be awaited.

    What is parsed and let go again leaves nothing behind; what lives while the collector looks counts as having come to
    stay, and after a few pages it walks through the whole Hub: a fifth of a second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def keep_loaded() -> None:
    """What the Hub has loaded by now stays, and no full garbage collection walks through it: a sixth of a second each.

    Once in a process, at its first list. Garbage that holds itself (a cycle) is never collected when it is in memory at
    that moment, whether it is garbage then already or becomes it later; nor is what it holds. What is made later is.
    """
    gc.freeze()
