"""The three ways Kubernetes changes an object in part: JSON patch, merge patch and strategic merge patch. Pure.

Nothing here mutates its arguments. A strategic merge needs to know which lists are maps in disguise; that is the table
`MERGE_KEYS`, by kind and path, copied in meaning from Kubernetes' `patchStrategy` and `patchMergeKey` markers. A list
that is not in it is replaced whole. Server-side apply is not here: kubectl applies on the client by default.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]

SET_OF_VALUES = ""  # a merged list of plain values, such as finalizers
_CONTAINER = {
    "env": "name",
    "ports": "containerPort",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
}
_POD = {
    "spec.hostAliases": "ip",
    "spec.imagePullSecrets": "name",
    "spec.resourceClaims": "name",
    "spec.schedulingGates": "name",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.volumes": "name",
    "status.hostIPs": "ip",
    "status.podIPs": "ip",
} | {
    path: key
    for group in ("containers", "initContainers", "ephemeralContainers")
    for path, key in [
        (f"spec.{group}", "name"),
        *((f"spec.{group}.{field}", key) for field, key in _CONTAINER.items()),
    ]
}
_EVERY_KIND = {
    "metadata.finalizers": SET_OF_VALUES,
    "metadata.ownerReferences": "uid",
    "status.conditions": "type",
}
MERGE_KEYS: Mapping[str, Mapping[str, str]] = {
    "Pod": _POD,
    "Node": {"spec.podCIDRs": SET_OF_VALUES, "status.addresses": "type"},
    "Service": {"spec.ports": "port"},
    "ServiceAccount": {"imagePullSecrets": "name", "secrets": "name"},
}


class PatchError(Exception):
    """The patch cannot be applied. `malformed` tells nonsense (400) from a test or path that fails (422)."""

    def __init__(self, message: str, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.malformed = malformed


# Merge patch, RFC 7386


def merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# JSON patch, RFC 6902


def json_patch(target: Any, operations: Any) -> Any:
    if not isinstance(operations, list):
        raise PatchError("a JSON patch is a list of operations", malformed=True)
    result = copy.deepcopy(target)
    for operation in operations:
        if not isinstance(operation, Mapping):
            raise PatchError("every JSON patch operation is an object", malformed=True)
        result = _operate(result, operation)
    return result


def _operate(document: Any, operation: Mapping[str, Any]) -> Any:
    path = _pointer(operation, "path")
    match operation.get("op"):
        case "add":
            return _add(document, path, _value(operation))
        case "remove":
            return _remove(document, path)
        case "replace":
            _look_up(document, path)
            return _add(_remove(document, path), path, _value(operation)) if path else _value(operation)
        case "test":
            if _look_up(document, path) != _value(operation):
                raise PatchError(f"testing value {operation['path']} failed")
            return document
        case "copy":
            return _add(document, path, copy.deepcopy(_look_up(document, _pointer(operation, "from"))))
        case "move":
            source = _pointer(operation, "from")
            if path[: len(source)] == source and path != source:
                raise PatchError("a value cannot be moved into itself")
            moved = _look_up(document, source)
            return _add(_remove(document, source), path, moved)
        case other:
            raise PatchError(f"unknown JSON patch operation {other!r}")


def _value(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise PatchError(f"JSON patch operation {operation.get('op')!r} needs a value")
    return copy.deepcopy(operation["value"])


def _pointer(operation: Mapping[str, Any], field: str) -> list[str]:
    text = operation.get(field)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(f"{field!r} of a JSON patch operation is a path that starts with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _look_up(document: Any, path: Sequence[str]) -> Any:
    for part in path:
        if isinstance(document, list):
            document = document[_index(document, part)]
        elif isinstance(document, Mapping) and part in document:
            document = document[part]
        else:
            raise PatchError(f"missing path: /{'/'.join(path)}")
    return document


def _index(items: list[Any], part: str, *, beyond: bool = False) -> int:
    if beyond and part == "-":
        return len(items)
    if not part.isdecimal() or int(part) >= len(items) + beyond:
        raise PatchError(f"unable to access invalid index: {part}")
    return int(part)


def _add(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent = _look_up(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(_index(parent, path[-1], beyond=True), value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise PatchError(f"nothing can be added below /{'/'.join(path[:-1])}")
    return document


def _remove(document: Any, path: Sequence[str]) -> Any:
    _look_up(document, path)
    if not path:
        return None
    parent = _look_up(document, path[:-1])
    del parent[_index(parent, path[-1]) if isinstance(parent, list) else path[-1]]
    return document


# Strategic merge patch

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


def strategic_patch(kind: str, target: Object, patch: Any) -> Object:
    if not isinstance(patch, Mapping):
        raise PatchError("a strategic merge patch is an object", malformed=True)
    return _strategic(_EVERY_KIND | dict(MERGE_KEYS.get(kind, {})), "", target, patch)


def _strategic(keys: Mapping[str, str], path: str, target: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        replacement: Object = _plain({key: value for key, value in patch.items() if key != _DIRECTIVE})
        return replacement
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchError(f"unrecognized patch type: {directive}", malformed=True)
    result = dict(target)
    if _RETAIN in patch:
        result = {key: value for key, value in result.items() if key in patch[_RETAIN]}
    for name, value in patch.items():
        if name.startswith(_DELETE):
            field = name.removeprefix(_DELETE)
            result[field] = [item for item in result.get(field, []) if item not in value]
        elif not name.startswith("$"):
            below = f"{path}.{name}" if path else name
            _set(result, name, value, keys, below)
    for name, order in patch.items():
        if name.startswith(_ORDER):
            _arrange(result, name.removeprefix(_ORDER), order, keys, path)
    return result


def _set(result: Object, name: str, value: Any, keys: Mapping[str, str], path: str) -> None:
    before = result.get(name)
    if value is None:
        result.pop(name, None)
    elif isinstance(value, Mapping):
        result[name] = _strategic(keys, path, before if isinstance(before, Mapping) else {}, value)
    elif isinstance(value, list) and path in keys:
        result[name] = _merge_list(keys, path, before if isinstance(before, list) else [], value)
    else:
        result[name] = _plain(value)


def _merge_list(keys: Mapping[str, str], path: str, before: list[Any], patch: list[Any]) -> list[Any]:
    key = keys[path]
    if key == SET_OF_VALUES:
        return before + [item for item in patch if item not in before]
    if not all(isinstance(item, Mapping) for item in patch):
        raise PatchError(f"every element of {path} must be an object", malformed=True)
    if {_DIRECTIVE: "replace"} in patch:
        return [_plain(item) for item in patch if _DIRECTIVE not in item]
    result = list(before)
    for item in patch:
        if key not in item:
            raise PatchError(f"map: {dict(item)} does not contain declared merge key: {key}", malformed=True)
        same = [index for index, old in enumerate(result) if old.get(key) == item[key]]
        if item.get(_DIRECTIVE) == "delete":
            result = [old for index, old in enumerate(result) if index not in same]
        elif same:
            result[same[0]] = _strategic(keys, path, result[same[0]], item)
        else:
            result.append(_strategic(keys, path, {}, item))
    return result


def _arrange(result: Object, field: str, order: list[Any], keys: Mapping[str, str], path: str) -> None:
    """Puts a merged list into the order that the client wants; what it does not name follows, in the old order."""
    key = keys.get(f"{path}.{field}" if path else field)
    items = result.get(field)
    if key is None or not isinstance(items, list):
        return
    wanted = [item.get(key) if isinstance(item, Mapping) else item for item in order]

    def place(item: Any) -> int:
        name = item.get(key) if isinstance(item, Mapping) else item
        return wanted.index(name) if name in wanted else len(wanted)

    result[field] = sorted(items, key=place)


def _plain(value: Any) -> Any:
    """A value that is put where nothing was: nulls and directives in it mean nothing."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [_plain(item) for item in value if not (isinstance(item, Mapping) and _DIRECTIVE in item)]
    return value
