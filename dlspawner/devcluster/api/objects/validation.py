"""What makes an object wrong, in Kubernetes' words and with the field's path. Pure.

`check` finds what no object of the kind may be, `check_update` what may not change (422, all problems together). Types
of fields are `shapes`' business and hold already. The common mistakes are covered, not every rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dlspawner.devcluster import quantity
from dlspawner.devcluster.api.errors import Cause, denied, duplicate, required, unsupported, wrong
from dlspawner.devcluster.api.objects.resources import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    SECRETS,
    SERVICES,
    VOLUMES,
    Resource,
)
from dlspawner.devcluster.api.objects.validation_pods import check_pod, check_pod_update
from dlspawner.devcluster.api.objects.validation_text import (
    MAX_ANNOTATIONS,
    dns1035_label,
    dns_label,
    dns_subdomain,
    label_value,
    qualified_name,
)

Object = dict[str, Any]
Causes = Iterator[Cause]

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*$")
_MAX_CONTENT = 1024 * 1024
_SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")


def check(resource: Resource, manifest: Object) -> list[Cause]:
    special = _CHECKS.get(resource)
    return [*_metadata(resource, manifest["metadata"]), *(special(manifest) if special else ())]


def check_update(resource: Resource, new: Object, old: Object) -> list[Cause]:
    special = _UPDATE_CHECKS.get(resource)
    return list(special(new, old)) if special else []


def _metadata(resource: Resource, metadata: Object) -> Causes:
    name = metadata.get("name")
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif problem := _name_rule(resource)(name):
        yield wrong("metadata.name", name, problem)
    for key, value in (metadata.get("labels") or {}).items():
        if problem := qualified_name(key):
            yield wrong("metadata.labels", key, problem)
        if problem := label_value(value):
            yield wrong("metadata.labels", value, problem)
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        if problem := qualified_name(key.lower()):
            yield wrong("metadata.annotations", key, problem)
    if sum(len(key) + len(value) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        yield Cause(
            "metadata.annotations", "FieldValueTooLong", f"Too long: may not be more than {MAX_ANNOTATIONS} bytes"
        )
    yield from _ties(metadata)


def _ties(metadata: Object) -> Causes:
    """The links of an object: owners, and finalizers."""
    for owner in metadata.get("ownerReferences") or []:
        for field, word in (("apiVersion", "version "), ("kind", ""), ("name", ""), ("uid", "")):
            if not (isinstance(owner, dict) and owner.get(field)):
                yield wrong(f"metadata.ownerReferences.{field}", "", f"{word}must not be empty")
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        if "/" not in str(finalizer) and finalizer not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield wrong(f"metadata.finalizers[{index}]", finalizer, why)


def _name_rule(resource: Resource) -> Callable[[str], str | None]:
    if resource is SERVICES:
        return dns1035_label
    return dns_label if resource is NAMESPACES else dns_subdomain


def _event(event: Object) -> Causes:
    namespace = (event.get("involvedObject") or {}).get("namespace") or "default"
    if namespace != event["metadata"].get("namespace"):
        yield wrong("involvedObject.namespace", namespace, "does not match event.namespace")


def _service(service: Object) -> Causes:
    spec = service.get("spec") or {}
    kind, ports = spec.get("type"), spec.get("ports") or []
    if kind not in _SERVICE_TYPES:
        yield unsupported("spec.type", kind, _SERVICE_TYPES)
    if not ports and spec.get("clusterIP") != "None" and kind != "ExternalName":
        yield required("spec.ports")
    names: set[str] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        yield from _service_port(port, path, named=len(ports) > 1)
        if port.get("name") and port["name"] in names:
            yield duplicate(f"{path}.name", port["name"])
        names.add(port.get("name", ""))
        if port.get("nodePort") and kind in ("ClusterIP", "ExternalName"):
            yield denied(f"{path}.nodePort", f"may not be used when `type` is '{kind}'")


def _service_port(port: Object, path: str, *, named: bool) -> Causes:
    if named and not port.get("name"):
        yield required(f"{path}.name")
    number = port.get("port")
    if not isinstance(number, int) or not 1 <= number <= 65535:
        yield wrong(f"{path}.port", number, "must be between 1 and 65535, inclusive")
    target = port.get("targetPort")
    if isinstance(target, int) and not 1 <= target <= 65535:
        yield wrong(f"{path}.targetPort", target, "must be between 1 and 65535, inclusive")
    if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
        yield unsupported(f"{path}.protocol", port.get("protocol"), ("TCP", "UDP", "SCTP"))
    node_port = port.get("nodePort")
    if node_port and not (isinstance(node_port, int) and 30000 <= node_port <= 32767):
        yield wrong(f"{path}.nodePort", node_port, "provided port is not in the valid range. "
                    "The range of valid ports is 30000-32767")  # fmt: skip


def _service_update(new: Object, old: Object) -> Causes:
    before, after = old.get("spec", {}), new.get("spec", {})
    address = before.get("clusterIP")
    stays = before.get("type") != "ExternalName" and after.get("type") != "ExternalName"
    if address and stays and after.get("clusterIP") != address:
        yield wrong("spec.clusterIPs[0]", [after.get("clusterIP")], "may not change once set")


def _keys(data: Mapping[str, Any], path: str) -> Causes:
    for key in data:
        if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) or key in (".", ".."):
            yield wrong(f"{path}[{key}]", key, "a valid config key must consist of alphanumeric characters, '-', '_' "
                        "or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', "
                        "regex used for validation is '[-._a-zA-Z0-9]+')")  # fmt: skip


def _secret(secret: Object) -> Causes:
    data = secret.get("data") or {}
    yield from _keys(data, "data")
    for key, value in data.items():
        if not _BASE64.match(value) or len(re.sub(r"\s", "", value)) % 4:
            yield wrong(f"data[{key}]", "<secret contents redacted>", "illegal base64 data")
    if sum(len(value) for value in data.values()) * 3 // 4 > _MAX_CONTENT:
        yield Cause("data", "FieldValueTooLong", f"Too long: may not be more than {_MAX_CONTENT} bytes")


def _config_map(config_map: Object) -> Causes:
    data, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    yield from _keys(data, "data")
    yield from _keys(binary, "binaryData")
    size = sum(len(value.encode()) for value in data.values()) + sum(len(str(value)) for value in binary.values())
    if size > _MAX_CONTENT:
        yield Cause("", "FieldValueTooLong", f"Too long: may not be more than {_MAX_CONTENT} bytes")


def _immutable_content(new: Object, old: Object) -> Causes:
    if old.get("immutable"):
        for field in ("immutable", "data", "binaryData"):
            if new.get(field) != old.get(field):
                yield denied(field, "field is immutable when `immutable` is set")
    if "type" in old and new.get("type") != old["type"]:
        yield wrong("type", new.get("type"), "field is immutable")


def _claim(claim: Object) -> Causes:
    spec = claim.get("spec") or {}
    modes = spec.get("accessModes") or []
    if not modes:
        yield required("spec.accessModes", "at least 1 access mode is required")
    for mode in modes:
        if mode not in _ACCESS_MODES:
            yield unsupported("spec.accessModes", mode, _ACCESS_MODES)
    if not ((spec.get("resources") or {}).get("requests") or {}).get("storage"):
        yield required("spec.resources[storage]")


def _claim_update(new: Object, old: Object) -> Causes:
    def fixed(claim: Object) -> Object:
        spec = dict(claim.get("spec", {}))
        return {key: value for key, value in spec.items() if key not in ("resources", "volumeName")}

    bound = old.get("spec", {}).get("volumeName")
    if fixed(new) != fixed(old) or (bound and new.get("spec", {}).get("volumeName") != bound):
        yield denied(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        )


def _volume(volume: Object) -> Causes:
    spec = volume.get("spec") or {}
    if not spec.get("capacity"):
        yield required("spec.capacity")
    yield from _quantities(spec.get("capacity") or {}, "spec.capacity")
    if not spec.get("accessModes"):
        yield required("spec.accessModes")
    for field in ("name", "namespace") if "claimRef" in spec else ():
        if not spec["claimRef"].get(field):
            yield required(f"spec.claimRef.{field}")


def _node(node: Object) -> Causes:
    status = node.get("status") or {}
    for field in ("capacity", "allocatable"):
        yield from _quantities(status.get(field) or {}, f"status.{field}")
    for index, taint in enumerate(node["spec"].get("taints") or []):
        if problem := qualified_name(taint.get("key", "")):
            yield wrong(f"spec.taints[{index}].key", taint.get("key", ""), problem)
        if taint.get("effect") not in _TAINT_EFFECTS:
            yield unsupported(f"spec.taints[{index}].effect", taint.get("effect", ""), _TAINT_EFFECTS)


def _quantities(amounts: Mapping[str, object], path: str) -> Causes:
    for name, value in amounts.items():
        try:
            quantity.parse(value)
        except ValueError as error:
            yield wrong(f"{path}[{name}]", value, str(error))


def _priority_class(priority_class: Object) -> Causes:
    value = priority_class.get("value")
    if not isinstance(value, int):
        yield required("value")
    elif value > 1_000_000_000 and not priority_class["metadata"].get("name", "").startswith("system-"):
        yield denied("value", "maximum allowed value of a user defined priority is 1000000000")


_CHECKS: Mapping[Resource, Callable[[Object], Causes]] = {
    CLAIMS: _claim,
    CONFIG_MAPS: _config_map,
    EVENTS: _event,
    NODES: _node,
    PODS: check_pod,
    PRIORITY_CLASSES: _priority_class,
    SECRETS: _secret,
    SERVICES: _service,
    VOLUMES: _volume,
}
_UPDATE_CHECKS: Mapping[Resource, Callable[[Object, Object], Causes]] = {
    CLAIMS: _claim_update,
    CONFIG_MAPS: _immutable_content,
    PODS: check_pod_update,
    SECRETS: _immutable_content,
    SERVICES: _service_update,
}
