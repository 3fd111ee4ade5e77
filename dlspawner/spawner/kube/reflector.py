"""A reflector of all objects of a kind: one consistent list in small pages, then one watch as long as the Hub runs.

Rules:

* A watch that ends, breaks or falls silent is resumed where it was. Objects are listed again only if the API server
  cannot resume (410), or if an answer cannot be read.
* A reflector never gives up: it waits for an API server that is away for an hour. Only the waiters for the first list
  get an exception, if the Hub may not see these objects.
* The event loop is never held for long: pages are small, objects are parsed one by one, and other tasks run whenever a
  slice of time is used up.
* No older version of an object replaces a newer one. (A Hub, as all clients, is restarted after its cluster was
  restored from a backup.)
* No part of an object is logged: pods contain tokens.

Objects are kept as JSON in bytes, and parsed at each access. A pod of 7 KiB is a tree of hundreds of Python objects,
34 KiB that every full garbage collection walks through; its bytes are one object that the collector does not see, and
parsing them takes less than a tenth of a millisecond. Each access returns a complete dictionary that belongs to the
caller, without ``managedFields``, which have no reader here.

Refused: KubeSpawner's loop, which lists everything every ten seconds in one piece, and halts the Hub half a minute
after the API server went away; ``sendInitialEvents``, which would save the pages, but is too new for many clusters;
dictionaries with fewer fields (a hook may read any); ``gc.freeze`` of the objects, which must be repeated after every
change, and hides the garbage of the whole process each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import random
import re
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

from aiohttp import ClientError, ClientResponse, ClientTimeout
from kubernetes_asyncio.client.rest import ApiException
from kubespawner.reflector import ResourceReflector
from traitlets import Int

from dlspawner.backoff import delays
from dlspawner.spawner.kube.errors import StartRefused

PAGE = 50  # objects: a third of a MiB, which the API server sends and we receive in one or two milliseconds
SLICE_SECONDS = 0.002
MOST_SECONDS = 5.0  # between two tries: one Hub is no load, and people wait for its watch
CONNECT_SECONDS = 15.0
SILENCE_SECONDS = 100.0  # bookmarks come every 60 to 75 seconds
BEGIN_SECONDS = 15.0  # until a watch begins, which takes an API server that is well a moment

_LATER = frozenset({429, 500, 502, 503, 504})  # statuses of a watch that can be resumed
_FAILED_WATCHES = 6  # in a row, before a list is tried instead
_STOP_SECONDS = 5.0


class WatchAnswered(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class ObjectReflector(ResourceReflector):
    """Follows the objects that ``kind``, ``namespace``, ``labels`` and ``fields`` describe.

    A subclass keeps them: ``on_list`` receives all objects at a version, ``on_event`` one change.
    """

    timeout_seconds = Int(
        300,
        min=0,
        config=True,
        help="""
        Seconds after which the API server is asked to end a watch, which is resumed then; up to half as many more are
        added at random so that not all of them end at once. 0 leaves it to the API server.
        """,
    )

    watch_task: asyncio.Task[None] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._version: str | None = None  # where a watch resumes; None: unknown, list
        self._failed_watches = 0
        self._progressed = False
        self._problem: str | None = None
        self._turn = 0.0

    @property
    def first_load_future(self) -> asyncio.Future[None]:
        """Done with the first list. Each reader gets a future of its own: cancelling one cancels no other."""
        if self._loaded.done():
            return self._loaded
        mine = asyncio.shield(self._loaded)
        mine.add_done_callback(lambda future: future.cancelled() or future.exception())
        return mine

    @first_load_future.setter
    def first_load_future(self, future: asyncio.Future[None]) -> None:
        self._loaded = future

    @property
    def where(self) -> str:
        return "all namespaces" if self.omit_namespace else f"namespace={self.namespace}"

    async def start(self) -> None:
        """Returns after the first list; StartRefused if the Hub may not list these objects."""
        if self.watch_task and not self.watch_task.done():
            raise RuntimeError(f"{self.kind} are followed already")
        self.log.info("kind=%s %s are followed", self.kind, self.where)
        keep_loaded()
        self.watch_task = asyncio.create_task(self._follow(), name=f"watch of {self.kind}")
        await self.first_load_future

    async def stop(self) -> None:
        task, self.watch_task = self.watch_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=_STOP_SECONDS)
        if not self._loaded.done():
            self._loaded.cancel()

    # For subclasses

    async def on_list(self, objects: dict[str, CompactObject], version: int) -> None:
        """Takes all objects at a version; objects that are known to be newer stay."""
        raise NotImplementedError

    def on_event(self, change: str, found: Object) -> None:
        """Takes an object that was ADDED, MODIFIED or DELETED."""
        raise NotImplementedError

    # Following

    async def _follow(self) -> None:
        pauses = delays(most=MOST_SECONDS)
        while True:
            self._progressed = False
            problem = await self._attempt()
            if self._progressed:
                pauses = delays(most=MOST_SECONDS)
            if problem is not None:
                pause = next(pauses)
                if problem != self._problem:
                    self.log.warning("kind=%s %s: %s", self.kind, self.where, problem)
                self._problem = problem
                await asyncio.sleep(pause)

    async def _attempt(self) -> str | None:
        """Lists if needed, and watches; returns the problem unless the API server has ended the watch."""
        try:
            if self._version is None:
                self._version = await self._list()
                self._succeeded()
            await self._watch(self._version)
        except ListAgain as unknown:
            self._version = None
            return f"{unknown}, everything is listed again"
        except WatchAnswered as answer:
            self._fail(answer.status)
            return f"the API server answered with {answer}"
        except (ClientError, OSError, TimeoutError) as problem:
            self._fail()
            return f"the API server cannot be reached: {type(problem).__name__}"
        except ApiException as problem:  # the client's own, before it has asked
            self._fail()
            return f"the API server cannot be asked: status {problem.status}"
        except Exception as problem:  # noqa: BLE001 - nothing else would start the watch again
            # Where it happened, and not what: a message may quote an object.
            frames = "".join(traceback.format_tb(problem.__traceback__))
            self.log.error("kind=%s %s: %s\n%s", self.kind, self.where, type(problem).__name__, frames)  # noqa: TRY400
            self._version = None
            return type(problem).__name__
        return None

    def _succeeded(self) -> None:
        if not self._loaded.done():
            self._loaded.set_result(None)
        elif not self._loaded.cancelled() and self._loaded.exception() is not None:
            self._loaded = asyncio.get_running_loop().create_future()
            self._loaded.set_result(None)

    def _fail(self, status: int | None = None) -> None:
        """Reports a list that is refused from the start to its waiters, and gives up a watch that keeps failing."""
        listing = self._version is None
        self._failed_watches += not listing
        if self._failed_watches >= _FAILED_WATCHES:
            self._version, self._failed_watches = None, 0
        if listing and status is not None and 400 <= status < 500 and status != 429 and not self._loaded.done():
            self.log.error("kind=%s %s: the Hub may not list them: status %d", self.kind, self.where, status)
            sentence = f"The Hub may not see its {self.kind}: ask an administrator."
            self._loaded.set_exception(StartRefused(sentence, reason="cluster-error", status=403))
            self._loaded.exception()  # there may be no waiter

    def _is_fine(self) -> None:
        """Notes that the watch has sent a readable line."""
        self._progressed, self._failed_watches = True, 0
        if self._problem is not None:
            self.log.info("kind=%s %s are followed again", self.kind, self.where)
            self._problem = None

    async def _ask(self, silence: float | None, begin: float | None, **options: Any) -> ClientResponse:
        """Returns the answer with its body unread, after ``begin`` seconds at most; the caller closes it."""
        if not self.omit_namespace:
            options["namespace"] = self.namespace
        async with asyncio.timeout(begin):
            response: ClientResponse = await getattr(self.api, self.list_method_name)(
                label_selector=self.label_selector,
                field_selector=self.field_selector,
                _preload_content=False,
                _request_timeout=ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence),
                **options,
            )
        if response.status != 200:
            response.close()
            if response.status == 410:
                raise ListAgain("the API server no longer knows what happened since")
            raise WatchAnswered(response.status)
        return response

    # The list

    async def _list(self) -> str:
        """Passes all objects to ``on_list``; returns their version."""
        objects: dict[str, CompactObject] = {}
        more: dict[str, str] = {}
        while True:
            page = ListPage(await self._page(more))
            while page.read(objects):
                await self.yield_loop()
            if not page.following:
                break
            more = {"_continue": page.following}
        await self.on_list(objects, number(page.version))
        return page.version

    async def _page(self, more: dict[str, str]) -> bytes:
        seconds = self.request_timeout or None
        response = await self._ask(seconds, seconds, limit=PAGE, **more)
        try:
            async with asyncio.timeout(seconds):
                return await response.read()
        finally:
            response.close()

    # The watch

    async def _watch(self, version: str) -> None:
        """Passes every change to ``on_event``; returns when the API server ends the watch."""
        options: dict[str, Any] = {}
        if self.timeout_seconds:
            options["timeout_seconds"] = round(self.timeout_seconds * random.uniform(1.0, 1.5))  # noqa: S311 - no secret
        try:
            response = await self._ask(
                *(SILENCE_SECONDS, min(self.request_timeout or BEGIN_SECONDS, BEGIN_SECONDS)),
                watch=True,
                allow_watch_bookmarks=True,
                resource_version=version,
                **options,
            )
        except WatchAnswered as answer:
            if answer.status in _LATER:
                raise
            raise ListAgain(f"the API server answered a watch with {answer}") from None
        try:
            async for line in lines(response.content.iter_any()):
                self._change(line)
                await self.yield_loop()
        except TimeoutError:
            self.log.debug("kind=%s %s: nothing was heard for %d s, resuming", self.kind, self.where, SILENCE_SECONDS)
        finally:
            response.close()
        self._failed_watches = 0
        if not self._progressed:
            await asyncio.sleep(1)  # a proxy may end every watch at once

    def _change(self, line: bytes) -> None:
        with uncollected():
            change = read_change(line)
            if change.kind in ("ADDED", "MODIFIED", "DELETED"):
                self.on_event(change.kind, change.found)
            self._version = change.version
            del change
        self._is_fine()

    async def yield_loop(self) -> None:
        """Lets other tasks run if the slice of time is used up; to be called after every object."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._turn > SLICE_SECONDS:
            await asyncio.sleep(0)
            self._turn = loop.time()


