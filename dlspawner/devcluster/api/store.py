"""Where objects are kept: one SQLite file, and the same in memory.

The file is a log. A write appends one row (revision, key, what happened, the object); the revision is the object's
resourceVersion and never goes back, not even after a restart or when the newest object is deleted (AUTOINCREMENT). The
latest row of a key is its object; the rows since `floor` are the history from which watches resume. Compaction raises
the floor and drops the rows that something before it has replaced: etcd's model, in a hundred lines of SQL-free Python.

An object is kept as the JSON bytes that go out on the wire, without `kind` and `apiVersion`, so that a list is a join
and an event is serialised once for all its watchers. `Version.read()` returns a fresh dictionary every time: no caller
can change the stored object by accident.

Durability: WAL with synchronous=NORMAL survives SIGKILL of the process; a power cut may lose the last moments. One
process owns the file (exclusive lock). Everything is synchronous, so one call is one transaction and, in a
single-threaded server, atomic towards every other request.
"""

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from dlspawner.devcluster.api.objects.resources import BY_QUALIFIED, RESOURCES, Resource

Object = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for cluster-wide kinds) and name

WINDOW = 10_000  # revisions that watches can go back
_COMPACT_EVERY = 1_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
    revision INTEGER PRIMARY KEY AUTOINCREMENT,
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, change TEXT NOT NULL, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class StateInUse(Exception):
    """Another process owns the state directory."""


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Version:
    """One object at one revision."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    revision: int
    body: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    owners: tuple[str, ...]  # uids

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    def read(self) -> Object:
        header = {"kind": self.resource.kind, "apiVersion": self.resource.api_version}
        content: Object = json.loads(self.body)
        return header | content

    def wire(self) -> bytes:
        """The whole object, with its kind."""
        return type_header(self.resource.kind, self.resource.api_version) + self.body[1:]


@dataclass(frozen=True, slots=True)
class Change:
    type: ChangeType
    version: Version
    previous: Version | None


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def type_header(kind: str, api_version: str) -> bytes:
    return b'{"kind":"%s","apiVersion":"%s",' % (kind.encode(), api_version.encode())


@dataclass(slots=True)
class _Shelf:
    """Everything of one resource: objects now, and what happened since the floor."""

    objects: dict[Key, Version] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)  # of `changes`, for bisection


class Store:
    """All objects. Listeners are called after a change is on disk, in order, and must not fail."""

    def __init__(self, path: Path) -> None:
        self.listeners: list[Callable[[Change], None]] = []
        self._shelves = {resource: _Shelf() for resource in RESOURCES}
        self._database = _open(path)
        self.revision = 0
        self.floor = 0
        self._load()

    def close(self) -> None:
        self._database.close()

    def get(self, resource: Resource, namespace: str, name: str) -> Version | None:
        return self._shelves[resource].objects.get((namespace, name))

    def objects(self, resource: Resource, covers: Callable[[Version], bool] | None = None) -> list[Version]:
        """Objects, all or those that are covered, in the order of their keys."""
        return sorted(filter(covers, self.values(resource)), key=lambda version: version.key)

    def in_namespace(self, resource: Resource, namespace: str) -> list[Version]:
        return self.objects(resource, lambda version: version.namespace == namespace)

    def values(self, resource: Resource) -> Iterator[Version]:
        """Objects in no particular order."""
        return iter(self._shelves[resource].objects.values())

    def changes_since(self, resource: Resource, revision: int) -> list[Change]:
        """Returns the changes of a resource after a revision that is not below `floor`."""
        shelf = self._shelves[resource]
        return shelf.changes[bisect_right(shelf.revisions, revision) :]

    def put(self, resource: Resource, manifest: Object) -> Version:
        """Writes an object, new or changed, and stamps it with the next revision."""
        revision = self.revision + 1
        manifest["metadata"]["resourceVersion"] = str(revision)
        version = _version(resource, manifest, revision)
        previous = self._shelves[resource].objects.get(version.key)
        self._record(Change(ChangeType.MODIFIED if previous else ChangeType.ADDED, version, previous))
        return version

    @staticmethod
    def unwritten(resource: Resource, manifest: Object) -> Version:
        """The version that a dry run answers with."""
        return _version(resource, manifest, 0)

    def remove(self, version: Version, manifest: Object | None = None) -> Version:
        """Deletes an object; watchers see it in its last form (`manifest`, when that is newer than what is stored)."""
        last = manifest or version.read()
        last["metadata"]["resourceVersion"] = str(self.revision + 1)
        gone = _version(version.resource, last, self.revision + 1)
        self._record(Change(ChangeType.DELETED, gone, version))
        return gone

    def _record(self, change: Change) -> None:
        version = change.version
        self._database.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)",
            (version.revision, version.resource.qualified, *version.key, change.type.value, version.body),
        )
        self._apply(change)
        if self.revision - self.floor >= WINDOW + _COMPACT_EVERY:
            self._compact(self.revision - WINDOW)
        for listener in self.listeners:
            listener(change)

    def _apply(self, change: Change) -> None:
        version = change.version
        shelf = self._shelves[version.resource]
        if change.type is ChangeType.DELETED:
            del shelf.objects[version.key]
        else:
            shelf.objects[version.key] = version
        shelf.changes.append(change)
        shelf.revisions.append(version.revision)
        self.revision = version.revision

    def _compact(self, floor: int) -> None:
        superseded = []
        for shelf in self._shelves.values():
            cut = bisect_right(shelf.revisions, floor)
            for change in shelf.changes[:cut]:
                if change.previous is not None:
                    superseded.append((change.previous.revision,))
                if change.type is ChangeType.DELETED:
                    superseded.append((change.version.revision,))
            del shelf.changes[:cut], shelf.revisions[:cut]
        with self._database:
            self._database.execute("BEGIN")
            self._database.executemany("DELETE FROM log WHERE revision = ?", superseded)
            self._database.execute("INSERT OR REPLACE INTO facts VALUES ('floor', ?)", (str(floor),))
        self.floor = floor

    def _load(self) -> None:
        found = self._database.execute("SELECT value FROM facts WHERE name = 'floor'").fetchone()
        self.floor = int(found[0]) if found else 0
        rows = self._database.execute("SELECT revision, resource, change, body FROM log ORDER BY revision")
        for revision, qualified, change, body in rows:
            resource = BY_QUALIFIED.get(qualified)
            if resource is None:
                continue  # written by a release that served more kinds
            version = _version(resource, json.loads(body), revision)
            shelf = self._shelves[resource]
            if revision <= self.floor:
                shelf.objects[version.key] = version
            else:
                self._apply(Change(ChangeType(change), version, shelf.objects.get(version.key)))
        used = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
        self.revision = int(used[0]) if used else 0


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, timeout=1)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_SCHEMA)
    except sqlite3.OperationalError as error:
        database.close()
        if "locked" in str(error):
            raise StateInUse(f"another API server is using {path.parent}") from error
        raise
    return database


def _version(resource: Resource, manifest: Object, revision: int) -> Version:
    metadata = manifest["metadata"]
    body = encode({key: value for key, value in manifest.items() if key not in ("kind", "apiVersion")})
    return Version(
        resource=resource,
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        revision=revision,
        body=body,
        labels=metadata.get("labels") or {},
        fields=_fields(resource, manifest),
        owners=tuple(owner["uid"] for owner in metadata.get("ownerReferences") or ()),
    )


def _fields(resource: Resource, manifest: Object) -> dict[str, str]:
    fields = {path: _text(manifest, path) for path in resource.fields}
    fields["metadata.name"] = manifest["metadata"]["name"]
    fields["metadata.namespace"] = manifest["metadata"].get("namespace", "")
    return fields


def _text(manifest: Object, path: str) -> str:
    """Returns the value that a field selector compares: the empty string for a missing field."""
    value: Any = manifest
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if path == "source":
        value = (manifest.get("source") or {}).get("component") or manifest.get("reportingComponent")
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
