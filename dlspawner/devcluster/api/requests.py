"""What a request asks for, read from its path, query and headers. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from dlspawner.devcluster.api import errors
from dlspawner.devcluster.api.resources import BY_PATH, NAMESPACES, Target
from dlspawner.devcluster.api.selectors import Selector, matches, parse_fields, parse_labels
from dlspawner.devcluster.api.store import Version


def parse_path(path: str) -> Target:
    """`/api/v1/namespaces/jobs/pods/p/log` and its relatives; ApiError 404 for anything that is not served."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise errors.unknown_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in NAMESPACES.subresources:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0]))
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced) or "" in parts:
        raise errors.unknown_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        raise errors.unknown_path()
    if name and resource.namespaced and not namespace:
        raise errors.unknown_path()
    return Target(resource, namespace, name, subresource)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects of a kind a list or watch is about."""

    namespace: str
    labels: Selector
    fields: Selector

    def covers(self, version: Version) -> bool:
        if self.namespace and version.namespace != self.namespace:
            return False
        return matches(self.labels, version.labels) and matches(self.fields, version.fields)


def parse_scope(target: Target, query: Mapping[str, str]) -> Scope:
    fields = parse_fields(query.get("fieldSelector", ""), target.resource)
    return Scope(target.namespace, parse_labels(query.get("labelSelector", "")), fields)


def flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("true", "1", "True", "t", "T")


def number(query: Mapping[str, str], name: str) -> int | None:
    """A query parameter that is a whole number; None when it is not there."""
    text = query.get(name, "")
    if not text:
        return None
    if not text.lstrip("-").isdecimal():
        raise errors.bad_request(f'{name}: Invalid value: "{text}": must be a whole number')
    return int(text)


def resource_version(query: Mapping[str, str]) -> int | None:
    """The revision that a list or watch names; None when it names none."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdecimal():
        raise errors.bad_request(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: invalid syntax')
    return int(text)


def wants_table(accept: str) -> bool:
    """Tables are what `kubectl get` prints; ApiError 406 for a client that takes no form we have."""
    choices = [choice.strip().replace(" ", "") for choice in accept.split(",")] if accept else ["*/*"]
    for choice in choices:
        media, *parameters = choice.split(";")
        if media in ("application/json", "application/*", "*/*"):
            shape = next((p.removeprefix("as=") for p in parameters if p.startswith("as=")), "")
            if shape in ("", "Table"):
                return shape == "Table"
    raise errors.not_acceptable(["application/json", "application/json;as=Table;g=meta.k8s.io;v=v1"])
