"""A container's environment and command line, by the kubelet's rules (pure).

Order: envFrom (later sources win), then env; a value may use ``$(NAME)`` of anything before it, ``$$`` is a dollar,
an unknown name stays as written. Below all of it, and invisible to ``$(NAME)``, lies what the image and the device
plugin set.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlspawner.devcluster.node.machine import quantities

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]\Z")

Source = tuple[str, str]  # ("secret" | "configMap", name)


class ConfigError(Exception):
    """The container cannot be configured yet: kubelet's CreateContainerConfigError."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The values of the downward API. ``objects`` holds data as text, None for an object that does not exist."""

    pod: Mapping[str, Any]
    pod_ip: str
    host_ip: str
    capacity: Mapping[str, str]
    objects: Mapping[Source, Mapping[str, str] | None]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; ``$$(NAME)`` gives the literal ``$(NAME)``."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def references(container: Mapping[str, Any]) -> Iterator[Source]:
    """The objects that this container's environment needs."""
    for source in container.get("envFrom") or []:
        for field, kind in (("secretRef", "secret"), ("configMapRef", "configMap")):
            if field in source:
                yield kind, source[field]["name"]
    for entry in container.get("env") or []:
        origin = entry.get("valueFrom") or {}
        for field, kind in (("secretKeyRef", "secret"), ("configMapKeyRef", "configMap")):
            if field in origin:
                yield kind, origin[field]["name"]


def decode(kind: str, manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """The contents of a Secret or ConfigMap."""
    data = manifest.get("data") or {}
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = {key: base64.b64decode(value) for key, value in (manifest.get("binaryData") or {}).items()}
    return binary | {key: value.encode() for key, value in data.items()}


def variables(container: Mapping[str, Any], facts: Facts) -> dict[str, str]:
    """The variables of the pod's manifest."""
    result: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for field, kind in (("secretRef", "secret"), ("configMapRef", "configMap")):
            if field in source:
                data = _object(facts, kind, source[field])
                result |= {source.get("prefix", "") + key: value for key, value in data.items()}
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            value = _value_from(entry["valueFrom"], container, facts)
            if value is not None:
                result[entry["name"]] = value
        else:
            result[entry["name"]] = expand(entry.get("value") or "", result)
    return result


def command_line(container: Mapping[str, Any], manifest_variables: Mapping[str, str]) -> list[str]:
    """``command`` and ``args``; the image of the simulation has no entry point of its own."""
    words: Sequence[str] = [*(container.get("command") or []), *(container.get("args") or [])]
    if not words:
        raise ConfigError("no command specified")
    return [expand(word, manifest_variables) for word in words]


def field(path: str, facts: Facts) -> str:
    """The value of a fieldRef."""
    metadata, spec = facts.pod["metadata"], facts.pod["spec"]
    if match := _SUBSCRIPT.match(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "metadata.labels": _lines(metadata.get("labels")),
        "metadata.annotations": _lines(metadata.get("annotations")),
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }
    if path not in known:
        raise ConfigError(f'unsupported fieldPath "{path}"')
    return str(known[path])


def resource(reference: Mapping[str, Any], container: Mapping[str, Any], facts: Facts) -> str:
    """The value of a resourceFieldRef; a missing limit is the node's capacity, a missing request is 0."""
    name = reference.get("containerName") or container.get("name")
    containers = [*facts.pod["spec"]["containers"], *(facts.pod["spec"].get("initContainers") or [])]
    owner = next((c for c in containers if c["name"] == name), None)
    which, _, kind = reference["resource"].partition(".")
    if owner is None or which not in {"limits", "requests"}:
        raise ConfigError(f'unsupported resourceFieldRef "{reference["resource"]}" of container "{name}"')
    resources = owner.get("resources") or {}
    fallback = facts.capacity.get(kind, "0") if which == "limits" else (resources.get("limits") or {}).get(kind, "0")
    amount = (resources.get(which) or {}).get(kind, fallback)
    return quantities.in_units(amount, str(reference.get("divisor") or "1"))


def _lines(mapping: Mapping[str, str] | None) -> str:
    quoted = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in (mapping or {}).items()}
    return "\n".join(f'{key}="{value}"' for key, value in sorted(quoted.items()))


def _object(facts: Facts, kind: str, reference: Mapping[str, Any]) -> Mapping[str, str]:
    data = facts.objects.get((kind, reference["name"]))
    if data is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    return data


def _value_from(origin: Mapping[str, Any], container: Mapping[str, Any], facts: Facts) -> str | None:
    if "fieldRef" in origin:
        return field(origin["fieldRef"]["fieldPath"], facts)
    if "resourceFieldRef" in origin:
        return resource(origin["resourceFieldRef"], container, facts)
    for name, kind in (("secretKeyRef", "secret"), ("configMapKeyRef", "configMap")):
        if name in origin:
            reference = origin[name]
            data = _object(facts, kind, reference)
            if reference["key"] not in data and not reference.get("optional"):
                owner = f"{facts.pod['metadata']['namespace']}/{reference['name']}"
                raise ConfigError(f"couldn't find key {reference['key']} in {kind[0].upper()}{kind[1:]} {owner}")
            return data.get(reference["key"])
    raise ConfigError(f"unsupported valueFrom {sorted(origin)}")
