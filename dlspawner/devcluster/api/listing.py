"""Lists: which objects, in pages that all show the same moment.

A continue token names a revision and the key that comes next. The objects of that moment are kept in memory for a few
minutes (they are immutable and mostly shared with the store); when they are gone the answer is 410 Expired, and clients
start again, as they do on Kubernetes.
"""

import base64
import json
import time
from collections import OrderedDict
from dataclasses import dataclass

from dlspawner.devcluster.api import errors
from dlspawner.devcluster.api.objects.resources import Target
from dlspawner.devcluster.api.requests import Scope
from dlspawner.devcluster.api.store import Key, Object, Store, Version, encode, type_header

_KEPT = 32
_KEPT_SECONDS = 300.0
_PagingKey = tuple[Target, Scope, int]


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Version]
    revision: int
    proceed: str = ""
    remaining: int | None = None

    def metadata(self) -> Object:
        metadata: Object = {"resourceVersion": str(self.revision)}
        if self.proceed:
            metadata["continue"] = self.proceed
        if self.remaining is not None:
            metadata["remainingItemCount"] = self.remaining
        return metadata


class Lister:
    """Answers lists and remembers, for a while, what the next page of a list needs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[_PagingKey, tuple[float, list[Version]]] = OrderedDict()

    def page(self, target: Target, scope: Scope, limit: int = 0, proceed: str = "") -> Page:
        if not proceed:
            revision, start = self._store.revision, None
            everything = self._store.objects(target.resource, scope.covers)
        else:
            revision, start = _read_token(proceed)
            everything = self._snapshot((target, scope, revision))
        rest = everything if start is None else [version for version in everything if version.key >= start]
        if limit <= 0 or len(rest) <= limit:
            return Page(rest, revision)
        self._keep((target, scope, revision), everything)
        selected = bool(scope.labels or scope.fields)
        remaining = None if selected else len(rest) - limit
        return Page(rest[:limit], revision, _write_token(revision, rest[limit].key), remaining)

    def _keep(self, key: _PagingKey, versions: list[Version]) -> None:
        self._snapshots[key] = (time.monotonic() + _KEPT_SECONDS, versions)
        self._snapshots.move_to_end(key)
        while len(self._snapshots) > _KEPT:
            self._snapshots.popitem(last=False)

    def _snapshot(self, key: _PagingKey) -> list[Version]:
        end, versions = self._snapshots.get(key, (0.0, []))
        if end < time.monotonic():
            raise errors.expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new "
                "list without the continue parameter."
            )
        return versions


def _write_token(revision: int, start: Key) -> str:
    token = base64.urlsafe_b64encode(encode({"v": "embedded/v1", "rv": revision, "start": start}))
    return token.decode().rstrip("=")


def _read_token(token: str) -> tuple[int, Key]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, name = content["start"]
        return int(content["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError) as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error


def encode_list(target: Target, page: Page) -> bytes:
    """The list as it goes out; items carry no kind, as on Kubernetes."""
    resource = target.resource
    header = type_header(f"{resource.kind}List", resource.api_version)
    items = b",".join(version.body for version in page.items)
    return header + b'"metadata":' + encode(page.metadata()) + b',"items":[' + items + b"]}"
