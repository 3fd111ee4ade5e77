"""What an API server sends about many objects: pages of a list, and the lines of a watch.

What cannot be understood is ``ListAgain``, which says what was wrong and never what was there: that may be a token.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import NamedTuple

from dlspawner.spawner.packed import Object, Packed, key_of, number, pack

LONGEST_LINE = 4 * 1024 * 1024  # bytes; Kubernetes keeps no object of more than 1.5 MiB

_NOT_UNDERSTOOD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class ListAgain(Exception):
    """Only a list can tell what there is now."""


class Change(NamedTuple):
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


def read_change(line: bytes) -> Change:
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
    return Change(kind, version, found)


def read_page(body: bytes, objects: dict[str, Packed]) -> tuple[str, str]:
    """Add a page's objects; the version of the list, and the token of its next page or nothing."""
    with uncollected():
        try:
            page = json.loads(body)
            objects.update((key_of(found), pack(found)) for found in page["items"])
            version, following = page["metadata"]["resourceVersion"], page["metadata"].get("continue") or ""
            del page
        except _NOT_UNDERSTOOD:
            raise ListAgain("a list cannot be understood") from None
    if not isinstance(version, str) or not isinstance(following, str):
        raise ListAgain("a list cannot be understood")
    return version, following


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
