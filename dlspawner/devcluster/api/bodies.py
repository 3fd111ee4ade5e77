"""Request bodies: JSON or YAML, of a bounded size; and the options that come as a body or in the query. Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from dlspawner.devcluster.api import errors, protobuf
from dlspawner.devcluster.api.objects import patch
from dlspawner.devcluster.api.objects.resources import Resource
from dlspawner.devcluster.api.registry import Binding, DeleteOptions
from dlspawner.devcluster.api.requests import number
from dlspawner.devcluster.api.store import Object

MAX_BODY = 3 * 1024 * 1024  # Kubernetes' limit
PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
_POLICIES = ("Background", "Foreground", "Orphan")


def decode(body: bytes, content_type: str) -> Any:
    """Returns the value in a body, of any type; ApiError 400, 413 or 415."""
    if len(body) > MAX_BODY:
        raise errors.too_large(MAX_BODY)
    media = content_type.partition(";")[0].strip()
    if media in ("application/yaml", "application/x-yaml", "text/yaml"):
        return _decode_yaml(body)
    if media == protobuf.MEDIA_TYPE:
        return _decode_protobuf(body)
    if media not in ("", "application/json", *PATCHES):
        raise errors.unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml"
        )
    try:
        value = json.loads(body, parse_constant=_no_number)
        return _whole_characters(value) if b"\\ud" in body.lower() else value
    except (ValueError, RecursionError) as error:
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of a registered type): couldn't get version/kind; "
            f"json parse error: {error}"
        ) from error


def _whole_characters(value: Any) -> Any:
    """Half a surrogate pair is no text: like Go's decoder, put the replacement character in its place."""
    return json.loads(
        json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _decode_protobuf(body: bytes) -> Any:
    try:
        return protobuf.decode(body)
    except (protobuf.ProtobufError, UnicodeDecodeError) as error:
        raise errors.unsupported_media_type(f"send JSON or YAML: {error}") from error


def _decode_yaml(body: bytes) -> Any:
    try:
        value = yaml.load(body, Loader=_JsonLikeLoader)  # noqa: S506 - derived from SafeLoader
        json.dumps(value, allow_nan=False)
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise errors.bad_request(f"error converting YAML to JSON: {error}") from error
    return value


class _JsonLikeLoader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a time stays the text that it is."""


_JsonLikeLoader.yaml_implicit_resolvers = {
    letter: [(tag, expression) for tag, expression in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def decode_patch(body: bytes, content_type: str, resource: Resource) -> Callable[[Object], Any]:
    """The patch as a function of the object it is for."""
    media = content_type.partition(";")[0].strip()
    if media not in PATCHES:
        raise errors.unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {', '.join(PATCHES)}"
        )
    content = decode(body, content_type)

    def change(target: Object) -> Any:
        try:
            if media == PATCHES[0]:
                return patch.json_patch(target, content)
            if media == PATCHES[1]:
                return patch.merge_patch(target, content)
            return patch.strategic_patch(resource.kind, target, content)
        except patch.PatchError as error:
            if error.malformed:
                raise errors.bad_request(f"error decoding patch: {error}") from error
            raise errors.ApiError(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}", {}
            ) from error

    return change


def delete_options(body: bytes, content_type: str, query: Mapping[str, str]) -> DeleteOptions:
    given = decode(body, content_type) if body.strip() else {}
    if not isinstance(given, dict):
        raise errors.bad_request("DeleteOptions must be an object")
    policy = given.get("propagationPolicy") or query.get("propagationPolicy") or None
    if policy is None and "orphanDependents" in given:
        policy = "Orphan" if given["orphanDependents"] else "Background"
    if policy is not None and policy not in _POLICIES:
        allowed = ", ".join(f'"{choice}"' for choice in (*_POLICIES, "nil"))
        raise errors.ApiError(
            422,
            "Invalid",
            f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Invalid value: "{policy}": '
            f"must be one of {allowed}",
            {"group": "meta.k8s.io", "kind": "DeleteOptions"},
        )
    grace = given.get("gracePeriodSeconds")
    if grace is None:
        grace = number(query, "gracePeriodSeconds")
    if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int)):
        raise errors.bad_request(f"gracePeriodSeconds is not a whole number: {grace!r}")
    conditions = given.get("preconditions") or {}
    if not isinstance(conditions, dict):
        raise errors.bad_request("preconditions must be an object")
    dry_run = bool(given.get("dryRun")) or is_dry_run(query)
    return DeleteOptions(grace, policy, conditions.get("uid"), conditions.get("resourceVersion"), dry_run)


def named(body: Any, name: str, kind: str) -> dict[str, Any]:
    """The body of a subresource that repeats the name of the object it is about."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    if not isinstance(metadata, dict) or metadata.get("name") != name:
        raise errors.bad_request(f"name in URL does not match name in {kind} object")
    return dict(body)


def binding(body: Any) -> Binding:
    given = body if isinstance(body, dict) else {}
    target, metadata = given.get("target"), given.get("metadata") or {}
    if not isinstance(target, dict) or not isinstance(metadata, dict):
        raise errors.bad_request("a binding must be an object with a target")
    if target.get("kind", "Node") != "Node":
        kind = target["kind"]
        raise errors.plain(f'target.kind: Unsupported value: "{kind}": supported values: "Node", "<empty>"')
    if not target.get("name"):
        raise errors.plain("target.name: Required value")
    annotations = metadata.get("annotations") or {}
    strings = isinstance(annotations, dict) and all(isinstance(value, str) for value in annotations.values())
    if not isinstance(target.get("name"), str) or not strings:
        raise errors.bad_request("a binding names a node, and its annotations are strings")
    return Binding(target["name"], metadata.get("uid"), annotations)


def is_dry_run(query: Mapping[str, str]) -> bool:
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        raise errors.bad_request(f'dryRun: Unsupported value: "{value}": supported values: "All"')
    return value == "All"
