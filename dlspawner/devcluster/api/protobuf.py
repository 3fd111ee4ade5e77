"""Just enough of Kubernetes' protobuf to read what newer kubectl sends when it creates small objects. Pure.

kubectl 1.32 makes namespaces, secrets, config maps, service accounts and services with its typed client, which writes
protobuf and does not fall back to JSON. Only these messages are known, by the field numbers of Kubernetes' own
`generated.proto`; a field that is not listed is refused, never lost. Answers are always JSON, which every client takes.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ProtobufError(Exception):
    """Not such a message, or one with fields that are not known here."""


@dataclass(frozen=True, slots=True)
class _Field:
    """`form`: string, bytes, int, bool, skip, or the name of a message."""

    name: str
    form: str
    repeated: bool = False
    mapped: bool = False


_SKIP = _Field("", "skip")  # the server's own business: times, managed fields, status
_META = {1: _Field("metadata", "ObjectMeta")}
_MESSAGES: Mapping[str, Mapping[int, _Field]] = {
    "Unknown": {
        1: _Field("type", "TypeMeta"),
        2: _Field("raw", "bytes"),
        3: _Field("encoding", "string"),
        4: _Field("media", "string"),
    },
    "TypeMeta": {1: _Field("apiVersion", "string"), 2: _Field("kind", "string")},
    "ObjectMeta": {
        1: _Field("name", "string"),
        2: _Field("generateName", "string"),
        3: _Field("namespace", "string"),
        4: _SKIP,
        5: _Field("uid", "string"),
        6: _Field("resourceVersion", "string"),
        7: _SKIP,
        8: _SKIP,
        11: _Field("labels", "string", mapped=True),
        12: _Field("annotations", "string", mapped=True),
        14: _Field("finalizers", "string", repeated=True),
        17: _SKIP,
    },
    "Namespace": _META | {2: _SKIP, 3: _SKIP},
    "ConfigMap": _META
    | {
        2: _Field("data", "string", mapped=True),
        3: _Field("binaryData", "bytes", mapped=True),
        4: _Field("immutable", "bool"),
    },
    "Secret": _META
    | {
        2: _Field("data", "bytes", mapped=True),
        3: _Field("type", "string"),
        4: _Field("stringData", "string", mapped=True),
        5: _Field("immutable", "bool"),
    },
    "ServiceAccount": _META | {4: _Field("automountServiceAccountToken", "bool")},
    "Service": _META | {2: _Field("spec", "ServiceSpec"), 3: _SKIP},
    "ServiceSpec": {
        1: _Field("ports", "ServicePort", repeated=True),
        2: _Field("selector", "string", mapped=True),
        3: _Field("clusterIP", "string"),
        4: _Field("type", "string"),
        7: _Field("sessionAffinity", "string"),
        8: _SKIP,
        10: _Field("externalName", "string"),
        11: _SKIP,
        12: _SKIP,
        13: _SKIP,
    },
    "ServicePort": {
        1: _Field("name", "string"),
        2: _Field("protocol", "string"),
        3: _Field("port", "int"),
        4: _Field("targetPort", "IntOrString"),
        5: _Field("nodePort", "int"),
    },
    "IntOrString": {1: _Field("type", "int"), 2: _Field("int", "int"), 3: _Field("str", "string")},
}


def decode(body: bytes) -> Object:
    """The object that an enveloped message holds; ProtobufError when it cannot be read in full."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("the body does not start as Kubernetes' protobuf does")
    envelope = _message("Unknown", body[len(_MAGIC) :])
    kind = envelope.get("type", {}).get("kind", "")
    if kind not in _MESSAGES or 1 not in _MESSAGES[kind] or _MESSAGES[kind][1].name != "metadata":
        raise ProtobufError(f"{kind or 'this kind'} is not read from protobuf")
    raw = base64.b64decode(envelope.get("raw", ""))
    return {**envelope["type"], **_message(kind, raw)}


def _message(name: str, content: bytes) -> Object:
    result: Object = {}
    for number, value in _fields(content):
        field = _MESSAGES[name].get(number)
        if field is None:
            raise ProtobufError(f"field {number} of {name} is not read from protobuf")
        if field.form == "skip":
            continue
        if field.mapped:
            entry = dict(_fields(_expect_bytes(value)))
            key = _expect_bytes(entry.get(1, b"")).decode()
            result.setdefault(field.name, {})[key] = _value(field.form, entry.get(2, b""))
        elif field.repeated:
            result.setdefault(field.name, []).append(_value(field.form, value))
        else:
            result[field.name] = _value(field.form, value)
    # Kubernetes writes empty strings and zeros too; in JSON they are left out.
    return {key: item for key, item in result.items() if item not in ("", 0, {}, None) or item is False}


def _value(form: str, value: int | bytes) -> Any:
    match form:
        case "int":
            return value
        case "bool":
            return bool(value)
        case "string":
            return _expect_bytes(value).decode()
        case "bytes":
            return base64.b64encode(_expect_bytes(value)).decode()
        case "IntOrString":
            union = _message(form, _expect_bytes(value))
            return union.get("str") or union.get("int")
        case _:
            return _message(form, _expect_bytes(value))


def _expect_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ProtobufError("a number stands where text should")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(content, position)
            yield number, value
        elif wire in (_BYTES, _FIXED64, _FIXED32):
            length = {_FIXED64: 8, _FIXED32: 4}.get(wire, -1)
            if length < 0:
                length, position = _varint(content, position)
            if position + length > len(content):
                raise ProtobufError("the message ends early")
            yield number, content[position : position + length]
            position += length
        else:
            raise ProtobufError(f"wire type {wire} is not used by Kubernetes")


def _varint(content: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while position < len(content) and shift < 64:
        byte = content[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
    raise ProtobufError("the message ends early")
