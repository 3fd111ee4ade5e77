"""Watches: a cursor into the store's history, not a queue per watcher.

A watcher that is slow, or away, costs nothing but its cursor; when the history no longer reaches back to it, it is told
410 Expired and lists again. Bytes of an event are those of the stored object: nothing is serialised per watcher, except
tables and the rare event of an object that leaves a selector.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from dlspawner.devcluster.api import errors
from dlspawner.devcluster.api.objects.resources import Resource
from dlspawner.devcluster.api.requests import Scope
from dlspawner.devcluster.api.store import Change, ChangeType, Store, Version, encode, type_header

_BOOKMARK_SECONDS = 60.0
_BATCH = 256 * 1024  # bytes that are joined into one write

Render = Callable[[Version], bytes]


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """`start` None: everything that exists comes first, as ADDED."""

    start: int | None
    bookmarks: bool
    initial_events: bool  # the client asked for them and wants a bookmark when they are over
    seconds: float


class Bell:
    """Wakes the watchers of a resource when something of it changes."""

    def __init__(self, store: Store) -> None:
        self._waiting: dict[Resource, set[asyncio.Event]] = {}
        store.listeners.append(self._ring)

    def _ring(self, change: Change) -> None:
        for event in self._waiting.get(change.version.resource, ()):
            event.set()

    def listen(self, resource: Resource) -> asyncio.Event:
        event = asyncio.Event()
        self._waiting.setdefault(resource, set()).add(event)
        return event

    def leave(self, resource: Resource, event: asyncio.Event) -> None:
        self._waiting[resource].discard(event)


@dataclass(slots=True, eq=False)  # a running thing: equal to itself only
class Watch:
    """One watch request. `render` makes an object's bytes (itself, or a table of one row)."""

    store: Store
    bell: Bell
    resource: Resource
    scope: Scope
    options: WatchOptions
    render: Render
    wake: asyncio.Event
    stopped: bool = False

    def stop(self) -> None:
        """Ends the stream soon: the client is gone or the server stops."""
        self.stopped = True
        self.wake.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Chunks of newline-separated events until time is up, `stop`, or the cursor falls out of the history."""
        end = time.monotonic() + self.options.seconds
        bookmark = time.monotonic() + _BOOKMARK_SECONDS
        cursor = self.store.revision if self.options.start is None else self.options.start
        for chunk in self._initial():
            yield chunk
        while not self.stopped:
            self.wake.clear()
            if cursor < self.store.floor:
                yield self._expired(cursor)
                return
            reached = self.store.revision
            for chunk in _joined(self._lines(cursor)):
                yield chunk
            cursor = max(cursor, reached)  # a version that is not there yet is waited for
            if self.options.bookmarks and time.monotonic() >= bookmark:
                yield self._bookmark(cursor)
                bookmark = time.monotonic() + _BOOKMARK_SECONDS
            if self.store.revision <= cursor and not await self._sleep(min(end, bookmark)) and time.monotonic() >= end:
                break
        if self.options.bookmarks and not self.stopped:
            yield self._bookmark(cursor)

    async def _sleep(self, until: float) -> bool:
        """Waits for something to happen; false when the time came first."""
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0)):
                await self.wake.wait()
        except TimeoutError:
            return False
        return True

    def _initial(self) -> list[bytes]:
        if self.options.start is not None and not self.options.initial_events:
            return []
        existing = self.store.objects(self.resource, self.scope.covers)
        lines = [_event(ChangeType.ADDED, self.render(version)) for version in existing]
        if self.options.initial_events:
            lines.append(self._bookmark(self.store.revision, initial_end=True))
        return _joined(lines)

    def _lines(self, cursor: int) -> list[bytes]:
        lines = [self._line(change) for change in self.store.changes_since(self.resource, cursor)]
        return [line for line in lines if line]

    def _line(self, change: Change) -> bytes:
        """Returns the change as this watcher sees it: objects enter and leave a selector."""
        before = change.previous is not None and self.scope.covers(change.previous)
        if change.type is ChangeType.DELETED:
            return _event(ChangeType.DELETED, self.render(change.version)) if before else b""
        if self.scope.covers(change.version):
            return _event(ChangeType.MODIFIED if before else ChangeType.ADDED, self.render(change.version))
        if not before or change.previous is None:
            return b""
        manifest = change.previous.read()
        manifest["metadata"]["resourceVersion"] = str(change.version.revision)
        return _event(ChangeType.DELETED, self.render(self.store.unwritten(self.resource, manifest)))

    def _bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        header = type_header(self.resource.kind, self.resource.api_version)
        return b'{"type":"BOOKMARK","object":' + header + b'"metadata":' + encode(metadata) + b"}}\n"

    def _expired(self, cursor: int) -> bytes:
        error = errors.expired(f"too old resource version: {cursor} ({self.store.floor})")
        return encode({"type": "ERROR", "object": error.status()}) + b"\n"


def _event(kind: ChangeType, body: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


def _joined(lines: list[bytes]) -> list[bytes]:
    """Few large writes instead of many small ones."""
    chunks, current, size = [], list[bytes](), 0
    for line in lines:
        current.append(line)
        size += len(line)
        if size >= _BATCH:
            chunks.append(b"".join(current))
            current, size = [], 0
    return [*chunks, b"".join(current)] if current else chunks
