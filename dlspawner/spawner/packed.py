"""Kubernetes objects as a Hub keeps thousands of them: JSON in bytes, parsed when somebody looks.

A pod of 7 KiB is a tree of hundreds of Python objects, 34 KiB that every full garbage collection walks through. Its
bytes are one object that the collector does not see, and parsing them takes less than a tenth of a millisecond. Who
looks gets a whole, ordinary dictionary of their own; only ``managedFields``, which nobody here reads, are left out.

Refused: dictionaries with fewer fields (a hook may read any) and ``gc.freeze`` of the objects (it must be repeated
after every change, and hides everybody's garbage each time).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

Object = Mapping[str, Any]

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class CompactObject(NamedTuple):
    """One object at one version; 0 where the version is not a number, and then no version is older than another."""

    version: int
    raw: bytes
    about: str = ""  # namespace/name of what an event tells of

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found

    def replaces(self, known: CompactObject | None) -> bool:
        """Whether this is news to who knows that."""
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
    """A dictionary of objects. What is read from it is the reader's own: changing it changes nothing here."""

    def __init__(self) -> None:
        self.kept: dict[str, CompactObject] = {}

    def __getitem__(self, key: str) -> Object:
        return self.kept[key].read()

    def __contains__(self, key: object) -> bool:
        return key in self.kept

    def __setitem__(self, key: str, found: Object) -> None:
        self.put(key, pack(found))

    def __delitem__(self, key: str) -> None:
        if key not in self.kept:
            raise KeyError(key)
        self.drop(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def __repr__(self) -> str:
        return f"<{len(self)} objects>"  # what is in them is in no log

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