Object = Mapping[str, Any]

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class CompactObject(NamedTuple):
    """One object at one version; 0 if the version is not a number: then no version is older than another."""

    version: int
    raw: bytes
    about: str = ""  # of an event: the namespace/name of its object

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found

    def replaces(self, known: CompactObject | None) -> bool:
        """True if this version replaces the known one."""
        return known is None or not self.version or not known.version or self.version > known.version


def pack(found: Object) -> CompactObject:
    metadata = found.get("metadata") or {}
    if "managedFields" in metadata:
        found = {**found, "metadata": {name: part for name, part in metadata.items() if name != "managedFields"}}
    involved = found.get("involvedObject") or {}
    about = f"{involved.get('namespace')}/{involved.get('name')}" if involved else ""
    return CompactObject(
        number(metadata.get("resourceVersion")), _encode(found).encode("utf-8", "surrogatepass"), about
    )


def number(version: object) -> int:
    return int(version) if isinstance(version, str) and version.isdecimal() else 0


def key_of(found: Object) -> str:
    metadata = found["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


class CompactTable(MutableMapping[str, Object]):
    """A dictionary of objects. Each access returns a copy: changing it changes nothing here."""

    def __init__(self) -> None:
        self.kept: dict[str, CompactObject] = {}

    def __getitem__(self, key: str) -> Object:
        return self.kept[key].read()

    def __contains__(self, key: object) -> bool:
        return key in self.kept

    def __setitem__(self, key: str, found: Object) -> None:
        self.put(key, pack(found))

    def __delitem__(self, key: str) -> None:
        self.drop(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def __repr__(self) -> str:
        return f"<{len(self)} objects>"  # no object is logged

    def put(self, key: str, packed: CompactObject) -> None:
        self.kept[key] = packed

    def drop(self, key: str) -> None:
        del self.kept[key]


class LatestObjects(CompactTable):
    """The objects that were put here last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.kept: OrderedDict[str, CompactObject] = OrderedDict()
        self._most = most

    def put(self, key: str, packed: CompactObject) -> None:
        self.kept[key] = packed
        self.kept.move_to_end(key)
        if len(self.kept) > self._most:
            self.kept.popitem(last=False)


_ITEMS = re.compile(r'"items"\s*:\s*\[')  # nothing before it in a list can hold these letters
_decoder = json.JSONDecoder()


class ListAgain(Exception):
    """The watch cannot be resumed: the objects must be listed again."""


class WatchLine(NamedTuple):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK; a watch resumes after its version."""

    kind: str
    version: str
    found: Object


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yields the complete lines of a stream, without line ends; a last line that was cut off comes again later."""
    kept = bytearray()
    async for chunk in chunks:
        kept += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(kept).split(b"\n")
            kept = bytearray(rest)
            for line in whole:
                if line.strip():
                    yield line


def read_change(line: bytes) -> WatchLine:
    event = json.loads(line)
    kind, found = event["type"], event["object"]
    if kind == "ERROR":
        raise ListAgain(f"the watch was ended with status {number(str(found.get('code')))}")
    return WatchLine(kind, found["metadata"]["resourceVersion"], found)


class ListPage:
    """A page of a list, whose objects are parsed one by one; ``version`` and ``following`` are known after the last."""

    def __init__(self, body: bytes) -> None:
        self._text = body.decode("utf-8", "surrogatepass")
        start = _ITEMS.search(self._text)
        self._start = self._at = start.end() if start else 0
        self.version = self.following = ""

    def read(self, objects: dict[str, CompactObject]) -> bool:
        """Adds the next object; returns False if there is none."""
        with uncollected():
            return self._read(objects)

    def _read(self, objects: dict[str, CompactObject]) -> bool:
        self._skip(",")
        if self._start and self._text[self._at] != "]":
            found, self._at = _decoder.raw_decode(self._text, self._at)
            objects[key_of(found)] = pack(found)
            del found
            return True
        metadata = json.loads(self._text[: self._start] + self._text[self._at :])["metadata"]
        self.version, self.following = metadata["resourceVersion"], metadata.get("continue") or ""
        return False

    def _skip(self, what: str) -> None:
        while self._text[self._at : self._at + 1] in (what, " ", "\n", "\r", "\t"):
            self._at += 1


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Suspends garbage collection in the block, which must not await.

    Parsed objects that are dropped at once leave no garbage. If the collector ran meanwhile, it would count them as
    long-lived, and walk through the whole Hub after a few pages: a fifth of a second.
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
    """Excludes the objects that the Hub has loaded by now from full garbage collections, a sixth of a second each.

    Once in a process, at its first list. Cycles that exist at that moment are never collected; later ones are.
    """
    gc.freeze()
