"""What clients read before they do anything: versions, groups, kinds and two OpenAPI documents. Pure.

OpenAPI is deliberately nearly empty. kubectl's client-side validation and `explain` use definitions; without them
kubectl applies with the merge keys compiled into it. Version 3 names every path with its `fieldValidation` parameter,
so that newer kubectl leaves validation to the server and does not ask for version 2.
"""

from typing import Any

from dlspawner.devcluster.api.objects.resources import RESOURCES, VERBS, Resource

Object = dict[str, Any]

# The release that is imitated; the build part says that it is not that release.
VERSION = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.4+dlspawner",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux/amd64",
}
# `kubectl auth can-i`: asked, answered, not kept.
REVIEW_GROUP = {"authorization.k8s.io": "v1"}
_REVIEW = {
    "name": "selfsubjectaccessreviews",
    "singularName": "selfsubjectaccessreview",
    "namespaced": False,
    "kind": "SelfSubjectAccessReview",
    "verbs": ["create"],
}
# Kinds of the subresources that are not their parent's own; they have no list and no watch.
_SUBRESOURCE_KINDS = {
    "binding": ("Binding", ["create"], {}),
    "eviction": ("Eviction", ["create"], {"group": "policy", "version": "v1"}),
    "exec": ("PodExecOptions", ["create", "get"], {}),
    "log": ("Pod", ["get"], {}),
    "finalize": ("Namespace", ["update"], {}),
}


def core_versions(address: str) -> Object:
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def group_list() -> Object:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in _groups()]}


def group(name: str) -> Object | None:
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(name) if name in _groups() else None


def resource_list(group: str, version: str) -> Object | None:
    served = [resource for resource in RESOURCES if (resource.group, resource.version) == (group, version)]
    if not served and REVIEW_GROUP.get(group) != version:
        return None
    rows = [row for resource in served for row in _rows(resource)] or [_REVIEW]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows}


def _groups() -> dict[str, str]:
    return {resource.group: resource.version for resource in RESOURCES if resource.group} | REVIEW_GROUP


def _group(name: str) -> Object:
    version = {"groupVersion": f"{name}/{_groups()[name]}", "version": _groups()[name]}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _rows(resource: Resource) -> list[Object]:
    row: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(VERBS),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    return [row, *(_subresource_row(resource, name) for name in resource.subresources)]


def _subresource_row(resource: Resource, name: str) -> Object:
    kind, verbs, extra = _SUBRESOURCE_KINDS.get(name, (resource.kind, ["get", "patch", "update"], {}))
    row = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
    return row | extra | {"kind": kind, "verbs": verbs}


def openapi_v2() -> Object:
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"swagger": "2.0", "info": info, "paths": {}, "definitions": {}}


def openapi_v2_protobuf() -> bytes:
    """The same in gnostic's `openapi.v2.Document` encoding, the only form that older kubectl accepts."""
    title, version = b"Kubernetes", VERSION["gitVersion"].encode()
    info = _chunk(1, title) + _chunk(2, version)
    return _chunk(1, b"2.0") + _chunk(2, info) + _chunk(8, b"") + _chunk(9, b"")


def _chunk(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field; all of ours are shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def openapi_v3_index() -> Object:
    versions = sorted({_root(resource) for resource in RESOURCES})
    return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash=1"} for root in versions}}


def openapi_v3(root: str) -> Object | None:
    served = [resource for resource in RESOURCES if _root(resource) == root]
    if not served:
        return None
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    paths = {path: operations for resource in served for path, operations in _paths(resource).items()}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _root(resource: Resource) -> str:
    return f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"


def _paths(resource: Resource) -> Object:
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    collection = f"/{_root(resource)}/{scope}{resource.plural}"
    gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
    ]

    def operation(action: str) -> Object:
        return {"x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk, "parameters": parameters}

    return {
        collection: {"post": operation("post")},
        f"{collection}/{{name}}": {"put": operation("put"), "patch": operation("patch")},
    }
